"""Results of the final solve: likelihoods and samples."""

import math
import pickle
from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from inside import clock
from simulated import simulated
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    Matern,
    PairwiseKernel,
    WhiteKernel,
)
from torch.distributions import MultivariateNormal

from skscalablegp import IterativeGPRegressor, RRCGRegressor, draw_functions, load, save, to_torch
from skscalablegp.core import fitted_process
from skscalablegp.core.training import Budget, Monitor, QuasiNewton, train
from skscalablegp.gradients import PathwiseGradient
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, GradientState, Rows
from skscalablegp.linalg.preconditioners import build_preconditioner
from skscalablegp.models.iterative._final_solve import _estimate_likelihood, _log_det
from skscalablegp.models.iterative._neighbourhoods import NeighbourhoodGradient, _density
from skscalablegp.models.iterative._solves import Solves, named_solver
from skscalablegp.preconditioners import PIC, PivotedCholesky
from skscalablegp.priors import LogNormal
from skscalablegp.solvers import CG


@pytest.mark.parametrize(
    "solver", ["cg", "ap", CG(), CG(PivotedCholesky(100, randomized=True))], ids=str
)
def test_the_likelihood_is_within_its_standard_error(solver, thresholds):
    """30 Lanczos steps without a preconditioner are off by dozens of nats here."""
    thresholds(SOLVED_VARIANCE_ROWS=100)
    rng = np.random.default_rng(0)
    X = np.sort(rng.random((800, 1)), 0)
    y = np.sin(9 * X[:, 0]) + 0.01 * rng.standard_normal(800)
    kernel = Matern(nu=1.5, length_scale=0.5) + WhiteKernel(1e-4)
    ours = IterativeGPRegressor(
        kernel, optimizer=None, solver=solver, posterior="solve", solver_tol=1e-4, random_state=0
    ).fit(X, y)
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, y)
    error = ours.log_marginal_likelihood_value_ - exact.log_marginal_likelihood_value_
    assert 0 < ours.log_marginal_likelihood_std_error_ < 2
    assert abs(error) < 4 * ours.log_marginal_likelihood_std_error_ + 0.1


def test_a_preconditioner_without_a_bound_gives_none(stand_in):
    """The covariance of other hyperparameters is ten times H: nothing bounds the quotient by 1."""
    n, X = 200, torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    compiled = compile_kernel(Matern(nu=0.5) + WhiteKernel(0.1), 1)
    problem = GPProblem(compiled, Rows.of(X, torch.sin(9 * X)))
    operator = problem.operator(compiled.theta0)
    H = operator.to_dense()
    truth = float(MultivariateNormal(H.new_zeros(n), H).log_prob(problem.Y[:, 0]))
    V = torch.linalg.solve(H, problem.Y)
    ten = replace(problem, kernel=compile_kernel(10.0 * Matern(nu=0.5) + WhiteKernel(1.0), 1))
    other = PivotedCholesky(20).build(ten.operator(ten.kernel.theta0))
    seen = []

    def seeing(self, *args):
        seen.append(args[-1])
        begin(self, *args)

    # Not the class, which annotations name: they would stay what it is during their first call.
    begin = stand_in("LogDet.__init__", seeing)
    for given in (PivotedCholesky(20), other):
        P = build_preconditioner(given, operator)
        seed = torch.Generator().manual_seed(0)
        log_det, R = _log_det(operator, P, seed), problem.Y - operator.matmul(V)
        value, error = _estimate_likelihood(problem, compiled.theta0, V, R, P, log_det)
        assert abs(value - truth) < 4 * error
    assert seen == [1.0, None]


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_exact_prior_samples_of_training_are_not_those_of_predictions():
    rng = np.random.default_rng(0)
    X = rng.random((60, 1))
    y = np.sin(9 * X[:, 0])
    model = IterativeGPRegressor(
        ConstantKernel(1.0) * RBF(0.3) + WhiteKernel(0.01),
        solver="cg",
        gradient=PathwiseGradient(prior="exact", n_probes=64),
        posterior="pathwise",
        max_iter=2,
        random_state=0,
    ).fit(X, y)
    std = model.predict_std(X)
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(X, y)
    np.testing.assert_allclose(std, exact.predict(X, return_std=True)[1], rtol=0.3)


def test_few_probes_of_training_do_not_make_few_samples():
    """A deviation from s samples has a relative error of 1 / sqrt(2 s)."""
    rng = np.random.default_rng(0)
    X = rng.random((100, 2))
    y = np.sin(9 * X[:, 0])
    kernel = ConstantKernel(1.0) * Matern([0.5, 0.5], nu=1.5) + WhiteKernel(0.01)
    model = RRCGRegressor(kernel, posterior="pathwise", optimizer=None, random_state=0).fit(X, y)
    latent = model.predict_std(X + 0.05, include_noise=False)
    exact = IterativeGPRegressor(kernel, optimizer=None).fit(X, y)
    ratio = latent / exact.predict_std(X + 0.05, include_noise=False)
    assert np.sqrt(np.mean((ratio - 1) ** 2)) < 1.5 / np.sqrt(2 * 64)
    assert np.abs(ratio - 1).max() < 4.5 / np.sqrt(2 * 64)
    assert model.sample_y(X, 64).shape == (100, 64)


@pytest.fixture
def small_is_large(thresholds):
    """Tables of more than a hundred rows are trained on subsets, as large tables are."""
    thresholds(EXACT_TRAINING_ROWS=50, EXACT_POSTERIOR_ROWS=100)
    thresholds(SUBSET_ROWS=30, EXACT_SUBSET_ROWS=60)


def noisy_sine(n):
    rng = np.random.default_rng(0)
    X = rng.random((n, 2))
    return X, np.sin(6 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


@pytest.mark.slow
@pytest.mark.usefixtures("small_is_large")
def test_large_tables_are_trained_on_subsets_and_scaled_by_rows_left_out(stand_in):
    """Against dense leave-one-out errors and scikit-learn's likelihood; 300 rows count as large."""
    X, y = noisy_sine(300)
    local, seen = [], []
    train = stand_in(
        "train", lambda *a, **k: local.append(train(*a, **k)) or local[0], at="_neighbourhoods"
    )
    ours = IterativeGPRegressor(
        solver_tol=1e-7,
        random_state=0,
        callbacks=lambda step: seen.append((step.stage, step.theta)),
    ).fit(X[:250], y[:250])
    assert ours.posterior_ == "neighbors"
    # Callbacks see the kernel of the model only, and every step counts once.
    assert list(dict.fromkeys(stage for stage, _ in seen)) == ["30", "60"]
    assert [theta.tolist() for _, theta in seen] == np.array(ours.history_["theta"]).tolist()
    assert ours.n_iter_ == len(seen) and "neighbourhoods" in ours.fit_report_.seconds
    report = ours.fit_report_
    assert report.status == "converged" and report.choices["max_iter"].value == 0
    assert "their mean with those of neighbourhoods" in report.choices["max_iter"].reason
    z = (y[:250] - y[:250].mean()) / y[:250].std()
    inverse = np.linalg.inv(ours.kernel_(X[:250]))
    errors = inverse @ z / np.diag(inverse)
    assert np.mean(errors**2 * np.diag(inverse)) == pytest.approx(1, rel=1e-4)
    exact = GaussianProcessRegressor(ours.kernel_, optimizer=None, normalize_y=True)
    exact.fit(X[:250], y[:250])
    assert ours.log_marginal_likelihood_value_ == pytest.approx(
        exact.log_marginal_likelihood_value_, abs=1e-2
    )
    mean, std = ours.predict(X[250:], return_std=True)
    for one, other in zip((mean, std), exact.predict(X[250:], return_std=True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
    # The kernel is the mean of the last subset's, twice, and the neighbourhoods', up to the scale.
    stage, theta = np.array(ours.history_["stage"]), np.array(ours.history_["theta"])
    value = np.array(ours.history_["objective"])
    best = theta[stage == "60"][value[stage == "60"].argmax()]
    mean = (2 * best + local[0].theta) / 3
    np.testing.assert_allclose(ours.kernel_.theta[1:3], mean[1:3], atol=1e-6)
    # A limit of the steps holds for each subset; all rows can be asked for.
    few = IterativeGPRegressor(max_iter=2, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter=2 ended a stage of training"):
        few.fit(X[:250], y[:250])
    assert "full" not in few.history_["stage"] and few.fit_report_.status == "max_iter"
    assert np.unique(few.history_["stage"], return_counts=True)[1].max() <= 2
    asked = IterativeGPRegressor(train_on="all", random_state=0).fit(X[:250], y[:250])
    assert "full" in asked.history_["stage"]


@pytest.mark.parametrize("solver", ["cg", "block_cg"])
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_samples_are_those_of_the_scaled_kernel(solver):
    """Deviations and draws against dense algebra at `kernel_`, in units of 50 around 1,000."""
    rng, n, s = np.random.default_rng(0), 200, 1000
    X = rng.random((n, 2))
    y = 1000 + 50 * (np.sin(6 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(n))
    model = IterativeGPRegressor(
        ConstantKernel(1.0) * Matern([0.5, 2.0], nu=1.5) + WhiteKernel(0.04),
        train_on="subsets",
        subset_size=50,
        max_iter=1,
        solver=solver,
        solver_tol=1e-6,
        posterior="pathwise",
        n_probes=s,
        normalize_y=True,
        random_state=0,
    ).fit(X, y)
    white = model.kernel_.k2.noise_level
    assert white > 1.5 * np.exp(model.history_["theta"][-1][-1])  # Rows left out have scaled it.
    new = np.vstack([rng.random((40, 2)), rng.random((10, 2)) + 2])
    H, cross = model.kernel_(X), model.kernel_(new, X)
    mean = y.mean() + cross @ np.linalg.solve(H, y - y.mean())
    latent = model.kernel_.k1.diag(new) - (cross * np.linalg.solve(H, cross.T).T).sum(1)
    np.testing.assert_allclose(model.predict(new), mean, atol=1e-3 * y.std())
    # A variance from s samples has a relative standard error of sqrt(2 / s).
    found = model.predict_std(new, include_noise=False) ** 2 / y.var()
    assert abs(found / latent - 1).max() < 5 * math.sqrt(2 / s)
    draws = (model.sample_y(new, s) - mean[:, None]) / y.std()
    assert abs(np.square(draws).mean(1) / (latent + white) - 1).max() < 5 * math.sqrt(2 / s)


@pytest.mark.parametrize("nu, amplitude, noise", [(1.5, 5.0, 1e-4), (0.5, 1.0, 1e-5)])
def test_samples_have_the_variance_that_many_rows_leave(nu, amplitude, noise):
    """A small part of the prior's: that of high frequencies, and less than residuals of 1e-2."""
    rng = np.random.default_rng(0)
    X, Z, y = rng.uniform(size=(600, 2)), rng.uniform(size=(200, 2)), rng.standard_normal(600)
    prior = ConstantKernel(amplitude**2) * Matern(3.0, nu=nu)
    given = {"optimizer": None, "normalize_y": False, "random_state": 0}
    model = IterativeGPRegressor(
        prior + WhiteKernel(noise), solver="cg", posterior="pathwise", **given
    ).fit(X, y)
    weights = np.linalg.solve(prior(X) + noise * np.eye(len(X)), prior(X, Z))
    exact = amplitude**2 - np.sum(prior(X, Z) * weights, 0)
    found = np.mean(model.predict_std(Z, include_noise=False) ** 2)
    assert abs(np.sqrt(found / exact.mean()) - 1) < 0.1


@pytest.mark.slow
@pytest.mark.usefixtures("small_is_large")
def test_the_scale_from_rows_left_out_has_its_prior():
    """Dense leave-one-out errors and a narrow log-normal prior are in balance at the scale."""
    X, y = noisy_sine(250)
    priors = {"k2__noise_level": LogNormal(0.1, 0.08)}
    model = IterativeGPRegressor(priors=priors, solver_tol=1e-7, random_state=0).fit(X, y)
    inverse = np.linalg.inv(model.kernel_(X))
    errors = inverse @ ((y - y.mean()) / y.std()) / np.diag(inverse)
    ratio = np.mean(errors**2 * np.diag(inverse))
    # The derivatives in the logarithm of the scale; 250 rows count as 250.
    slope = -(math.log(model.kernel_.k2.noise_level) - math.log(0.1)) / 0.08**2
    assert abs(ratio - 1) > 0.05
    assert 250 / 2 * (ratio - 1) + slope == pytest.approx(0, abs=0.02 * abs(slope))


def sets_of_rows():
    """60 rows, a kernel with noise, and seven sets of twelve rows."""
    rng = np.random.default_rng(0)
    X = rng.random((60, 2))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(60)
    kernel = ConstantKernel(1.5) * RBF([0.4, 0.7]) + WhiteKernel(0.1)
    rows = Rows.of(torch.as_tensor(X), torch.as_tensor(y)[:, None])
    problem = GPProblem(compile_kernel(kernel, 2), rows)
    sets = torch.as_tensor(np.array([rng.permutation(60)[:12] for _ in range(7)]))
    return X, y, kernel, problem, sets


def test_neighbourhoods_have_the_likelihood_of_separate_rows():
    """Value and gradient are sums of scikit-learn's; 7 sets of 12 rows stand for 60 rows."""
    X, y, kernel, problem, sets = sets_of_rows()
    estimator = NeighbourhoodGradient(sets, 1e-3)
    found = estimator.estimate(problem, torch.as_tensor(kernel.theta), GradientState())[0]
    theirs = [
        GaussianProcessRegressor(kernel, alpha=0, optimizer=None)
        .fit(X[rows], y[rows])
        .log_marginal_likelihood(kernel.theta, eval_gradient=True)
        for rows in sets.numpy()
    ]
    assert found.value == pytest.approx(60 / 84 * sum(value for value, _ in theirs))
    np.testing.assert_allclose(found.grad, 60 / 84 * sum(grad for _, grad in theirs), rtol=1e-6)
    # As they stand for all rows, a prior counts once beside them.
    priors = {"k2__noise_level": LogNormal(0.3, 0.1)}
    given = replace(problem, kernel=compile_kernel(kernel, 2, priors=priors))
    monitor, seed = Monitor(), torch.Generator()
    bounds = given.kernel.bounds.numpy()
    train(
        given,
        estimator,
        QuasiNewton(),
        kernel.theta,
        bounds,
        max_iter=1,
        monitor=monitor,
        generator=seed,
    )
    density = scipy.stats.lognorm(0.1, scale=0.3).logpdf(0.1) + math.log(0.1)
    assert monitor.steps[0].objective == pytest.approx(found.value + density)


def test_density_of_rows_given_their_neighbours():
    """Against conditional normal densities; a common factor of the kernel makes no difference."""
    X, y, kernel, problem, sets = sets_of_rows()
    found = _density(problem, kernel.theta, sets, 1e-3)
    errors, variances = [], []
    for rows in sets.numpy():
        K = kernel(X[rows])
        gain = np.linalg.solve(K[:-1, :-1], K[:-1, -1])
        errors.append(y[rows[-1]] - gain @ y[rows[:-1]])
        variances.append(K[-1, -1] - gain @ K[:-1, -1])
    variances = np.array(variances) * np.mean(np.square(errors) / variances)
    expected = scipy.stats.norm.logpdf(errors, 0, np.sqrt(variances)).mean()
    assert found == pytest.approx(expected, rel=1e-9)
    scaled = kernel.theta + np.log(3) * np.array([1, 0, 0, 1])
    assert _density(problem, scaled, sets, 1e-3) == pytest.approx(expected, rel=1e-9)


def test_neighbourhoods_are_factorised_together_on_a_device():
    """With the value, the gradient and the density of one after the other; 4 or 7 of them."""
    *_, problem, sets = sets_of_rows()
    theta, counts = problem.kernel.theta0, []
    estimator = NeighbourhoodGradient(sets, 1e-3)
    ours = estimator.estimate(problem, theta, GradientState())[0]
    density = _density(problem, theta.numpy(), sets, 1e-3)
    with simulated() as gpu:
        there = replace(problem, rows=problem.rows.to(torch.float64, torch.device("cuda")))
        for some in (sets[:4].to("cuda"), sets.to("cuda")):
            gpu.forget()
            found = NeighbourhoodGradient(some, 1e-3).estimate(there, theta, GradientState())[0]
            counts.append((dict(gpu.launches), sum(gpu.waits.values())))
        assert _density(there, theta.numpy(), some, 1e-3) == pytest.approx(density, rel=1e-9)
    assert counts[0] == counts[1] and counts[0][0]["linalg_cholesky_ex"] == 1
    assert found.value == pytest.approx(ours.value, rel=1e-9)
    np.testing.assert_allclose(found.grad, ours.grad, rtol=1e-8)


def test_a_fixed_noise_level_is_not_scaled(thresholds):
    thresholds(EXACT_TRAINING_ROWS=50, EXACT_POSTERIOR_ROWS=100, SUBSET_ROWS=60)
    rng = np.random.default_rng(0)
    X = rng.random((200, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(200)
    kernel = ConstantKernel() * RBF() + WhiteKernel(0.5, "fixed")
    ours = IterativeGPRegressor(kernel, random_state=0).fit(X, y)
    assert ours.posterior_ == "neighbors" and ours.kernel_.k2.noise_level == 0.5


def test_subsets_alone_reach_their_largest_size_and_survive_a_constant_target(thresholds):
    """A subset of nearly all rows counts where no training on all rows follows."""
    thresholds(EXACT_TRAINING_ROWS=50, EXACT_POSTERIOR_ROWS=1000)
    thresholds(FIRST_SUBSET_ROWS=30, EXACT_SUBSET_ROWS=180, SUBSET_ROWS=30)
    X = np.random.default_rng(0).random((200, 1))
    model = IterativeGPRegressor(random_state=0).fit(X, np.sin(6 * X[:, 0]) + X[:, 0] ** 9)
    assert set(model.history_["stage"]) == {"30", "90", "180"}
    report = model.fit_report_
    assert model.solver_ == report.choices["solver"].value == "cholesky"
    assert report.summary.startswith("Cholesky") and {"n_probes", "solver_tol"} <= set(
        report.ignored
    )
    assert model.fit(X, np.ones(200)).predict(X[:3]) == pytest.approx([1, 1, 1])


def test_jitter_is_reported_in_the_units_of_the_scaled_kernel(thresholds, stand_in):
    """Rows left out multiply kernel, noise and jitter alike."""
    thresholds(EXACT_TRAINING_ROWS=50)
    thresholds(SUBSET_ROWS=30, FIRST_SUBSET_ROWS=30, EXACT_SUBSET_ROWS=30)
    jittered = lambda *a: (plain(*a)[0], replace(plain(*a)[1], jitter=0.5))  # noqa: E731
    plain = stand_in("ExactPosterior.of", jittered)
    rng = np.random.default_rng(0)
    X = rng.random((100, 1))
    y = np.sin(6 * X[:, 0]) + 0.1 * rng.standard_normal(100)
    model = IterativeGPRegressor(random_state=0).fit(X, y)
    scale = np.exp(model.kernel_.theta - model.history_["theta"][-1])[[0, -1]]
    assert scale[0] == pytest.approx(scale[1]) != pytest.approx(1, abs=1e-3)
    assert model.fit_report_.jitter == pytest.approx(0.5 * scale[0], rel=1e-6)


def test_the_preconditioner_of_the_mean_is_as_large_as_memory_and_time_allow(stand_in):
    solves = Solves(named_solver("block_cg"), named_solver("block_cg"), 0.01, 1000)
    kernel = compile_kernel(RBF() + WhiteKernel(), 1)
    operator = GPProblem(kernel, Rows.of(torch.zeros(36_000, 1), torch.zeros(36_000, 1))).operator(
        kernel.theta0
    )

    def rank(room, budget=None, kept=True):
        made = solves.of_the_mean(operator, room, budget or Budget(), kept)
        config = made.solver.preconditioner
        assert isinstance(config, PIC) and config.block_size == 2 * config.rank
        return config.rank

    assert rank(math.inf) == 700 and rank(1e8) == 200
    # Without a stored matrix fewer products are worth a larger one.
    assert rank(math.inf, kept=False) == 1500
    assert 200 < rank(8e8) < 700 and 40 * 36_000 * rank(8e8) <= 8e8
    # A preconditioner of rank 200 takes a second; the time grows with the square of the rank.
    now, built = [0.0], []

    def build(self, operator, generator):
        built.append(self.rank)
        now[0] += 1.0

    stand_in("PivotedCholesky.build", build)
    for left, most in ((9.0, 400), (1e4, 700), (0.5, 200)):
        with clock(lambda: now[0]):
            assert rank(math.inf, Budget(1 + left)) == pytest.approx(most, rel=0.1)
        assert built.pop() == 200


def test_nearest_neighbours_serve_few_rows_and_kernels_without_a_spectral_density():
    X = np.random.default_rng(0).random((8, 2))
    kernel = PairwiseKernel(metric="laplacian") + WhiteKernel(0.1)
    settings = dict(optimizer=None, solver="cg", posterior="neighbors", solver_tol=1e-8)
    ours = IterativeGPRegressor(kernel, **settings).fit(X, X[:, 0])
    exact = GaussianProcessRegressor(kernel, optimizer=None).fit(X, X[:, 0])
    for one, other in zip(ours.predict(X, True), exact.predict(X, True), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert np.isfinite(ours.sample_y(X, 3)).all()


def early(n, epochs, **params):
    """A fit whose last solve ends early, dense algebra's process, and new rows."""
    rng = np.random.default_rng(0)
    X, new = rng.uniform(-3, 3, (n, 2)), rng.uniform(-3, 3, (60, 2))
    y = np.sin(2 * X[:, 0]) * X[:, 1] + 0.1 * rng.standard_normal(n)
    kernel = 1.5 * RBF(0.7) + WhiteKernel(0.01)
    settings = dict(optimizer=None, solver="cg", posterior="neighbors", preconditioner=None)
    ours = IterativeGPRegressor(kernel, solver_max_epochs=epochs, **settings, **params)
    with pytest.warns(ConvergenceWarning, match="did not reach"):
        ours.fit(X, y)
    return ours, GaussianProcessRegressor(kernel, optimizer=None).fit(X, y), X, y, new


@pytest.mark.parametrize(("n", "atol"), [(200, 1e-9), (900, 0.05)])
def test_neighbours_correct_the_mean_of_a_solve_that_ended_early(n, atol):
    """200 rows are all neighbours of each other, whose process is that of all rows."""
    ours, exact, _, _, new = early(n, 2, random_state=0)
    assert "the 256 nearest rows correct the mean" in str(ours.fit_report_)
    mean, std = ours.predict(new, return_std=True)
    expected = exact.predict(new, return_std=True)
    np.testing.assert_allclose(mean, expected[0], atol=atol)
    np.testing.assert_allclose(std, expected[1], atol=atol)
    np.testing.assert_allclose(ours.predict(new), mean, atol=1e-12)
    # The weights alone are far away.
    cross = exact.kernel_(new, exact.X_train_)
    assert np.abs(cross @ ours.alpha_ - expected[0]).max() > 0.3
    draws = ours.sample_y(new, 2000, random_state=0)
    assert np.abs(draws.mean(1) - mean).max() < 0.05


def test_leave_one_out_after_a_solve_that_ended_early():
    ours, exact, X, y, _ = early(200, 2, random_state=0)
    inverse = np.linalg.inv(exact.kernel_(X))
    expected = y - inverse @ y / np.diag(inverse)
    found = fitted_process(ours).left_out(X, y, None, np.arange(200))
    np.testing.assert_allclose(found.mean, expected, atol=1e-6)
    np.testing.assert_allclose(found.variance, 1 / np.diag(inverse), rtol=1e-6)


@pytest.mark.parametrize("n", [200, 600])
def test_modules_and_functions_after_a_solve_that_ended_early(n):
    """More rows than the 256 nearest, and fewer, with the noise in units of the target."""
    ours, _, _, _, new = early(n, 2, random_state=0, normalize_y=True)
    rows, (mean, std) = torch.tensor(new), ours.predict(new, return_std=True)
    for found in (to_torch(ours)(rows), to_torch(ours, return_std=False)(rows)):
        values = found if isinstance(found, tuple) else (found,)
        for value, expected in zip(values, (mean, std), strict=False):
            np.testing.assert_allclose(value.numpy(), expected, atol=1e-9)
    # A solve to the end draws the functions around this mean.
    found = draw_functions(ours, 2000, random_state=0).values(new)
    assert np.abs(found.mean(1) - mean).max() < 0.05


def test_files_and_pickles_keep_what_neighbours_correct(tmp_path):
    ours, _, _, _, new = early(300, 2, random_state=0)
    expected = ours.predict(new)
    save(ours, tmp_path / "model")
    for again in (pickle.loads(pickle.dumps(ours)), load(tmp_path / "model")):
        np.testing.assert_allclose(again.predict(new), expected, atol=1e-12)
    # A later fit that ends well forgets it.
    again = ours.set_params(solver_max_epochs=500).fit(ours.X_train_, ours.y_train_)
    assert again._residual is None
