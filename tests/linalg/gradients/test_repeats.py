"""Merged rows against the same functions of the rows themselves."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel
from torch import Generator

from skscalablegp.core.data import RowSource, Scaling, Table, merged
from skscalablegp.core.likelihoods import Gaussian
from skscalablegp.features import make_network, sample_prior_features
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import StudentT
from skscalablegp.linalg.gradients import (
    ExactGradient,
    GradientState,
    PathwiseGradient,
    Rows,
    StandardGradient,
    TruncatedGradient,
    exact_marginal_likelihood,
    fisher_information,
    sets_marginal_likelihood,
)
from skscalablegp.models.deep import data_fit, log_det_direction, weight_space_likelihood
from skscalablegp.models.deep._exact_pass import ExactPass, NoiseSearch
from skscalablegp.models.deep._features import make_deep_features
from skscalablegp.models.deep._stepper import TrainingRows, WeightSpaceStepper
from skscalablegp.models.experts._gradient import ExpertsGradient
from skscalablegp.models.fourier import collapsed_marginal_likelihood
from skscalablegp.models.fourier._collapsed import feature_weights
from skscalablegp.models.grid import (
    GridKernel,
    GridProblem,
    RowProbes,
    grid_marginal_likelihood,
    make_grid,
    rows_on_grid,
)
from skscalablegp.models.grid._network import _negative_likelihood, _squared_error
from skscalablegp.models.grid._objective import few_rows_gradient, summed
from skscalablegp.models.inducing import NaturalBelief, SparseModel, variational_bound
from skscalablegp.models.inducing._collapsed import (
    InducingGradient,
    left_out_scales,
)
from skscalablegp.models.neighbors import LocalGradient

T = 2


def tables():
    """A table with merged rows, and the same with all of its rows."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(14, 2))[rng.integers(14, size=40)]
    y, noise = rng.normal(size=(40, T)), 0.05 * (1 + (X[:, 0] > 0))
    found = merged(X, y, [noise])
    unit = np.zeros(T), np.ones(T)
    whole = Table(X, y, *unit, noise)
    part = Table(
        X[found.rows],
        found.y,
        *unit,
        noise[found.rows],
        counts=found.counts,
        within=found.within.sum(1),
    )
    assert found.counts.max() > 3 and len(found.rows) < 15
    return part, whole, found


KERNEL = ConstantKernel(1.5) * RBF([0.8, 1.2]) + WhiteKernel(0.1)


@pytest.fixture(scope="module")
def problems():
    """A problem with merged rows, and the same with all of its rows."""
    *both, found = tables()
    kernel = compile_kernel(KERNEL, 2)
    made = (t.problem(kernel, torch.float64, torch.device("cpu"), False) for t in both)
    return (*made, found)


def moved(problem):
    return problem.kernel.theta0 + 0.1


def assert_equal_at(one, other, estimator, other_estimator=None):
    theta = moved(one)
    a, _ = estimator.estimate(one, theta, GradientState(Generator().manual_seed(0)))
    b, _ = (other_estimator or estimator).estimate(
        other, theta, GradientState(Generator().manual_seed(0))
    )
    assert_allclose(a.value, b.value, rtol=1e-9)
    assert_allclose(a.grad, b.grad, rtol=1e-7, atol=1e-9)


def test_exact_likelihood(problems):
    one, other, _ = problems
    assert_equal_at(one, other, ExactGradient())
    assert one.operator(moved(one)).to_dense().shape == (len(one.X),) * 2


@pytest.mark.parametrize("pairs", [3, 40])
def test_features(problems, pairs):
    one, other, _ = problems
    theta = moved(one)
    features = sample_prior_features(one.kernel, 2, pairs, Generator().manual_seed(0))
    a, b = (collapsed_marginal_likelihood(p, theta, features) for p in (one, other))
    assert_allclose(a.value, b.value, rtol=1e-9)
    assert_allclose(a.grad, b.grad, rtol=1e-7)
    a, b = (feature_weights(p, theta, features)[0] for p in (one, other))
    assert_allclose(a.mean, b.mean, rtol=1e-6, atol=1e-9)


def scatter(other, found, groups, noise):
    """What the means of some groups leave out of the log density, from all rows."""
    total = 0.0
    for group in groups:
        rows = np.flatnonzero(found.groups == group)
        y, k, v = other.Y[rows].numpy(), len(rows), noise[rows[0]]
        total -= T * (0.5 * (k - 1) * np.log(2 * np.pi * v) + 0.5 * np.log(k))
        total -= 0.5 * np.square(y - y.mean(0)).sum() / v
    return total


def test_the_scatter_of_a_random_part_counts_by_its_share_of_the_rows(problems):
    one, other, found = problems
    theta, rows = moved(one), torch.tensor([1, 4, 5, 8, 9])
    noise = other.row_noise(theta).numpy()
    whole = exact_marginal_likelihood(one.subset(rows), theta, False).value
    share = len(rows) / len(one.X)
    part = one.random_part(rows)
    expected = whole - (1 - share) * scatter(other, found, rows.tolist(), noise)
    assert_allclose(exact_marginal_likelihood(part, theta, False).value, expected, rtol=1e-9)
    assert part.random_part(torch.arange(2)).pair_weight == share * 2 / 5
    # The information is linear in the share.
    none, half, full = (
        fisher_information(replace(part, pair_weight=s), theta, 5, Generator())
        for s in (0.0, 0.5, 1.0)
    )
    assert_allclose(half, (none + full) / 2, rtol=1e-9)
    assert float((full - none).abs().max()) > 1


@pytest.mark.parametrize("scale", [None, torch.ones(2, dtype=torch.float64)])
def test_inducing_points(problems, scale):
    one, other, _ = problems
    estimator = InducingGradient(one.X[:5], scale=scale)
    theta = torch.cat([moved(one), torch.as_tensor(estimator.moving())])
    a, b = (estimator.estimate(p, theta, None)[0] for p in (one, other))
    assert_allclose(a.value, b.value, rtol=1e-9)
    assert_allclose(a.grad, b.grad, rtol=1e-6, atol=1e-8)


def test_scales_of_left_out_rows(problems):
    """Against dense regressions on all rows of the table, of which equal ones are left out."""
    one, other, found = problems
    kernel, theta, Z = one.kernel, one.kernel.theta0, one.X[:5]
    scales = left_out_scales(kernel, theta, Z, one.total, one.rows, block_rows=7)
    K = kernel.cross(theta, Z, Z) + 1e-10 * torch.eye(len(Z))
    Q = kernel.cross(theta, other.X, Z) @ torch.linalg.solve(K, kernel.cross(theta, Z, other.X))
    left = kernel.diag(theta, other.X) - Q.diagonal()
    groups, share = torch.as_tensor(found.groups), torch.as_tensor(found.counts) / len(found.groups)
    losses = []
    for ratio in 10 ** (np.arange(-16, 25) / 8):
        noise, squares = ratio * float(kernel.noise(theta, Z[:1])), []
        for group, row in enumerate(found.rows):
            rest = groups != group
            H = Q[rest][:, rest] + noise * torch.eye(int(rest.sum()))
            weights = torch.linalg.solve(H, Q[rest][:, row])
            variance = Q[row, row] - weights @ Q[rest][:, row] + left[row] + noise
            squares.append(((one.Y[group] - weights @ other.Y[rest]).square().mean(), variance))
        square, variance = torch.tensor(squares).double().T
        factor = float((share * square / variance).sum())
        losses.append((np.log(factor) + float((share * variance.log()).sum()), factor, ratio))
    _, factor, ratio = min(losses)
    assert_allclose(scales, (factor, factor * ratio), rtol=1e-5)


@pytest.mark.parametrize("likelihood", [Gaussian(), StudentT(4.0)])
def test_weights_of_rows_in_a_batch(problems, likelihood):
    """Rows with weights 1, 2 and 3 against rows that are repeated."""
    one, theta = problems[0], problems[0].kernel.theta0
    kernel, Z, X, Y = one.kernel, one.X[:4], one.X[:9], one.Y[:9]
    counts = torch.arange(9) % 3 + 1
    again = torch.arange(9).repeat_interleave(counts)
    generator = Generator().manual_seed(0)
    P = torch.eye(4, dtype=torch.float64) * torch.linspace(1.5, 2, 4).double()
    shift = torch.randn(4, T, generator=generator, dtype=torch.float64)
    s = 1 if likelihood.conjugate else T
    belief = NaturalBelief(P.repeat(s, 1, 1), shift).whitened()

    def found(rows, counts):
        at = theta.clone().requires_grad_(True)
        model = SparseModel(kernel, likelihood, T)
        K = model.values(at, Z, X[rows], torch.zeros(len(rows)).double())
        weighted = Rows.of(X[rows], Y[rows], weight=2.0 * counts)
        bound = variational_bound(likelihood, belief, K, weighted, generator)
        K.backward(bound.grad)
        return bound, at.grad

    a, slope = found(torch.arange(9), 1.0 * counts)
    b, other = found(again, torch.ones(len(again)))
    assert_allclose(a.value, b.value, rtol=1e-9)
    assert_allclose(slope, other, rtol=1e-7)
    for name in ("precision", "shift", "d_mean"):
        assert_allclose(getattr(a.rows, name), getattr(b.rows, name), rtol=1e-8, atol=1e-10)


def test_experts(problems):
    one, other, found = problems
    parts = [np.arange(5), np.arange(5, len(one.X))]
    whole = [np.flatnonzero(np.isin(found.groups, part)) for part in parts]
    assert_equal_at(one, other, ExpertsGradient(parts), ExpertsGradient(whole))


def test_sets_of_rows(problems):
    one, other, found = problems
    theta, sets = moved(one), torch.tensor([[0, 2, 4, 6], [1, 3, 5, 7]])
    got = sets_marginal_likelihood(one, theta, sets)
    rows = [np.flatnonzero(np.isin(found.groups, part)) for part in sets]
    want = [exact_marginal_likelihood(other.subset(torch.as_tensor(r)), theta) for r in rows]
    assert_allclose(got.values, [part.value for part in want], rtol=1e-9)
    assert_allclose(got.grad, sum(part.grad for part in want), rtol=1e-7)


def test_blocks_of_all_neighbours_are_the_exact_likelihood(problems):
    one, other, _ = problems
    m = len(one.X)
    local = LocalGradient(torch.arange(m), m - 1, "blocks")
    assert_equal_at(one, other, local, ExactGradient())


def test_left_out_rows_count_with_the_scatter_of_all(problems):
    """Few centres, whose own scatter does not stand for that of all rows."""
    one, other, found = problems
    theta, centres = moved(one), torch.tensor([0, 3])
    noise = other.row_noise(theta).numpy()

    def density(rows):
        return exact_marginal_likelihood(other.subset(torch.as_tensor(rows)), theta, False).value

    everything, means = density(np.arange(len(other.X))), 0.0
    for k in centres.tolist():
        means += everything - density(np.flatnonzero(found.groups != k))
        means -= scatter(other, found, [k], noise)
    expected = len(one.X) * means / 2 + scatter(other, found, range(len(one.X)), noise)
    local = LocalGradient(centres, len(one.X) - 1, "leave_one_out")
    got, _ = local.estimate(one, theta, GradientState())
    assert_allclose(got.value, expected, rtol=1e-8)


def test_left_out_rows_given_all_others(problems):
    """The density of all rows of a group given the other groups; the gradient by differences."""
    one, other, found = problems
    local, theta = (
        LocalGradient(torch.arange(len(one.X)), len(one.X) - 1, "leave_one_out"),
        moved(one),
    )

    def value(at):
        return local.estimate(one, at, GradientState())[0].value

    def density(rows):
        part = other.subset(torch.as_tensor(rows))
        return exact_marginal_likelihood(part, theta, False).value

    everything = density(np.arange(len(other.X)))
    groups = range(len(one.X))
    expected = sum(everything - density(np.flatnonzero(found.groups != k)) for k in groups)
    assert_allclose(value(theta), expected, rtol=1e-8)
    step = 1e-5 * torch.eye(len(theta), dtype=torch.float64)
    slopes = [(value(theta + e) - value(theta - e)) / 2e-5 for e in step]
    assert_allclose(local.estimate(one, theta, GradientState())[0].grad, slopes, rtol=1e-5)


@pytest.mark.parametrize(
    "estimator",
    [
        StandardGradient(n_probes=4000, solver_tol=1e-8),
        PathwiseGradient(n_probes=4000, solver_tol=1e-8, prior="exact"),
        TruncatedGradient("fixed", n_probes=4000),
    ],
)
def test_gradients_from_solves(problems, estimator):
    one, other, _ = problems
    expected = exact_marginal_likelihood(other, moved(one)).grad
    found, _ = estimator.estimate(one, moved(one), GradientState(Generator().manual_seed(0)))
    assert_allclose(found.grad, expected, atol=0.5)
    each_once = replace(one, rows=Rows.of(one.X, one.Y, one.rows.noise))
    without, _ = estimator.estimate(
        each_once, moved(one), GradientState(Generator().manual_seed(0))
    )
    assert float((without.grad - expected).abs().max()) > 2


def test_fisher_information(problems):
    one, other, _ = problems
    a, b = (fisher_information(p, moved(one), 100, Generator()) for p in (one, other))
    assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# ---------------------------------------------------------------- grids


def on_grids(known=None):
    """Problems of both tables on the same grid, and the tables."""
    *both, _ = tables()
    if known is not None:
        both = [replace(t, noise=np.full(len(t.X), known)) for t in both]
    kernel = GridKernel(compile_kernel(KERNEL, 2), make_grid(both[0].X, [9, 8], "product"))
    made = [GridProblem.make(kernel, summed(kernel, t), len(t.X)) for t in both]
    return made, both, kernel


@pytest.mark.parametrize("known", [0.05, None])
def test_a_grid_sums_all_rows_that_rows_stand_for(known):
    (part, whole), both, kernel = on_grids(known)
    theta = kernel.kernel.theta0 + 0.1
    got, want = (grid_marginal_likelihood(problem, theta) for problem in (part, whole))
    assert_allclose(got.value, want.value, rtol=1e-9)
    assert_allclose(got.grad, want.grad, rtol=1e-6)
    assert_allclose(got.misfit, want.misfit, rtol=1e-8, atol=1e-12)
    for rows in (rows_on_grid(kernel.grid, table) for table in both):
        found = few_rows_gradient(replace(part, few=rows), theta)
        assert_allclose(found.value, want.value, rtol=1e-8)
        assert_allclose(found.grad, want.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("known", [0.05, None])
def test_probes_have_the_covariance_of_all_rows(known):
    _, (part, whole), kernel = on_grids(known)
    D, W = 0.1 + whole.noise, kernel.grid.interpolate(whole.X).toarray()
    generator = Generator().manual_seed(0)
    for power, place in ((1, 0), (2, 1)):
        want = (W.T / D**power) @ W
        found = []
        for _ in range(60):
            probes = RowProbes(kernel.grid, part, generator)
            p, beside = probes.at(0.1)
            found.append(p @ (p, beside)[place].T / p.shape[1])
        mean, error = torch.stack(found).mean(0), torch.stack(found).std(0) / len(found) ** 0.5
        score = (mean - torch.from_numpy(want)).sum() / error.sum()
        assert abs(float(mean.trace()) / want.trace() - 1) < 0.1
        assert abs(float(score)) < 1


def test_objectives_of_a_grids_network_count_all_rows():
    part, whole, _ = tables()
    values = []
    for t in (part, whole):
        Z = torch.tensor(t.X).tanh()
        rows = Rows.of(Z, torch.tensor(t.targets), 0.0, t.counts, t.within)
        head = torch.tensor([[0.5, 0.2], [0.1, -0.3], [0.2, 0.0]], dtype=torch.float64)
        hyper = torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64, requires_grad=True)
        value = _negative_likelihood(Z, hyper, rows) * len(Z)
        (slope,) = torch.autograd.grad(value, hyper)
        error = _squared_error(Z, head, rows) * T * t.n_rows
        values.append([float(value.detach()), *slope.tolist(), float(error) + t.within.sum()])
    # Only what merged rows leave out has the constants of a density.
    constant = 0.5 * T * (len(whole.X) - len(part.X)) * np.log(2 * np.pi)
    assert_allclose(values[0][0] - constant, values[1][0], rtol=1e-9)
    assert_allclose(values[0][1:], values[1][1:], rtol=1e-9)


# ---------------------------------------------------------------- deep kernels


def sources():
    """Rows with counts and the same rows, with equal targets and known noise."""
    rng = np.random.default_rng(0)
    X, Y, counts = rng.normal(size=(12, 2)), rng.normal(size=(12, T)), rng.integers(1, 5, size=12)
    noise, unit = rng.uniform(0.05, 0.2, size=12), (np.zeros(2), np.ones(2))
    part = RowSource.of(X, Y, Scaling(*unit, *unit), torch.float64, noise=noise, weight=counts)
    parts = (np.repeat(a, counts, axis=0) for a in (X, Y, noise))
    X, Y, noise = parts
    return part, replace(part, X=X, Y=Y, noise=noise, weight=np.ones(len(X)))


def deep_features():
    """Features of a network, and their tensors."""
    generator, end = Generator().manual_seed(0), torch.ones(2, dtype=torch.float64)
    kernel = compile_kernel(ConstantKernel() * DotProduct() + WhiteKernel(0.1), 2)
    network = make_network(2, (4, 2), "tanh")
    features = make_deep_features(network, kernel, True, 6, generator, (-3 * end, 3 * end))
    return features, features.initial(generator, torch.float64)


@pytest.mark.parametrize("noisy", [False, True])
def test_passes_over_a_deep_kernels_rows_count_all_rows(noisy):
    values, (features, tensors) = [], deep_features()
    for source in sources():
        source = source if noisy else replace(source, noise=0 * source.noise)
        passes = ExactPass(features, source, source.n_rows, torch.float64)
        moments = passes.moments(tensors, 0.1)
        bounds, search = (0.01, 10.0), NoiseSearch(0.1, (0.01, 10.0), near=False)
        noise, density, _ = passes.held_out_noise(tensors, moments, search, source)
        found = weight_space_likelihood(moments, 0.1)
        values.append([found.value, *found.weights.flatten().tolist(), moments.n, noise, density])
        assert bounds[0] < noise < bounds[1]
    assert_allclose(*values, rtol=1e-8)


@pytest.mark.parametrize("noisy", [False, True])
def test_a_batch_of_a_deep_kernel_counts_all_rows(noisy):
    values, (features, tensors) = [], deep_features()
    m = features.n_features
    for source in sources():
        source = source if noisy else replace(source, noise=0 * source.noise)
        every = torch.arange(len(source))
        stepper = WeightSpaceStepper.__new__(WeightSpaceStepper)
        stepper.rows = TrainingRows(source, source, source.n_rows)
        batch = every, source.take(every).weight
        stepper._batches, stepper._others = iter([batch]), iter([batch])
        stepper.rule = SimpleNamespace(needs_independent_batch=True)
        stepper.features, stepper.tensors = features, tensors
        stepper.log_noise = torch.tensor(-1.0, dtype=torch.float64)
        stepper.weights = torch.linspace(0, 1, m * T, dtype=torch.float64).reshape(m, T)
        batch, log_scales = stepper._next_batch()
        P = torch.eye(m, dtype=torch.float64)
        fit = data_fit(batch.phi, batch.Y, batch.weights, batch.log_noise, batch.n)
        slope = log_det_direction(batch.phi, P, P.trace(), batch.log_noise, batch.n)
        other = (batch.other * batch.phi).sum(1).mean()
        values.append([*map(float, (fit, slope, log_scales, other))])
    assert_allclose(*values, rtol=1e-9)
