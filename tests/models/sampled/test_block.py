"""Block steps in dual weights, against dense algebra."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Gaussian
from skscalablegp.models.sampled._basis import SeededFourier
from skscalablegp.models.sampled._block import BlockStepper
from skscalablegp.models.sampled._noise import NoiseAtRows
from skscalablegp.models.sampled._optimizers import SparseSGD
from skscalablegp.models.sampled._stepper import Beginning, Sampler
from skscalablegp.models.sampled._support import Flattening, SupportRows, support_gram
from skscalablegp.models.sampled._weights import SampledWeights

NOISE, N, S = 0.05, 60, 12
KERNEL = compile_kernel(ConstantKernel(1.5) * RBF([0.8, 1.2]) + WhiteKernel(NOISE), 2)


def table(counts=None):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 2))
    y = np.sin(2 * X[:, 0]) + 0.2 * rng.standard_normal(N)
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    return RowSource(X, y[:, None], unit, torch.float64, counts=counts)


def stepper(size, dense=3, held=(), counts=None, **settings):
    source, noise = table(counts), NoiseAtRows(Gaussian(), NOISE, 1 / NOISE)
    functions = SeededFourier(KERNEL, 20, 3, 4, torch.float64)
    X, Y = source.rows(slice(None))
    support = SupportRows(KERNEL, KERNEL.theta0, X[:S], Y[:S], X[-10:], Y[-10:])
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
    sampler.support = np.arange(S)
    beginning = Beginning(support, Flattening.none(gram), weights, squares)
    return BlockStepper(sampler, noise, beginning, SparseSGD(1.0), **settings)


def functions_at_rows(run):
    X, _ = run.sampler.source.rows(slice(None))
    return run.basis.part(np.arange(run.basis.n_blocks)).evaluate(KERNEL.theta0, X)


def mean_weights(run):
    return run.folded()[:, :, :1].reshape(-1, 1)


@pytest.mark.parametrize("size, steps", [(N, 1), (20, 120)])
def test_steps_end_at_bayesian_linear_regression(size, steps):
    run = stepper(size)
    for _ in range(steps):
        run.step()
    phi, Y = functions_at_rows(run), run.sampler.source.rows(slice(None))[1]
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
    phi, Y = functions_at_rows(run), run.sampler.source.rows(slice(None))[1]
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
        dict(likelihood="laplace"),
        dict(kernel=ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.003)),
    ):
        sampled = QSGPRegressor(**(dict(kernel=fixed, max_iter=2) | own | few)).fit(X, y)
        assert "component_batch_size" not in sampled.fit_report_.ignored
