"""Posteriors against dense algebra with scikit-learn's kernels; sampled ones by z-scores."""

import warnings

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from oracles import generator, normal
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    ExpSineSquared,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp.core.posteriors import ExactPosterior, reported_variance
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood
from skscalablegp.models.iterative import IterativePosterior, PathwiseSamples
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import CG, Cholesky, MaxEpochs, RelativeResidual

C, W = ConstantKernel, WhiteKernel
N, M, D = 40, 5, 2
NOISE = np.logspace(-3, -0.5, N)
KERNELS = {
    "default": C(1.4) * Matern([0.7, 1.6], nu=1.5) + W(0.05),
    "rbf": RBF(0.8),
    "rich": C(0.5) * RationalQuadratic(0.9, 0.7) + DotProduct(0.5) + W(0.1),
    "noise-by-row": Matern(0.9, nu=2.5) + DotProduct(0.3) * W(0.1),
}
TIGHT = RelativeResidual(1e-11) | MaxEpochs(5000)


class Case:
    """A problem, new rows (the last is a training row), and the dense answers in NumPy."""

    def __init__(self, kernel, t=1, m=M):
        X = normal(N, D, seed=2)
        Y = torch.sin(2 * X[:, :1]) + 0.2 * normal(N, t, seed=3)
        self.new = torch.cat([1.3 * normal(m - 1, D, seed=4), X[:1]])
        self.problem = GPProblem(compile_kernel(kernel, D), Rows.of(X, Y, torch.from_numpy(NOISE)))
        self.theta = self.problem.kernel.theta0
        X, Xs = X.numpy(), self.new.numpy()
        H, K, cross = kernel(X) + np.diag(NOISE), kernel(Xs, Xs), kernel(Xs, X)
        self.H = torch.from_numpy(H)
        self.mean = cross @ np.linalg.solve(H, Y.numpy())
        self.covariance = K - cross @ np.linalg.solve(H, cross.T)
        self.white = np.diag(kernel(Xs)) - np.diag(K)

    def exact(self, dtype=torch.float64):
        problem = self.problem.to(dtype)
        result = exact_marginal_likelihood(problem, self.theta, eval_gradient=False)
        return ExactPosterior(problem.operator(self.theta), result.weights, result.factor)

    def iterative(self, *, samples=None, stopping=TIGHT, solver=None, n_nearest=None):
        weights = torch.linalg.solve(self.H, self.problem.Y)
        return IterativePosterior(
            self.problem.operator(self.theta), weights, samples, solver=solver or CG(),
            stopping=stopping, n_nearest=n_nearest,
        )  # fmt: skip

    def samples(self, seed, s=50, n_pairs=100):
        """Solved prior draws, each seed with its own features."""
        g, problem = generator(seed), self.problem
        features = sample_prior_features(problem.kernel, D, n_pairs, g)
        w = torch.randn(features.n_features, s, generator=g, dtype=torch.float64)
        eps = torch.randn(N, s, generator=g, dtype=torch.float64)
        noise = problem.operator(self.theta).noise
        xi = features.evaluate(self.theta, problem.X) @ w + noise.sqrt()[:, None] * eps
        return PathwiseSamples(features, w, torch.linalg.solve(self.H, xi))


def max_z(groups, expected):
    """Largest z-score of the mean of independent groups, over all components."""
    groups = np.asarray(groups)
    errors = groups.mean(0) - expected
    return float(np.abs(errors / (groups.std(0, ddof=1) / len(groups) ** 0.5)).max())


@pytest.fixture(params=KERNELS.values(), ids=KERNELS.keys())
def case(request):
    return Case(request.param, t=2)


# ---------------------------------------------------------------- exact


def test_exact_answers_are_those_of_dense_algebra(case):
    posterior = case.exact()
    np.testing.assert_allclose(posterior.mean(case.new), case.mean, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(
        posterior.covariance(case.new), case.covariance, rtol=1e-7, atol=1e-9
    )
    variance = posterior.variance(case.new)
    np.testing.assert_allclose(variance, np.diag(case.covariance), rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(posterior.noise(case.new), case.white, rtol=1e-9, atol=1e-12)


def test_exact_samples_are_the_draws_that_scikit_learn_makes(case):
    draws = case.exact().sample(case.new, 7, np.random.RandomState(3))
    assert draws.shape == (M, 2, 7)
    random_state = np.random.RandomState(3)
    covariance = case.covariance + np.diag(case.white)
    for target in range(2):
        expected = random_state.multivariate_normal(case.mean[:, target], covariance, 7).T
        np.testing.assert_allclose(draws[:, target], expected, rtol=1e-6, atol=1e-7)
    again = case.exact().sample(case.new, 7, np.random.RandomState(3))
    assert torch.equal(draws, again)


def test_exact_samples_have_the_right_moments(case):
    n = 5000
    draws = case.exact().sample(case.new, n, np.random.RandomState(0)).numpy()
    for target in range(2):
        deviations = draws[:, target].T - case.mean[:, target]
        assert max_z(deviations, 0) < 4.5
        products = deviations[:, :, None] * deviations[:, None, :]
        assert max_z(products, case.covariance + np.diag(case.white)) < 4.5


def test_exact_single_precision_is_close():
    case = Case(KERNELS["default"])
    posterior = case.exact(torch.float32)
    new = case.new.float()
    np.testing.assert_allclose(posterior.mean(new), case.mean, atol=1e-4)
    np.testing.assert_allclose(posterior.variance(new), np.diag(case.covariance), atol=1e-4)
    np.testing.assert_allclose(posterior.covariance(new), case.covariance, atol=1e-4)


def test_smooth_kernels_with_hardly_any_noise_keep_their_variances():
    # What scikit-learn users write: RBF, alpha=1e-10, a smooth function on a dense grid.
    X = torch.linspace(0, 5, 60, dtype=torch.float64)[:, None]
    noise = torch.full((60,), 1e-10, dtype=torch.float64)
    problem = GPProblem(compile_kernel(RBF(1.0), 1), Rows.of(X, torch.sin(X), noise))
    result = exact_marginal_likelihood(problem, problem.kernel.theta0, eval_gradient=False)
    posterior = ExactPosterior(
        problem.operator(problem.kernel.theta0), result.weights, result.factor
    )
    variance = posterior.variance(torch.linspace(-1, 6, 300, dtype=torch.float64)[:, None])
    assert float(variance.min()) >= 0 and float(variance.max()) < 1


# ---------------------------------------------------------------- iterative


def test_iterative_mean_is_exact_and_costs_no_solve(case):
    posterior = case.iterative(samples=case.samples(0))
    before = posterior.operator.epochs
    np.testing.assert_allclose(posterior.mean(case.new), case.mean, rtol=1e-8, atol=1e-9)
    assert posterior.operator.epochs == before


@pytest.mark.parametrize("solver", [CG(), CG(PivotedCholesky(rank=10)), Cholesky()], ids=str)
def test_solved_variances_are_exact_at_a_tight_tolerance(case, solver):
    posterior = case.iterative(solver=solver)
    variance = posterior.variance(case.new)
    np.testing.assert_allclose(variance, np.diag(case.covariance), rtol=1e-7, atol=1e-9)
    covariance = posterior.covariance(case.new)
    np.testing.assert_allclose(covariance, case.covariance, rtol=1e-7, atol=1e-9)
    assert torch.equal(covariance, covariance.T)


def test_the_covariance_of_stored_samples_is_theirs(case):
    """It has the variances of single rows, no solve, and over draws the exact mean."""
    found = []
    for seed in range(60):
        samples = case.samples(seed, s=30)
        posterior = case.iterative(samples=samples)
        before = posterior.operator.epochs
        covariance = posterior.covariance(case.new).numpy()
        assert posterior.operator.epochs == before
        cross = case.problem.operator(case.theta).cross(case.new).to_dense()
        g = samples.features.evaluate(case.theta, case.new) @ samples.prior_weights
        g = (g - cross @ samples.representer_weights).numpy()
        np.testing.assert_allclose(covariance, g @ g.T / 30, rtol=1e-7, atol=1e-9)
        variance = posterior.variance(case.new)
        np.testing.assert_allclose(covariance.diagonal(), variance, rtol=1e-9)
        found.append(covariance)
    assert max_z(found, case.covariance) < 4.5


@pytest.mark.parametrize("k", [7, N])
def test_neighbours_determine_the_joint_covariance(case, k):
    """Of g(x) - k_N' H_NN^-1 (g(N) + noise), in dense algebra and by drawn functions."""
    posterior = case.iterative(n_nearest=k)
    cross = case.problem.operator(case.theta).cross(case.new).to_dense().numpy()
    prior, H = case.problem.kernel.cross(case.theta, case.new, case.new).numpy(), case.H.numpy()
    A = np.zeros_like(cross)
    for i, near in enumerate(np.argsort(-abs(cross))[:, :k]):
        A[i, near] = np.linalg.solve(H[np.ix_(near, near)], cross[i, near])
    right = prior - A @ cross.T - cross @ A.T + A @ H @ A.T
    np.testing.assert_allclose(posterior.covariance(case.new), right, rtol=1e-7, atol=1e-9)
    assert k < N or np.allclose(right, case.covariance)
    found = []
    for seed in range(60):
        f = posterior.functions(10, generator(seed))(case.new).numpy() - case.mean[:, :, None]
        found.append(np.einsum("its,jts->ij", f, f) / 20)
    assert max_z(found, right) < 4.5


def test_loose_solves_overstate_variances():
    # x'Hx > 0 for the error x of CG from zero: a variance never comes out too small.
    case = Case(KERNELS["default"])
    loose = case.iterative(stopping=RelativeResidual(0.2) | MaxEpochs(50)).variance(case.new)
    truth = np.diag(case.covariance)
    assert (loose.numpy() >= truth - 1e-12).all() and (loose.numpy() > truth + 1e-6).any()


@pytest.mark.parametrize("k", [7, N, 2 * N])
def test_variances_from_the_rows_with_the_largest_covariances(case, k):
    """Against dense algebra: given these rows alone, or given all rows if there are not more."""
    mean, variance, _ = case.iterative(n_nearest=k).moments(case.new)
    np.testing.assert_allclose(mean, case.mean, rtol=1e-8, atol=1e-9)
    cross = case.problem.operator(case.theta).cross(case.new).to_dense().numpy()
    prior = np.diag(case.problem.kernel.cross(case.theta, case.new, case.new).numpy())
    for i, row in enumerate(cross):
        near = np.argsort(-abs(row))[:k]
        H = case.H.numpy()[np.ix_(near, near)]
        one = prior[i] - row[near] @ np.linalg.solve(H, row[near])
        np.testing.assert_allclose(variance[i], one, rtol=1e-7, atol=1e-9)
    assert (variance.numpy() >= np.diag(case.covariance) - 1e-9).all()


def test_rows_left_out_by_neighbours_are_exact_if_all_others_count(case):
    t = case.problem.Y.shape[1]
    rows = torch.tensor([0, 7, N - 1])
    X, Y = case.problem.X[rows], case.problem.Y[rows]
    known = case.problem.rows.noise[rows]
    mean, variance = case.iterative(n_nearest=N).leave_one_out(rows, X, Y, known)
    H = case.H.numpy()
    for i, row in enumerate(rows.tolist()):
        others = np.arange(N) != row
        w = np.linalg.solve(H[np.ix_(others, others)], H[others, row])
        np.testing.assert_allclose(mean[i], w @ case.problem.Y.numpy()[others], rtol=1e-6)
        np.testing.assert_allclose(variance[i], H[row, row] - w @ H[others, row], rtol=1e-6)
    assert mean.shape == (3, t)


@pytest.mark.parametrize("n_pairs", [20, 200])
def test_pathwise_variances_are_unbiased(case, n_pairs):
    # Over draws of the features, too: with few pairs each group is off, their mean is not.
    groups = [
        case.iterative(samples=case.samples(seed, n_pairs=n_pairs)).variance(case.new).numpy()
        for seed in range(60)
    ]
    assert max_z(groups, np.diag(case.covariance)) < 4


def test_the_z_score_sees_a_wrong_solve():
    case = Case(KERNELS["default"])
    groups = []
    for seed in range(60):
        samples = case.samples(seed)
        short = PathwiseSamples(
            samples.features, samples.prior_weights, 0.9 * samples.representer_weights
        )
        groups.append(case.iterative(samples=short).variance(case.new).numpy())
    assert max_z(groups, np.diag(case.covariance)) > 6


def test_pathwise_deviation_falls_with_the_number_of_samples():
    case = Case(KERNELS["default"])
    truth, spreads = np.diag(case.covariance), []
    for s in (10, 160):
        groups = [
            case.iterative(samples=case.samples(seed, s=s, n_pairs=1000)).variance(case.new)
            for seed in range(40)
        ]
        spreads.append(float((torch.stack(groups).sqrt().std(0).numpy() / truth**0.5).mean()))
    assert spreads[0] == pytest.approx(1 / 20**0.5, rel=0.2)  # 1 / sqrt(2 s)
    assert spreads[1] < spreads[0] / 3


# ---------------------------------------------------------------- samples of the iterative one


def test_new_samples_have_the_right_moments(case):
    t, m = 2, M
    posterior, means, products = case.iterative(solver=Cholesky()), [], []
    for seed in range(40):
        draws = posterior.sample(case.new, 40, np.random.RandomState(seed)).numpy()
        assert draws.shape == (m, t, 40)
        deviations = (draws - case.mean[:, :, None]).reshape(m * t, 40)
        means.append(deviations.mean(1))
        products.append(deviations @ deviations.T / 40)
    one = case.covariance + np.diag(case.white)
    # Rows run over (new row, target): targets are independent given the kernel.
    expected = np.einsum("ij,ab->iajb", one, np.eye(t)).reshape(m * t, m * t)
    assert max_z(means, 0) < 4
    assert max_z(products, expected) < 4.5


def test_stored_samples_have_the_right_moments():
    case = Case(KERNELS["default"])
    products = []
    for seed in range(50):
        posterior = case.iterative(samples=case.samples(seed, s=40))
        before = posterior.operator.epochs
        draws = posterior.sample(case.new, 40, np.random.RandomState(seed)).numpy()
        assert posterior.operator.epochs == before  # no further solve
        deviations = draws[:, 0] - case.mean
        products.append(deviations @ deviations.T / 40)
    assert max_z(products, case.covariance + np.diag(case.white)) < 4.5


@pytest.mark.parametrize("n_samples", [3, 10, 11])
def test_samples_repeat_with_their_random_state(n_samples):
    case = Case(KERNELS["default"])
    posterior = case.iterative(samples=case.samples(0, s=10))
    first, second, other = (
        posterior.sample(case.new, n_samples, np.random.RandomState(seed)) for seed in (1, 1, 2)
    )
    assert torch.equal(first, second) and not torch.equal(first, other)
    assert first.shape == (M, 1, n_samples)


def test_two_targets_share_the_variance_and_no_sample():
    case = Case(KERNELS["rbf"], t=2)
    posterior = case.iterative(samples=case.samples(0, s=10))
    draws = posterior.sample(case.new, 5, np.random.RandomState(0))
    deviations = draws - torch.from_numpy(case.mean)[:, :, None]
    assert len(deviations[0].flatten().unique()) == 10


# ---------------------------------------------------------------- reported variances


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rounding_is_clipped_and_more_is_an_error(dtype):
    scale = torch.tensor([1.0, 100.0], dtype=dtype)
    limit = torch.finfo(dtype).eps ** 0.5
    rounding = torch.tensor([-0.9 * limit, 3.0], dtype=dtype)
    assert reported_variance(rounding, scale).tolist() == [0.0, 3.0]
    # The scale is each row's own prior variance.
    assert reported_variance(torch.tensor([0.5, -50 * limit], dtype=dtype), scale)[1] == 0
    for wrong in ([-1.1 * limit, 3.0], [0.5, -110 * limit]):
        with pytest.raises(FloatingPointError, match="alpha.*float64"):
            reported_variance(torch.tensor(wrong, dtype=dtype), scale)


def test_a_wrong_factor_does_not_pass_for_certainty():
    case = Case(KERNELS["default"])
    posterior = case.exact()
    posterior.factor = posterior.factor * 0.5
    with pytest.raises(FloatingPointError, match="rounding"):
        posterior.variance(case.new)


def test_periodic_kernels_are_answered_by_solves():
    X = normal(N, 1)
    kernel = compile_kernel(ExpSineSquared(1.0, 2.0) + W(0.1), 1)
    problem = GPProblem(kernel, Rows.of(X, torch.sin(X)))
    result = exact_marginal_likelihood(problem, kernel.theta0, eval_gradient=False)
    exact = ExactPosterior(problem.operator(kernel.theta0), result.weights, result.factor.clone())
    solved = IterativePosterior(
        problem.operator(kernel.theta0), result.weights, None, solver=CG(), stopping=TIGHT
    )
    torch.testing.assert_close(solved.variance(X), exact.variance(X), rtol=1e-6, atol=1e-8)


def test_draws_in_single_precision_do_not_warn_of_rounding():
    case = Case(KERNELS["rbf"], m=30)
    posterior = case.exact(torch.float32)
    rounding = np.abs(posterior.covariance(case.new).double().numpy() - case.covariance).max()
    assert 1e-8 < rounding < 1e-5
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        draws = posterior.sample(case.new, 20_000, np.random.RandomState(0))[:, 0].numpy()
    assert_allclose(np.cov(draws), case.covariance, atol=0.04 * case.covariance.max())
