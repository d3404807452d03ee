"""Tables with hardly more rows than columns: what their rows can tell, and no more."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal, norm
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, QSGPRegressor
from skscalablegp.core import Run, data_scaled_kernel
from skscalablegp.core._wide import _Trials, is_wide, wide_start
from skscalablegp.core.training import Adam, Budget, Monitor, QuasiNewton, train
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import ExactGradient, GPProblem, Rows, fisher_information
from skscalablegp.priors import LogNormal


def table(n, d, matter, seed=0, fresh=500):
    """Rows with a smooth function of a rotation of some columns, or a steep one of them all."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n + fresh, d))
    if matter == "all":
        f = X @ rng.standard_normal(d) / np.sqrt(d)
        f = np.sin(1.5 * f) + f
    elif matter:
        f = np.sin(1.5 * X[:, 0]) + X[:, 1:matter].sum(1)
    else:
        f = np.zeros(len(X))
    y = f / max(f.std(), 1e-9) + 0.3 * rng.standard_normal(len(X))
    return X[:n] * np.arange(1, d + 1), y[:n], X[n:] * np.arange(1, d + 1), y[n:]


def problem_of(X, y, priors=None):
    y = (y - y.mean()) / y.std()
    kernel = compile_kernel(data_scaled_kernel(X, y), X.shape[1], priors=priors)
    zeros = torch.zeros(len(X), dtype=torch.float64)
    return GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y[:, None]), zeros))


def run(max_seconds=None):
    generator = torch.Generator().manual_seed(0)
    return Run(Monitor(budget=Budget(max_seconds)), generator, np.random.RandomState(0))


def isotropic(X, y, Z):
    """Scikit-learn's process with one length scale for standardised columns."""
    at, unit = X.mean(0), X.std(0)
    kernel = ConstantKernel() * Matern(X.shape[1] ** 0.5, nu=1.5) + WhiteKernel(0.3)
    process = GaussianProcessRegressor(kernel, n_restarts_optimizer=1, random_state=0)
    process.fit((X - at) / unit, (y - y.mean()) / y.std())
    mean, std = process.predict((Z - at) / unit, return_std=True)
    return mean * y.std() + y.mean(), std * y.std()


@pytest.mark.parametrize(
    ("shape", "matter", "gain"),
    [((60, 100), 1, 0.8), ((60, 100), "all", -0.02), ((60, 100), 0, -0.02)],
)
def test_wide_tables_are_predicted_as_well_as_by_one_length_scale(shape, matter, gain):
    # With one length scale for each column, the losses were 0.9 to 70 nats a row.
    X, y, Z, target = table(*shape, matter)
    model = IterativeGPRegressor().fit(X, y)
    loss = -norm.logpdf(target, *model.predict(Z, return_std=True)).mean()
    loss_of_one = -norm.logpdf(target, *isotropic(X, y, Z)).mean()
    assert loss < loss_of_one - gain


def test_columns_that_matter_have_their_own_length_scales():
    X, y, Z, target = table(100, 300, 3)
    model = IterativeGPRegressor().fit(X, y)
    loss = -norm.logpdf(target, *model.predict(Z, return_std=True)).mean()
    assert loss < 0.6  # That of the noise is 0.21, of one length scale 1.4.
    relative = model.kernel_.k1.k2.length_scale / X.std(0)
    assert set(np.argsort(relative)[:3]) == {0, 1, 2}
    # The others share one in units of their spread, which is robust, unlike the deviation.
    assert relative[3:].max() < 2 * relative[3:].min()
    assert "one value for 297 of 300 columns" in str(model.fit_report_)


def test_other_models_of_wide_tables_choose_columns_too():
    X, y, Z, target = table(60, 100, 1)
    model = QSGPRegressor().fit(X, y)
    loss = -norm.logpdf(target, *model.predict(Z, return_std=True)).mean()
    assert loss < 0.7


@pytest.mark.parametrize(
    ("n", "d", "priors", "wide"),
    [
        (60, 30, None, True),
        (61, 30, None, False),
        (29, 29, None, False),
        (60, 30, {"k1__k2__length_scale": LogNormal(5.0)}, False),
    ],
)
def test_which_tables_are_wide(n, d, priors, wide):
    X, y, *_ = table(n, d, 1)
    assert is_wide(problem_of(X, y, priors)) == wide


def test_trials_of_single_columns_are_likelihoods():
    X, y, *_ = table(20, 30, 1)
    problem = problem_of(X, y, {"k2__noise_level": LogNormal(0.1, 1.5)})
    theta = problem.kernel.theta0.numpy() + 1.0
    columns, own = np.array([0, 7]), np.log([1.3, 20.0])
    lengths = slice(1, 31)
    found = _Trials(problem, lengths, theta).values(columns, own)
    for j, length, value in zip(columns, own, found, strict=True):
        at = theta.copy()
        at[1 + j] = length
        H = problem.kernel.to_sklearn(torch.as_tensor(at))(X)
        expected = multivariate_normal(np.zeros(20), H).logpdf(problem.Y[:, 0].numpy())
        prior = norm.logpdf(at[-1], np.log(0.1), 1.5)
        assert_allclose(value, expected + prior, rtol=1e-9)


def test_without_time_the_start_is_the_given_one():
    X, y, *_ = table(60, 100, 1)
    problem = problem_of(X, y)
    theta = problem.kernel.theta0.numpy()
    start = wide_start(problem, theta, run(max_seconds=0.0))
    assert_allclose(start.theta, theta)
    # The constant, one length scale for all columns, and the noise.
    assert start.tied.tolist() == [0, *[1] * 100, 2]


def tied_problem():
    X, y, *_ = table(40, 5, 1)
    problem = problem_of(X, y, {"k2__noise_level": LogNormal(0.1, 1.5)})
    tied = np.array([0, 1, 2, 2, 2, 2, 3])
    return problem, tied


@pytest.mark.parametrize("optimizer", [QuasiNewton(1e-10), Adam(0.1, decay=0.01)])
def test_tied_hyperparameters_move_together_to_their_optimum(optimizer):
    problem, tied = tied_problem()
    theta = problem.kernel.theta0.numpy() + [0.0, 0.0, 1.1, 1.2, 1.3, 1.4, 0.0]
    generator = torch.Generator().manual_seed(0)
    result = train(
        replace(problem, tied=tied),
        ExactGradient(),
        optimizer,
        theta,
        problem.kernel.bounds.numpy(),
        max_iter=300,
        monitor=Monitor(),
        generator=generator,
    )
    moved = result.theta - theta
    assert_allclose(moved[2:6], moved[2], atol=1e-9)

    def value(at):
        H = problem.kernel.to_sklearn(torch.as_tensor(at))(problem.X.numpy())
        density = multivariate_normal(np.zeros(40), H).logpdf(problem.Y[:, 0].numpy())
        return density + norm.logpdf(at[-1], np.log(0.1), 1.5)

    for group in range(4):
        along = 1e-3 * (tied == group)
        ahead, behind, here = (value(result.theta + k * along) for k in (1, -1, 0))
        # The optimum of the parabola through three values is within ten steps.
        curvature = 2 * here - ahead - behind
        assert curvature > 0 and abs(ahead - behind) / (2 * curvature) < 10


def test_the_information_along_directions_is_that_of_the_closed_form():
    problem, tied = tied_problem()
    theta = problem.kernel.theta0
    along = torch.as_tensor(np.equal.outer(np.arange(4), tied), dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    found = fisher_information(problem, theta, 40, generator, along)
    H, slopes = problem.kernel.to_sklearn(theta)(problem.X.numpy(), eval_gradient=True)
    parts = [np.linalg.solve(H, slopes @ row) for row in along.numpy()]
    expected = [[0.5 * np.trace(a @ b) for b in parts] for a in parts]
    assert_allclose(found, expected, rtol=1e-4)
