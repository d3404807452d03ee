"""Rows that are held out of the last solve, and whose errors give the scale of its variances."""

import pickle
from functools import cache

import numpy as np
import pytest
import torch
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, to_torch
from skscalablegp.core.training import Budget
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.linalg.solvers import Solution
from skscalablegp.models.iterative import IterativePosterior
from skscalablegp.models.iterative._base import LeftOut
from skscalablegp.models.iterative._final_solve import FinalSolve, solve_without
from skscalablegp.solvers import End

pytestmark = pytest.mark.usefixtures("remembered_starts")

HELD = torch.tensor([7, 3, 41])


@pytest.mark.parametrize("ended", [False, True])
def test_a_solve_without_some_rows_by_dense_algebra(ended):
    rng = np.random.default_rng(0)
    X, Y = torch.tensor(rng.uniform(-2, 2, (50, 2))), torch.tensor(rng.standard_normal((50, 2)))
    kernel = compile_kernel(Matern(0.8, nu=1.5) + WhiteKernel(0.1), 2)
    problem = GPProblem(kernel, Rows.of(X, Y), keep=True)
    others = np.setdiff1d(np.arange(50), HELD)
    left = None if ended else torch.tensor(rng.standard_normal((47, 2)))

    def solved(part, early):
        assert early is None
        np.testing.assert_array_equal(part.X, X[others])
        weights = torch.linalg.solve(part.operator(kernel.theta0).to_dense(), part.Y)
        solution = Solution(weights, End.CONVERGED, torch.zeros(2), 1.0, 1)
        return FinalSolve(solution, weights, None, -94.0, 4.7, False, left)

    final = solve_without(HELD, problem, kernel.theta0, solved, Budget())
    H = problem.operator(kernel.theta0).to_dense()
    weights = torch.linalg.solve(H[others][:, others], Y[others])
    torch.testing.assert_close(final.weights[others], weights)
    assert (final.weights[HELD] == 0).all()
    torch.testing.assert_close(final.left[HELD], Y[HELD] - H[HELD][:, others] @ weights)
    expected = torch.zeros(47, 2, dtype=torch.float64) if ended else left
    torch.testing.assert_close(final.left[others], expected)
    assert (final.value, final.std_error) == (-94.0, 4.7)


def raw_and_merged(counts, t=2):
    """Equal rows with their targets, a problem of their means, and log p of all or of some."""
    rng, n = np.random.default_rng(3), len(counts)
    X, many = rng.uniform(-2, 2, (n, 2)), np.repeat(np.arange(n), counts)
    kernel = Matern(0.8, nu=1.5) + WhiteKernel(0.1)
    Y = np.sin(2 * X[many, :1]) + 0.4 * rng.standard_normal((len(many), t))
    means = np.stack([Y[many == i].mean(0) for i in range(n)])
    within = [np.square(Y[many == i] - means[i]).sum() for i in range(n)]
    rows = Rows.of(torch.tensor(X), torch.tensor(means), 0.0, counts, within)
    problem = GPProblem(compile_kernel(kernel, 2), rows, keep=True)

    def log_density(rows):
        part = np.isin(many, rows)
        C = kernel.k1(X[many[part]]) + 0.1 * np.eye(part.sum())
        law = multivariate_normal(np.zeros(len(C)), C)
        return sum(law.logpdf(y) for y in Y[part].T)

    return problem, log_density


@pytest.mark.parametrize("merged", [False, True])
def test_held_out_rows_add_to_the_likelihood_by_the_chain_rule(merged, thresholds):
    """Densities given all others add more: other held-out rows know the same twice."""
    thresholds("iterative", "_posterior", _ROWS=7)
    n, held = 60, torch.arange(1, 60, 3)
    counts = np.random.default_rng(1).integers(1, 4, n) if merged else np.ones(n, int)
    problem, log_density = raw_and_merged(counts)
    theta = problem.kernel.theta0
    operator = problem.operator(theta)
    H, others = operator.to_dense(), np.setdiff1d(np.arange(n), held)
    weights = torch.zeros(n, 2, dtype=torch.float64)
    weights[others] = torch.linalg.solve(H[others][:, others], problem.Y[others])
    left = problem.Y - H @ weights
    posterior = IterativePosterior(
        operator, weights, None, solver=None, stopping=None, n_nearest=n, residual=left
    )
    X, Y = problem.X[held], problem.Y[held]
    own = problem.noise(theta, held) - posterior.noise(X)
    mean, variance = posterior.leave_one_out(held, X, Y, own, held)
    left_out = LeftOut(problem, held, Y - mean, variance, "held-out")
    found, squares, doubt = left_out.in_turn(theta, len(held))
    expected = log_density(np.arange(n)) - log_density(others)
    assert (found, doubt) == (pytest.approx(expected, abs=1e-6), 0)
    # The quadratic form of the means' joint density.
    whole, part = (
        float((Z * torch.linalg.solve(A, Z)).sum())
        for A, Z in ((H, problem.Y), (H[others][:, others], problem.Y[others]))
    )
    assert squares == pytest.approx(whole - part, rel=1e-6)


def test_some_of_the_held_out_rows_stand_for_all_with_a_standard_error():
    rng = np.random.default_rng(0)
    X, Y = torch.tensor(rng.uniform(-2, 2, (400, 1))), torch.tensor(rng.standard_normal((400, 1)))
    problem = GPProblem(compile_kernel(Matern(0.8, nu=1.5) + WhiteKernel(0.1), 1), Rows.of(X, Y))
    theta, variance = problem.kernel.theta0, torch.tensor(rng.uniform(0.5, 2, 400))
    rows = torch.arange(400)
    every = LeftOut(problem, rows, Y, variance, "held-out").in_turn(theta, 400)[0]
    expected = norm.logpdf(Y[:, 0], scale=variance.sqrt()).sum()
    assert every == pytest.approx(expected)
    z = []
    for _ in range(300):
        some = rng.permutation(400)[:300]
        part = LeftOut(problem, rows[some], Y[some], variance[some], "held-out")
        found, _, doubt = part.in_turn(theta, 400)
        z.append((found - every) / doubt)
    assert abs(np.mean(z)) < 3 / 300**0.5 and np.std(z) == pytest.approx(1, abs=0.15)


def rough():
    """Rows and targets drawn from a process, of which ten neighbours know too little."""
    return tuple(part.copy() for part in drawn())


@cache
def drawn(n=1000, n_new=1500):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n + n_new, 4))
    K = Matern(3.0, nu=1.5)(X) + 1e-4 * np.eye(len(X))
    y = 5 + 2 * np.linalg.cholesky(K) @ rng.standard_normal(len(X))
    return X[:n], y[:n], X[n:], y[n:]


@pytest.fixture
def large(thresholds):
    """Tables of 1,000 rows are large ones."""
    thresholds("iterative", NEAREST=10, _CENTRES=5, _HELD_SHARE=5, _FEWEST_HELD=200)
    thresholds("_neighbourhoods", _ROWS=64)
    thresholds(EXACT_TRAINING_ROWS=200, EXACT_POSTERIOR_ROWS=300, SUBSET_ROWS=300)
    thresholds(EXACT_SUBSET_ROWS=300)


@pytest.mark.usefixtures("large")
def test_variances_have_the_size_of_the_errors_of_new_rows(thresholds):
    X, y, new, y_new = rough()

    def squares(gp):
        mean, std = gp.predict(new, return_std=True)
        return np.mean(((y_new - mean) / std) ** 2)

    ours = IterativeGPRegressor(random_state=0).fit(X, y)
    assert "held-out errors of 200 rows" in ours.fit_report_.summary
    assert squares(ours) == pytest.approx(1, abs=0.15)
    # Leave-one-out errors by neighbours are too large.
    thresholds(_FEWEST_HELD=201)
    by_leaving_out = IterativeGPRegressor(random_state=0).fit(X, y)
    assert "leave-one-out errors of 1,000 rows" in by_leaving_out.fit_report_.summary
    assert squares(by_leaving_out) < 0.8


@pytest.mark.usefixtures("large")
def test_held_out_rows_have_no_weights_but_correct_the_rows_near_them():
    X, y, new, _ = rough()
    ours = IterativeGPRegressor(random_state=0).fit(X, y)
    held = np.flatnonzero(ours.alpha_ == 0)
    assert len(held) == 200
    Y = (y - y.mean()) / y.std()
    K = ours.kernel_.k1
    expected = Y - K(X) @ ours.alpha_ - ours.kernel_.k2.noise_level * ours.alpha_
    # Residuals below the tolerance of the solve do not count.
    left = ours._residual[:, 0]
    np.testing.assert_allclose(left[held], expected[held], atol=1e-5)
    assert np.linalg.norm(left - expected) < 0.006 * np.linalg.norm(Y)
    mean = ours.predict(new)
    for i in range(0, 1500, 50):
        k = K(new[[i]], X)[0]
        near = np.argsort(-k)[:10]
        H = K(X[near]) + ours.kernel_.k2.noise_level * np.eye(10)
        latent = k @ ours.alpha_ + k[near] @ np.linalg.solve(H, left[near])
        assert mean[i] == pytest.approx(y.mean() + y.std() * latent, abs=1e-4)
    # At a held-out row itself, its target is known.
    assert np.abs(ours.predict(X[held]) - y[held]).mean() < 0.5 * np.abs(mean - mean.mean()).mean()
    again = pickle.loads(pickle.dumps(ours))
    np.testing.assert_array_equal(again.predict(new), mean)
    exported = to_torch(ours)(torch.tensor(new))
    np.testing.assert_allclose(exported[0].numpy(), mean, atol=1e-4)


COMPLETE = {"solver": "block_cg", "posterior": "neighbors", "train_on": "subsets"}


@pytest.mark.slow
@pytest.mark.usefixtures("large")
@pytest.mark.parametrize(
    "settings", [{}, COMPLETE | {"subset_size": 300}], ids=["early", "complete"]
)
def test_the_likelihood_is_that_of_all_rows_nearly(settings, thresholds):
    X, y, new, y_new = rough()
    thresholds("_early_end", _SHARE=0.5, _STEPS=1)
    thresholds("iterative", NEAREST=50)
    ours = IterativeGPRegressor(random_state=0, **settings).fit(X, y)
    assert ours.posterior_ == "neighbors" and (ours.alpha_ == 0).sum() == 200
    early = "that ended early" if not settings else "without held-out rows"
    assert f"the mean of a solve {early}; held-out errors of 200 rows" in ours.fit_report_.summary
    mean, std = ours.predict(new, return_std=True)
    assert np.mean(((y_new - mean) / std) ** 2) == pytest.approx(1, abs=0.15)
    exact = GaussianProcessRegressor(ours.kernel_, optimizer=None, normalize_y=True).fit(X, y)
    expected = exact.log_marginal_likelihood_value_
    # The sum of log densities given all others was higher by 8.
    assert ours.log_marginal_likelihood_value_ == pytest.approx(expected, abs=1)


@pytest.mark.slow
@pytest.mark.usefixtures("large")
def test_held_out_rows_among_equal_rows_and_several_targets():
    X, y, new, y_new = rough()
    rng = np.random.default_rng(1)
    many = np.repeat(np.arange(len(X)), rng.integers(1, 4, len(X)))
    Y = np.column_stack([y, -2 * y])[many] + 0.2 * rng.standard_normal((len(many), 2))
    ours = IterativeGPRegressor(random_state=0).fit(X[many], Y)
    assert "held-out errors of 200 rows" in ours.fit_report_.summary
    assert ((ours.alpha_ == 0).all(1)).sum() == 200
    mean, std = ours.predict(new, return_std=True)
    new_Y = np.column_stack([y_new, -2 * y_new]) + 0.2 * rng.standard_normal((len(new), 2))
    assert np.mean(((new_Y - mean) / std) ** 2) == pytest.approx(1, abs=0.25)
    exact = ours.log_marginal_likelihood(ours.kernel_.theta)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(exact, abs=0.05 * abs(exact) + 20)


@pytest.mark.usefixtures("large")
def test_errors_without_time_are_those_of_random_held_out_rows(thresholds, stand_in):
    X, y, _, _ = rough()
    order = np.argsort(X[:, 0])
    thresholds("iterative", _LEFT_OUT=60)
    seen = []

    def recorded(self, theta, posterior, generator, late, held):
        found = whole(self, theta, posterior, generator, True, held)
        seen.append((found.rows, held))
        return found

    whole = stand_in("SolvedGPRegressor._left_out_errors", recorded)
    IterativeGPRegressor(random_state=0).fit(X[order], y[order])
    rows, held = seen[-1]
    assert len(rows) == 60 and torch.isin(rows, held).all()
    assert 300 < float(rows.double().mean()) < 700


def expect_new_errors(model, new, y_new, noise=None):
    """The errors of the report are those of new rows, nearly."""
    words = model.fit_report_.summary.split("rows have an RMSE of ")[1].split(" and an NLPD of ")
    mean, std = model.predict(new, return_std=True)
    errors, variance = y_new - mean, std**2 + (noise or 0)
    nlpd = 0.5 * np.mean(errors**2 / variance + np.log(2 * np.pi * variance))
    found = [float(word) for word in words]
    assert found == [
        pytest.approx(np.sqrt(np.mean(errors**2)), rel=0.15),
        pytest.approx(nlpd, abs=0.15),
    ]


@pytest.mark.usefixtures("large")
def test_left_out_errors_have_known_noise():
    X, y, new, y_new = rough()
    rng = np.random.default_rng(1)
    y, y_new = (z + 0.8 * rng.standard_normal(len(z)) for z in (y, y_new))
    ours = IterativeGPRegressor(random_state=0, subset_size=200, **COMPLETE)
    ours.fit(X, y, noise_variance=0.64)
    assert "leave-one-out errors of" in ours.fit_report_.summary
    expect_new_errors(ours, new, y_new, 0.64)


@pytest.mark.usefixtures("large")
def test_previews_leave_out_fewer_rows(thresholds, stand_in):
    X, y, _, _ = rough()
    thresholds("iterative", _LEFT_OUT=60)
    counts = []

    def counted(*args):
        found = whole(*args)
        counts.append(len(found.rows))
        return found

    def preview(step):
        if not counts:
            shown = step.model()
            assert counts == [60]
            exact = shown.log_marginal_likelihood(shown.kernel_.theta)
            assert shown.log_marginal_likelihood_value_ == pytest.approx(exact, rel=0.15)
            assert shown.log_marginal_likelihood_std_error_ > 0

    whole = stand_in("SolvedGPRegressor._left_out_errors", counted)
    IterativeGPRegressor(random_state=0, posterior="neighbors", callbacks=preview).fit(X, y)
    assert counts == [60, 200]


@pytest.mark.usefixtures("large")
@pytest.mark.parametrize("kind", ["all rows", "known noise", "no amplitude"])
def test_rows_are_held_out_to_end_the_solve_where_they_give_no_scale(kind, thresholds):
    X, y, new, y_new = rough()
    rng = np.random.default_rng(1)
    y, y_new = (z + 0.4 * rng.standard_normal(len(z)) for z in (y, y_new))
    settings = {}
    if kind != "known noise":
        settings = {"kernel": Matern([3.0] * 4, nu=1.5) + WhiteKernel(0.04), "normalize_y": True}
    if kind == "all rows":
        settings |= {"train_on": "all", "optimizer": None}
    noise = 0.16 if kind == "known noise" else None
    ours = IterativeGPRegressor(random_state=0, posterior="neighbors", **settings)
    ours.fit(X, y, noise_variance=noise)
    assert (ours.alpha_ == 0).sum() == 200
    expect_new_errors(ours, new, y_new, noise)
    expected = ours.log_marginal_likelihood(ours.kernel_.theta)
    assert ours.log_marginal_likelihood_value_ == pytest.approx(expected, abs=40)
    # A complete solve needs all rows, and so does one of a small table: 200 rows are too many.
    train_on = settings.get("train_on", "subsets")
    ours.set_params(solver="block_cg", train_on=train_on).fit(X, y, noise_variance=noise)
    assert (ours.alpha_ != 0).all()
    thresholds("iterative", _HELD_SHARE=50, _MOST_HELD_SHARE=5)
    ours.set_params(solver="auto").fit(X[:999], y[:999], noise_variance=noise)
    assert ours.posterior_ == "neighbors" and (ours.alpha_ != 0).all()
    ours.fit(X, y, noise_variance=noise)
    assert (ours.alpha_ == 0).sum() == 200
