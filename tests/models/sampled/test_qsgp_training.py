"""Sampled steps: what is known stays known, and full batches meet linear algebra."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Bernoulli, Gaussian, Laplace
from skscalablegp.linalg.gradients import Rows
from skscalablegp.models.sampled import (
    BasisDraw,
    Flattening,
    NoiseAtRows,
    SampledBatch,
    SampledWeights,
    Sampler,
    SeededFourier,
    SupportRows,
    sampled_gradient,
    sampled_loss,
    support_gram,
)
from skscalablegp.models.sampled._estimates import StepRows
from skscalablegp.models.sampled._exact import BatchRows, FullBatch, exact_process, newton_steps
from skscalablegp.models.sampled._stepper import QSGPStepper
from skscalablegp.models.sampled._steps import exact_share
from skscalablegp.models.sampled._weights import SampledAdam, SparseAdaGrad, SparseSGD
from skscalablegp.workers import Workers

KERNEL = compile_kernel(ConstantKernel(1.5) * RBF([0.8, 1.3]) + WhiteKernel(0.05), 2)
NOISE = 0.05
GAUSSIAN = NoiseAtRows(Gaussian(), NOISE, 1 / NOISE)
LAPLACE = NoiseAtRows(Laplace(), 0.08, 12.5)
LOGISTIC = NoiseAtRows(Bernoulli(n_nodes=101), 0.0, 0.25)


def rows(n=60, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 2))
    Y = np.sin(2 * X[:, :1]) + 0.2 * rng.standard_normal((n, 1))
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    return RowSource.of(X, Y, unit, torch.float64)


def basis(units=20, block=4, seed=3, kernel=KERNEL):
    return SeededFourier(kernel, units, seed, block, torch.float64)


def full_batch(noise, phi, Y, mean, factor):
    return FullBatch(Workers(BatchRows(noise, phi, Y)), noise, len(Y), mean, factor)


def dense_phi(source, functions):
    everything = functions.part(np.arange(functions.n_blocks))
    return everything.evaluate(functions.kernel.theta0, source.take(slice(None)).X)


# ------------------------------------------------------------------------------------- bases


@pytest.mark.parametrize("kept", [True, False])
def test_frequencies_come_back_from_their_seeds(kept, thresholds):

    thresholds(_KEPT_NUMBERS=2**26 if kept else 0)
    kernel = compile_kernel(ConstantKernel(2.0) * RBF(0.7) + Matern(nu=1.5) + WhiteKernel(), 2)
    functions = basis(units=11, kernel=kernel)
    X = torch.randn(5, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    whole = functions.part(np.arange(3)).evaluate(kernel.theta0, X).reshape(5, 4, 11)
    again = functions.part(np.array([2, 0]))
    assert again.index.tolist() == [8, 9, 10, 0, 1, 2, 3]
    some = again.evaluate(kernel.theta0, X).reshape(5, 4, 7)
    assert_allclose(some, whole[:, :, again.index], rtol=1e-12)
    assert functions.n_features == 44


def test_many_features_approach_the_kernel():
    functions = basis(units=20_000, block=256)
    source = rows(8)
    X = source.take(slice(None)).X
    gram = sum(p @ p.T for p in (q.evaluate(KERNEL.theta0, X) for q in functions.parts(2048)))
    assert_allclose(gram, KERNEL.cross(KERNEL.theta0, X, X), atol=0.05)


def test_draws_are_uniform_and_independent_of_how_many_there_are():
    functions, rng = basis(units=4_000_000, block=256), np.random.default_rng(0)
    part = functions.draw(3, rng)
    assert len(part.index) == 768 and part.scale == functions.n_blocks / 3
    small = basis(units=10, block=2)
    counts = np.zeros(10)
    for _ in range(3000):
        counts[small.draw(2, rng).index] += 1
    assert_allclose(counts / 3000, 0.4, atol=0.04)


# ------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("control", ["none", "projection"])
@pytest.mark.parametrize("name", ["gaussian", "logistic"])
def test_closed_forms_are_what_autograd_finds(name, control):
    g = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=g, dtype=torch.float64)

    noise = NoiseAtRows(Gaussian(), 0.3, 1.0) if name == "gaussian" else LOGISTIC
    Y = (normal(6, 2) > 0).double()
    columns = 3 if name == "gaussian" else 2
    w = [normal(4, columns).requires_grad_(), normal(5, columns).requires_grad_()]
    crosses = control == "projection"
    left, right = (
        BasisDraw(normal(6, len(part)), part, scale, normal(6, columns) if crosses else 0.0)
        for part, scale in zip(w, (2.5, 2.0), strict=True)
    )
    square = torch.full((6, 1), 0.49, dtype=torch.float64)
    batch = SampledBatch(Y, left, right, square, 40, crosses)
    expected = list(torch.autograd.grad(sampled_loss(noise, batch), w))
    if name == "gaussian":
        for gradient in expected:
            # Of dense columns it is a mean over the two targets.
            gradient[:, 2] /= 2
    elif crosses:
        f, h = left.function(), right.function()
        ends = [noise.terms(Y, values, square).d_mean for values in (h, f)]
        expected = [
            -20 / 6 * d.scale * d.phi.T @ e for d, e in zip((left, right), ends, strict=True)
        ]
    for a, b in zip(sampled_gradient(noise, batch), expected, strict=True):
        assert_allclose(a.detach(), b.detach(), rtol=1e-10)


# ------------------------------------------------------------------------------------- optimisers


@pytest.mark.parametrize("kind", [SparseSGD, SparseAdaGrad])
def test_optimisers_follow_their_dense_versions_where_they_are_drawn(kind):
    g = torch.Generator().manual_seed(1)
    ours = kind(0.1)
    dense = {SparseSGD: torch.optim.SGD, SparseAdaGrad: torch.optim.Adagrad}
    w = torch.zeros(2, 3, 1, requires_grad=True)
    theirs = dense[kind]([w], lr=0.1)
    mine = torch.zeros(2, 7, 1)
    index = torch.tensor([5, 0, 3])
    for _ in range(4):
        gradient = torch.randn(2, 3, 1, generator=g)
        mine[:, index] += ours.change(index, gradient, 7)
        w.grad = gradient.clone()
        theirs.step()
    assert_allclose(mine[:, index], w.detach(), rtol=1e-4, atol=1e-6)
    assert not mine[:, [1, 2, 4, 6]].any()


def test_learning_rates_decay_exponentially():
    optimizer = SparseSGD(1.0, 0.01, 10)
    for _ in range(5):
        optimizer.advance()
    assert_allclose(optimizer.rate(), 0.1)


# ------------------------------------------------------------------------------------- steps


def stepper(
    source,
    functions,
    blocks,
    dense=0,
    seed=0,
    rate=1.0,
    steps=100,
    size=None,
    noise=None,
    **settings,
):
    whole = source.take(slice(None))
    X, Y = whole.X, whole.Y
    s = 20
    support = SupportRows(
        KERNEL, KERNEL.theta0, Rows.of(X[:s], Y[:s]), Rows.of(X[s : s + 10], Y[s : s + 10])
    )
    head = -(-dense // 2)
    gram = support_gram(support, functions, skip=head)
    size = size or len(X)
    curvature = 1 / NOISE if noise is None else noise.curvature
    flattening = Flattening.build(support, gram, whole.take(slice(size)), curvature, len(X))
    coef = torch.zeros(2, functions.n_units, 1 + dense, dtype=torch.float64)
    for r in range(dense):
        coef[r % 2, r // 2, 1 + r] = 0.5
    part = functions.part(np.arange(functions.n_blocks))
    a = part.evaluate(KERNEL.theta0, support.all_rows) @ coef.reshape(-1, 1 + dense)
    squares = dense_phi(source, functions).square().sum(0).reshape(2, -1)
    weights = SampledWeights(coef, torch.zeros(s, 1 + dense).double(), a, head)
    return QSGPStepper(
        Sampler(source, functions, size, blocks, np.random.default_rng(seed), len(X)),
        GAUSSIAN if noise is None else noise,
        support,
        flattening,
        weights,
        squares,
        SparseSGD(rate, 0.1, steps),
        **settings,
    )


@pytest.mark.slow
def test_steps_at_full_batches_meet_bayesian_linear_regression():
    source, functions = rows(), basis()
    run = stepper(source, functions, functions.n_blocks, steps=10**9)
    for _ in range(1000):
        run.step()
    folded = run.folded()
    phi = dense_phi(source, functions)
    Y = source.take(slice(None)).Y
    H = phi.T @ phi / NOISE + torch.eye(40)
    best = torch.linalg.solve(H, phi.T @ Y / NOISE)
    fitted = phi @ folded.reshape(40, 1)
    assert_allclose(fitted, phi @ best, atol=1e-4)


def test_what_is_known_at_support_rows_stays_known():
    source, functions = rows(), basis()
    run = stepper(source, functions, 2, dense=3, size=15, rate=0.5)
    for _ in range(40):
        run.step()
    known = run.weights.a.clone()
    folded = run.folded()
    part = functions.part(np.arange(functions.n_blocks))
    phi = part.evaluate(KERNEL.theta0, run.support.all_rows)
    assert_allclose(phi @ folded.reshape(40, 4), known, atol=1e-9)
    dense = folded[:, :, 1:].permute(1, 0, 2).reshape(40, 3)
    assert not dense.triu(1).any()
    assert (run.diagonal().T.reshape(-1)[:3] == 0).all()


def test_snapshots_bring_back_everything():
    run = stepper(rows(), basis(), 2, size=15)
    run.step()
    kept, score = run.snapshot(), run.score()
    for _ in range(5):
        run.step()
    assert run.score() != score
    run.restore(kept)
    assert_allclose(run.score(), score, rtol=1e-12)


def test_the_mean_of_steps_is_that_of_dense_copies():
    run = stepper(rows(), basis(), 2, size=15, rate=0.5)
    copies = []
    for _ in range(6):
        run.step()
        copies.append(run.weights.copy())
    mean = run._mean.mean(run._steps)
    for found, *dense in zip((mean.coef, mean.shared, mean.a), *copies, strict=True):
        assert_allclose(found, torch.stack(dense).mean(0), atol=1e-12)


def test_held_rows_are_in_no_batch():
    source, functions = rows(), basis()
    run = stepper(source, functions, 2, size=15)
    run.sampler.held = np.array([0, 3, 4, 30, 59])
    seen = set()
    for _ in range(60):
        batch = run.sampler.rows()
        assert len(set(batch.tolist())) == 15
        seen |= set(batch.tolist())
    assert seen == set(range(60)) - set(run.sampler.held.tolist())


def test_learning_rates_follow_the_time_that_is_left():
    gone = iter([0.0, 0.5, 2.0])
    optimizer = SparseSGD(1.0, 0.01, 1000, spent=lambda: next(gone))
    assert_allclose([optimizer.rate() for _ in range(3)], [1.0, 0.1, 0.01])


def test_sampled_steps_approach_the_optimum():
    source, functions = rows(200), basis(units=64)
    run = stepper(source, functions, 4, size=50, steps=400, rate=0.3)
    first = run.score()
    for _ in range(400):
        run.step()
    folded = run.folded()
    phi = dense_phi(source, functions)
    Y = source.take(slice(None)).Y
    best = torch.linalg.solve(phi.T @ phi / NOISE + torch.eye(128), phi.T @ Y / NOISE)
    error = (phi @ (folded.reshape(128, 1) - best)).square().mean().sqrt()
    assert error < 0.6 * (phi @ best).square().mean().sqrt()
    assert run.score() < first


def dense_weights(run, functions, folded):
    """Mean (m, 1) and lower triangular C (m, m) of a run, in the order of the coordinates."""
    m, c = functions.n_features, run.n_dense
    w = folded.permute(1, 0, 2).reshape(m, -1)
    C = torch.diag(run.diagonal().T.reshape(-1))
    C[:, :c] = w[:, 1:]
    return w[:, :1], C


def by_coordinate(phi, functions):
    return phi.reshape(len(phi), functions.per_unit, -1).permute(0, 2, 1).flatten(1)


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE])
def test_the_score_is_the_dense_elbo(noise):
    source, functions = rows(), basis()
    run = stepper(source, functions, 3, dense=5, rate=0.1, noise=noise)
    for _ in range(5):
        run.step()
    # Rows of the score stand for all rows.
    X, Y = run.support.check.X, run.support.check.Y
    found = run._score(run.weights)
    folded = run.folded()
    everything = functions.part(np.arange(functions.n_blocks))
    phi = by_coordinate(everything.evaluate(KERNEL.theta0, X), functions)
    mean, C = dense_weights(run, functions, folded)
    variance = (phi @ C).square().sum(1, keepdim=True)
    own = C.diagonal().abs().log().sum()
    divergence = 0.5 * (mean.square().sum() + C.square().sum() - len(C)) - own
    expected = divergence / len(source) - noise.terms(Y, phi @ mean, variance).value.mean()
    assert_allclose(found, expected, rtol=1e-8)


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE])
def test_hyperparameters_follow_the_dense_elbo_at_full_draws(noise):
    source, functions = rows(), basis()
    found = []

    class Kept(SampledAdam):
        def moved(self, theta, gradient, kernel):
            found.append(gradient)
            return theta

    run = stepper(source, functions, functions.n_blocks, dense=5, rate=0.0, noise=noise)
    run.hyperparameters = Kept(1e-3, 1.0, 10)
    run.step()
    (found,) = found
    whole = source.take(slice(None))
    X, Y = whole.X, whole.Y
    folded = run.folded()
    mean, C = dense_weights(run, functions, folded)
    theta = KERNEL.theta0.clone().requires_grad_(True)
    everything = functions.part(np.arange(functions.n_blocks))
    phi = by_coordinate(everything.evaluate(theta, X), functions)
    variance, f = (phi @ C).square().sum(1, keepdim=True), phi @ mean
    if noise.gaussian:
        noise = KERNEL.noise(theta, X[:1])[0]
        misfit = ((Y - f).square() + variance) / noise + torch.log(noise)
        loss = 0.5 * misfit.sum()
    else:
        loss = -noise.terms(Y, f, variance).value.sum()
    (expected,) = torch.autograd.grad(loss, theta)
    assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


# ------------------------------------------------------------------------------------- one step


class Recorder(SparseSGD):
    """Keeps the gradients of both draws as one dense array, and moves nothing."""

    def __init__(self):
        super().__init__(0.0)
        self.begin()

    def begin(self):
        self.sum = 0.0

    def change(self, index, gradient, n_units):
        q, _, k = gradient.shape
        dense = gradient.new_zeros(q, n_units, k)
        self.sum = self.sum + dense.index_add(1, index, gradient)
        return torch.zeros_like(gradient)


def dense_gradient(run, source, functions):
    """Of minus the ELBO in the means and the dense columns of C, in the order of `folded`."""
    Y = source.take(slice(None)).Y
    phi = by_coordinate(dense_phi(source, functions), functions)
    mean, C = dense_weights(run, functions, run.folded())
    C, mean = C.requires_grad_(True), mean.requires_grad_(True)
    variance = (phi @ C).square().sum(1, keepdim=True)
    divergence = 0.5 * (mean.square().sum() + C.square().sum()) - C.diagonal().log().sum()
    loss = divergence - run.noise.terms(Y, phi @ mean, variance).value.sum()
    of_mean, of_C = torch.autograd.grad(loss, (mean, C))
    both = torch.cat([of_mean, of_C.tril()[:, : run.n_dense]], 1)
    return both.reshape(functions.n_units, functions.per_unit, -1).permute(1, 0, 2)


def lower(gradient, functions, c):
    """The same without what is above C's triangle, which no step keeps."""
    q, units = functions.per_unit, functions.n_units
    number = torch.arange(units)[None] * q + torch.arange(q)[:, None]
    out = gradient.clone()
    out[:, :, gradient.shape[2] - c :] *= number[:, :, None] >= torch.arange(c)
    return out


def recording(noise, blocks, size, dense=3, **settings):
    source, functions = rows(40), basis(units=6, block=1)
    run = stepper(source, functions, blocks, dense=dense, size=size, noise=noise, **settings)
    run.weights.coef[:, :, :1] = 0.3 * torch.randn(2, 6, 1, generator=torch.Generator()).double()
    part = functions.part(np.arange(functions.n_blocks))
    phi = part.evaluate(KERNEL.theta0, run.support.all_rows)
    run.weights.a[:] = phi @ run.weights.coef.reshape(12, -1)
    run.flattening, run.optimizer = Flattening.none(run.flattening.gram), Recorder()
    if not noise.likelihood.additive:
        source = replace(source, Y=(source.Y > 0).astype(float))
        run._work = source.work.put(StepRows, functions, run.support)
    return run, source, functions


# Of so much noise that the prior is what is left.
PRIOR = NoiseAtRows(Gaussian(), 1e5, 1e-5)


@pytest.mark.parametrize(
    "noise, control",
    [
        (GAUSSIAN, "regression"),
        pytest.param(GAUSSIAN, "squares", marks=pytest.mark.slow),
        pytest.param(GAUSSIAN, None, marks=pytest.mark.slow),
        (PRIOR, "regression"),
    ],
)
def test_gradients_of_sampled_steps_are_unbiased_for_the_dense_elbo(noise, control):
    run, source, functions = recording(noise, blocks=2, size=8, control_variate=control)
    found = []
    for _ in range(600):
        run.optimizer.begin()
        run.step()
        found.append(run.optimizer.sum)
    found = torch.stack(found).permute(1, 2, 3, 0)
    expected = dense_gradient(run, source, functions)
    error = (found.mean(3) - expected) / (found.std(3) / 600**0.5)
    assert lower(error, functions, 3).abs().max() < 4.5
    # Far enough from zero for mistakes to show.
    assert (expected / (found.std(3) / 600**0.5)).abs().max(0).values.max(0).values.min() > 8


@pytest.mark.parametrize("noise", [GAUSSIAN, LAPLACE, LOGISTIC])
def test_gradients_of_steps_at_full_draws_are_those_of_the_dense_elbo(noise):
    run, source, functions = recording(noise, blocks=6, size=40)
    expected = dense_gradient(run, source, functions)
    for _ in range(2):
        run.optimizer.begin()
        run.step()
        found = lower(run.optimizer.sum, functions, 3)
        assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "noise, draws",
    [(LAPLACE, "all"), (LAPLACE, "functions"), (LOGISTIC, "all"), (LOGISTIC, "some")],
)
def test_steps_reach_the_optimum_of_full_batches(noise, draws):
    """Mean and covariance, all columns dense: the variance of f takes part in every step."""
    source, functions = rows(120), basis(units=8, block=2)
    if not noise.likelihood.additive:
        source = replace(source, Y=(source.Y > 0).astype(float))
    blocks, size = {"all": (4, 120), "functions": (2, 120), "some": (3, 60)}[draws]
    known = dict(exact_from=0 if draws == "functions" else 900)
    run = stepper(
        source, functions, blocks, dense=16, size=size, noise=noise, rate=1.0, steps=900, **known
    )
    for _ in range(900):
        run.step()
    run.score()
    folded = run.folded()
    phi, Y = dense_phi(source, functions), source.take(slice(None)).Y
    eye = torch.eye(16).double()
    *_, best = newton_steps(full_batch(noise, phi, Y, torch.zeros(16, 1).double(), eye), 200, 1e-10)
    f, f_best = phi @ folded[:, :, :1].flatten(0, 1), phi @ best.mean
    assert (f - f_best).norm() < 0.02 * f_best.norm()
    std = (phi @ folded[:, :, 1:].flatten(0, 1)).square().sum(1).sqrt()
    best_std = torch.linalg.solve_triangular(best.factor, phi.T, upper=False).square().sum(0).sqrt()
    assert_allclose(std, best_std, rtol=0.1)


def test_likelihoods_that_are_not_gaussian_end_with_f_from_all_functions():
    assert exact_share(GAUSSIAN, "regression", 0.1) == 0
    assert exact_share(LAPLACE, "squares", 0.1) == exact_share(LAPLACE, None, 0.1) == 0
    assert exact_share(LAPLACE, "regression", 0.1) == 0.25
    assert exact_share(LOGISTIC, "regression", 0.5) == 1
    assert exact_share(LAPLACE, "regression", 1.0) == 0  # the draw holds all functions


# ------------------------------------------------------------------------------------- full batches


def test_linear_posterior_is_bayesian_linear_regression():
    source, functions = rows(), basis()
    phi, Y = dense_phi(source, functions), source.take(slice(None)).Y
    eye = torch.eye(40, dtype=torch.float64)
    batch = full_batch(GAUSSIAN, phi, Y, torch.zeros(40, 1).double(), eye)
    (found,) = newton_steps(batch, 5)
    H = phi.T @ phi / NOISE + eye
    assert_allclose(found.mean, torch.linalg.solve(H, phi.T @ Y / NOISE), rtol=1e-8)
    assert_allclose(found.factor @ found.factor.T, H, rtol=1e-12)
    assert not found.factor.triu(1).any()
    evidence = torch.distributions.MultivariateNormal(
        torch.zeros(60).double(), phi @ phi.T + NOISE * torch.eye(60)
    )
    assert_allclose(batch.lower_bound(found), evidence.log_prob(Y[:, 0]), rtol=1e-8)


def test_newton_steps_maximise_the_elbo_of_labels():
    source, functions = rows(), basis(units=5)
    phi, Y = dense_phi(source, functions), (source.take(slice(None)).Y > 0).double()
    eye = torch.eye(10, dtype=torch.float64)
    batch = full_batch(LOGISTIC, phi, Y, torch.zeros(10, 1).double(), eye)
    *_, found = newton_steps(batch, 100, tol=1e-10)

    def elbo(mean, factor):
        variance = (phi @ factor).square().sum(1, keepdim=True)
        likelihood = LOGISTIC.terms(Y, phi @ mean, variance).value.sum()
        divergence = mean.square().sum() + factor.square().sum() - factor.diagonal().log().sum() * 2
        return likelihood - 0.5 * (divergence - 10)

    C = torch.linalg.cholesky(torch.cholesky_inverse(found.factor))
    assert_allclose(batch.lower_bound(found), elbo(found.mean, C), rtol=1e-10)
    mean, factor = found.mean.clone().requires_grad_(), C.clone().requires_grad_()
    gradients = torch.autograd.grad(elbo(mean, factor), (mean, factor))
    assert_allclose(gradients[0], 0, atol=1e-6)
    assert_allclose(gradients[1].tril(), 0, atol=1e-5)


def test_a_late_process_takes_one_newton_step():
    X = np.random.default_rng(0).uniform(-2, 2, (60, 1))
    labels = (X > 0).astype(float)
    rows = Rows.of(torch.tensor(X), torch.tensor(labels))
    args = RBF() * 9.0 + WhiteKernel(1e-3), Bernoulli(), rows, 30
    late, whole = exact_process(*args, late=lambda: True), exact_process(*args)
    assert late.lower_bound < whole.lower_bound - 0.1
    assert np.corrcoef(late.mean[:, 0], whole.mean[:, 0])[0, 1] > 0.9
