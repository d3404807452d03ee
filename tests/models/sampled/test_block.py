"""Block steps in dual weights, against dense algebra."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.optimize import minimize
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPClassifier, QSGPRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Bernoulli, Gaussian, Laplace
from skscalablegp.linalg.gradients import Rows
from skscalablegp.models.sampled import (
    Flattening,
    NoiseAtRows,
    SampledWeights,
    Sampler,
    SeededFourier,
    SupportRows,
    support_gram,
)
from skscalablegp.models.sampled._block import BlockStepper, batch_variance, block_change
from skscalablegp.models.sampled._weights import SparseSGD

NOISE, N, S = 0.05, 60, 12
KERNEL = compile_kernel(ConstantKernel(1.5) * RBF([0.8, 1.2]) + WhiteKernel(NOISE), 2)


def table(counts=1.0):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(N)
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    return RowSource.of(X, y[:, None], unit, torch.float64, weight=counts)


def stepper(size, dense=3, held=(), counts=1.0, noise=None, **settings):
    source, noise = table(counts), noise or NoiseAtRows(Gaussian(), NOISE, 1 / NOISE)
    functions = SeededFourier(KERNEL, 20, 3, 4, torch.float64)
    rows = source.take(slice(None))
    first, last = (Rows.of(rows.X[some], rows.Y[some]) for some in (slice(S), slice(-10, None)))
    support = SupportRows(KERNEL, KERNEL.theta0, first, last)
    head = -(-dense // 2)
    gram = support_gram(support, functions, skip=head)
    coef = torch.zeros(2, 20, 1 + dense, dtype=torch.float64)
    for r in range(dense):
        coef[r % 2, r // 2, 1 + r] = 0.3
    shared = torch.zeros(S, 1 + dense).double()
    shared[:, 0] = torch.linspace(-1, 1, S)
    phi = functions.part(np.arange(functions.n_blocks)).evaluate(KERNEL.theta0, support.all_rows)
    a = gram @ shared + phi @ coef.reshape(-1, 1 + dense)
    weights = SampledWeights(coef, shared, a, head)
    squares = torch.full((2, 20), 1.0, dtype=torch.float64)
    sampler = Sampler(
        source, functions, size, functions.n_blocks, np.random.default_rng(0), N, np.array(held)
    )
    beginning = support, Flattening.none(gram), weights, squares
    settings["support_index"] = torch.arange(S)
    return BlockStepper(sampler, noise, *beginning, SparseSGD(1.0), **settings)


def functions_at_rows(run):
    X = run.sampler.source.take(slice(None)).X
    return run.basis.part(np.arange(run.basis.n_blocks)).evaluate(KERNEL.theta0, X)


def mean_weights(run):
    return run.folded()[:, :, :1].reshape(-1, 1)


@pytest.mark.parametrize("size, steps", [(N, 1), (20, 120)])
def test_steps_end_at_bayesian_linear_regression(size, steps):
    run = stepper(size)
    for _ in range(steps):
        run.step()
    phi, Y = functions_at_rows(run), run.sampler.source.take(slice(None)).Y
    best = torch.linalg.solve(phi.T @ phi / NOISE + torch.eye(40), phi.T @ Y / NOISE)
    assert_allclose(phi @ mean_weights(run), phi @ best, atol=1e-6)
    assert_allclose(mean_weights(run), phi.T @ run.dual, atol=1e-10)
    run.score()
    assert_allclose(run.weights.a[S:, :1], (phi @ best)[-10:], atol=1e-6)


def test_a_row_of_a_count_stands_for_equal_rows():
    counts = np.ones(N)
    counts[20:30] = 3.0
    run = stepper(20, counts=counts)
    for _ in range(200):
        run.step()
    phi, Y = functions_at_rows(run), run.sampler.source.take(slice(None)).Y
    share = torch.as_tensor(counts)[:, None] / NOISE
    best = torch.linalg.solve(phi.T @ (share * phi) + torch.eye(40), phi.T @ (share * Y))
    assert_allclose(phi @ mean_weights(run), phi @ best, atol=2e-4)


def test_held_rows_choose_scales_and_then_take_part():
    found = []

    def calibrate(run):
        found.append(run.weights.a[S:, :1].clone())
        assert (run.dual[list(range(50, N))] == 0).all()
        return 2.0, 0.5

    run = stepper(20, held=range(50, N), calibrate=calibrate, release=5)
    for _ in range(5):
        run.step()
    f = functions_at_rows(run) @ mean_weights(run)
    for _ in range(30):
        run.step()
    assert run.scales == (2.0, 0.5) and (run.dual != 0).all()
    (values,) = found
    assert_allclose(values, f[-10:], atol=1e-10)


def test_snapshots_bring_back_dual_weights():
    run = stepper(20)
    run.step()
    kept, score = run.snapshot(), run.score()
    for _ in range(5):
        run.step()
    assert run.score() != score
    run.restore(kept)
    assert_allclose(run.score(), score, rtol=1e-12)
    assert_allclose(mean_weights(run), functions_at_rows(run).T @ run.dual, atol=1e-10)


def test_estimators_take_block_steps_by_default_and_others_as_written():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((300, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(300)
    fixed = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.04)
    settings = dict(n_components=128, optimizer=None, batch_size=100, random_state=0)
    exact = QSGPRegressor(fixed, inference="exact", **settings).fit(X, y)
    settings |= dict(inference="stochastic", max_iter=40, dtype="float64")
    model = QSGPRegressor(fixed, **settings).fit(X, y)
    assert "block steps" in model.fit_report_.ignored["component_batch_size"]
    assert_allclose(model.predict(X), exact.predict(X), atol=2e-3)
    few = {k: v for k, v in settings.items() if k != "max_iter"}
    for own in (
        dict(control_variate="squares"),
        dict(covariance="chevron"),
        dict(kernel=ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.003)),
    ):
        sampled = QSGPRegressor(**(dict(kernel=fixed, max_iter=2) | own | few)).fit(X, y)
        assert "component_batch_size" not in sampled.fit_report_.ignored


# ---------------------------------------------------------------- other likelihoods


def batch(t=1, seed=1):
    """The Gram matrix of some rows, the mean of f that others give, dual weights, and targets."""
    rng = np.random.default_rng(seed)
    X = torch.tensor(rng.standard_normal((15, 2)))
    gram = KERNEL.cross(KERNEL.theta0, X, X)
    outside, dual = torch.tensor(rng.standard_normal((2, 15, t)))
    return gram, outside, 0.3 * dual, torch.tensor(rng.standard_normal((15, t)))


@pytest.mark.parametrize("share", [1, 3])
def test_variances_are_those_given_a_row_and_copies_of_the_others(share):
    gram, curvature, counts = batch()[0], 4.0, torch.ones(15).double()
    counts[:4] = 2.0
    found = batch_variance(gram, curvature, 15 * share, counts)
    for i in range(15):
        observed = torch.where(torch.arange(15) == i, counts, share * counts)
        posterior = gram - gram @ torch.linalg.solve(
            gram + torch.diag(1 / (curvature * observed)), gram
        )
        assert_allclose(found[i, 0], posterior[i, i], rtol=1e-9)


@pytest.mark.parametrize(
    "likelihood, t", [(Laplace(), 1), (Bernoulli(), 1), (Bernoulli(), 3)], ids=["l", "b", "b3"]
)
def test_a_batch_ends_at_the_mode_given_the_other_rows(likelihood, t):
    gram, outside, dual, Y = batch(t)
    if isinstance(likelihood, Bernoulli):
        Y = (Y > 0).double()
    variance = torch.linspace(0.1, 1.0, 15).double()[:, None]
    rows = Rows.of(Y, Y, weight=torch.linspace(1, 3, 15))
    noise = NoiseAtRows.of(likelihood, NOISE, Y).at(rows)
    change, curvature = block_change(noise, Y, outside + gram @ dual, variance, gram, dual)
    root = torch.linalg.cholesky(gram)

    def loss(white):
        white = torch.tensor(white.reshape(15, t))
        value = noise.terms(Y, outside + root @ white, variance).value.sum()
        return float(0.5 * white.square().sum() - value)

    best = torch.tensor(minimize(loss, np.zeros(15 * t), tol=1e-12).x.reshape(15, t))
    f = outside + gram @ (dual + change)
    assert_allclose(f, outside + root @ best, atol=2e-3)
    terms = noise.terms(Y, f, variance)
    assert_allclose(curvature, -2 * terms.d_variance.sum() / t / noise.counts.sum(), rtol=1e-12)


def test_all_dual_weights_are_slopes_of_the_likelihood():
    noise = NoiseAtRows(Laplace(), NOISE, 10.0)
    run = stepper(N, noise=noise)
    for _ in range(80):
        run.step()
    phi, Y = functions_at_rows(run), run.sampler.source.take(slice(None)).Y
    variance = batch_variance(phi @ phi.T, run.curvature, N)
    terms = noise.terms(Y, phi @ mean_weights(run), variance)
    assert_allclose(run.dual, terms.d_mean, atol=2e-3)
    assert_allclose(run.curvature, -2 * terms.d_variance.mean(), rtol=1e-2)


@pytest.mark.parametrize("classes", [0, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_block_steps_end_near_full_batches(classes):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.sin(2 * X[:, 0]) + 0.3 * rng.standard_normal(400)
    kernel, kind = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.05), QSGPRegressor
    settings = dict(n_components=128, optimizer=None, random_state=0)
    if classes:
        y, kind = np.digitize(y, [0.0, 0.7][: classes - 1]), QSGPClassifier
        kernel = ConstantKernel(9.0) * RBF(1.0)
    else:
        settings["likelihood"] = "laplace"
    exact = kind(kernel, inference="exact", **settings).fit(X, y)
    settings |= dict(batch_size=100, max_iter=100, inference="stochastic")
    model = kind(kernel, **settings).fit(X, y)
    assert "block steps" in model.fit_report_.ignored["component_batch_size"]

    def values(model):
        return model.latent_mean_and_variance(X)[0] if classes else model.predict(X)

    best = values(exact)
    assert np.linalg.norm(values(model) - best) < 0.05 * np.linalg.norm(best)
