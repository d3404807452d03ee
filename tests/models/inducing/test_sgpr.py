"""The collapsed bound as an estimator."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, SGPRRegressor
from skscalablegp.solvers import End

KERNEL = ConstantKernel(1.5) * Matern([0.8, 1.5], nu=1.5) + WhiteKernel(0.05)


def table(n=80, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * X[:, 1] + 0.2 * rng.standard_normal(n)


def test_trained_with_all_rows_it_is_the_exact_process():
    X, y = table()
    X_new = table(seed=1)[0]
    exact = GaussianProcessRegressor(KERNEL).fit(X, y)
    ours = SGPRRegressor(KERNEL).fit(X, y)
    assert_allclose(ours.lower_bound_, exact.log_marginal_likelihood_value_, rtol=1e-4)
    for a, b in zip(
        ours.predict(X_new, return_std=True), exact.predict(X_new, return_std=True), strict=True
    ):
        assert_allclose(a, b, atol=1e-2)


@pytest.mark.parametrize("m", [5, 20, 60])
def test_the_bound_is_below_the_likelihood_at_its_own_hyperparameters(m):
    X, y = table()
    ours = SGPRRegressor(KERNEL, n_inducing=m, random_state=0).fit(X, y)
    exact = GaussianProcessRegressor(ours.kernel_, optimizer=None).fit(X, y)
    assert ours.lower_bound_ < exact.log_marginal_likelihood_value_


def test_bound_and_gradient_by_finite_differences():
    X, y = table()
    model = SGPRRegressor(KERNEL, n_inducing=8, max_iter=3, random_state=0).fit(X, y)
    theta = model.kernel_.theta
    assert_allclose(model.lower_bound(theta), model.lower_bound())
    _, grad = model.lower_bound(theta, eval_gradient=True)
    for k in range(len(theta)):
        e = np.zeros_like(theta)
        e[k] = 1e-5
        ends = [model.lower_bound(theta + s * e) for s in (1, -1)]
        assert_allclose(grad[k], (ends[0] - ends[1]) / 2e-5, rtol=1e-4, atol=1e-4)
    with pytest.raises(ValueError, match="theta"):
        model.lower_bound(eval_gradient=True)


def test_points_that_move_raise_the_bound():
    X, y = table(200)
    settings = dict(n_inducing=6, inducing="kmeans++", random_state=0)
    held = SGPRRegressor(KERNEL, **settings).fit(X, y)
    moved = SGPRRegressor(KERNEL, optimize_inducing=True, **settings).fit(X, y)
    assert moved.lower_bound_ > held.lower_bound_ + 1
    assert np.abs(moved.inducing_points_ - held.inducing_points_).max() > 0.01


def test_rows_that_are_known_exactly_need_alpha():
    X, y = table()
    with pytest.raises(ValueError, match="needs noise in every row"):
        SGPRRegressor(Matern(), alpha=0.0).fit(X, y)
    assert SGPRRegressor(Matern(), alpha=0.01, n_inducing=30).fit(X, y).score(X, y) > 0.9


def test_restarts_that_fail_are_reported(stand_in):
    X, y = table()
    settings = dict(n_inducing=10, random_state=0)
    one = SGPRRegressor(KERNEL, **settings).fit(X, y)
    calls = []

    def failing(*args, **kwargs):
        calls.append(args)
        if len(calls) == 2:
            raise torch.linalg.LinAlgError
        result = train(*args, **kwargs)
        return result if len(calls) == 1 else replace(result, stop_reason=End.DIVERGED, value=-1e9)

    train = stand_in("train", failing, at="inducing")
    several = SGPRRegressor(KERNEL, n_restarts_optimizer=2, **settings).fit(X, y)
    assert several.lower_bound_ == one.lower_bound_
    assert several.fit_report_.failures == (
        "restart 1: no Cholesky factor at its start",
        "restart 2: training diverged",
    )


def test_restarts_keep_the_best():
    X, y = table()
    settings = dict(n_inducing=10, random_state=0)
    one = SGPRRegressor(KERNEL, **settings).fit(X, y)
    several = SGPRRegressor(KERNEL, n_restarts_optimizer=2, **settings).fit(X, y)
    assert several.lower_bound_ >= one.lower_bound_
    assert several.n_iter_ > one.n_iter_


@pytest.mark.slow
def test_small_tables_are_the_exact_process():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (600, 3))
    y = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(600)
    model = SGPRRegressor(random_state=0).fit(X, y)
    exact = IterativeGPRegressor(solver="cholesky", random_state=0).fit(X, y)
    assert model.inducing_points_ is None
    assert_allclose(model.kernel_.theta, exact.kernel_.theta, atol=1e-2)
    best = exact.log_marginal_likelihood_value_
    assert best - 1e-3 < model.lower_bound_ < best + 1e-3
    assert_allclose(model.predict(X[:50]), exact.predict(X[:50]), atol=1e-3)
    # The bound at other hyperparameters is the exact likelihood, too.
    theta = model.kernel_.theta - 0.2
    assert_allclose(model.lower_bound(theta), exact.log_marginal_likelihood(theta), rtol=1e-8)
