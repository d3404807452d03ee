"""MeanFunctionRegressor: a Gaussian process of the residuals of another regressor."""

import time

import numpy as np
import pandas as pd
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    MeanFunctionRegressor,
    PoERegressor,
    RFFRegressor,
)
from skscalablegp.core import fitted_process
from skscalablegp.core.training import StopTraining
from skscalablegp.kernels import Columns
from skscalablegp.solvers import End

KERNEL = ConstantKernel(1.0) * RBF(0.3) + WhiteKernel(0.05)


class Known(RegressorMixin, BaseEstimator):
    """Knows the trend and learns nothing."""

    def fit(self, X, y):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return 5 * X[:, 0]


def table(n=100, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, 5 * X[:, 0] + np.sin(9 * X[:, 1]) + 0.2 * rng.standard_normal(n)


def process():
    return IterativeGPRegressor(KERNEL, optimizer=None, normalize_y=False, random_state=0)


def test_equals_the_process_of_what_is_left():
    X, y = table()
    X_new, _ = table(7, seed=1)
    model = MeanFunctionRegressor(process(), Known(), random_state=0).fit(X, y)
    alone = GaussianProcessRegressor(KERNEL, optimizer=None).fit(X, y - 5 * X[:, 0])
    mean, cov = alone.predict(X_new, return_cov=True)
    seen = model.predict(X_new, return_cov=True)
    np.testing.assert_allclose(seen[0], mean + 5 * X_new[:, 0], rtol=1e-6)
    np.testing.assert_allclose(seen[1], cov, atol=1e-6)
    middle = model.predict_quantiles(X_new, 0.5)
    np.testing.assert_allclose(middle, seen[0], rtol=1e-6)
    draws = model.sample_y(X_new, 4000)
    np.testing.assert_allclose(draws.mean(1), seen[0], atol=5 * np.sqrt(cov.max() / 4000))


class Remembers(RegressorMixin, BaseEstimator):
    """Says 1 of rows that it was fitted to, and 0 of others."""

    def fit(self, X, y):
        self.seen_ = {tuple(row) for row in X}
        return self

    def predict(self, X):
        return np.array([float(tuple(row) in self.seen_) for row in X])


@pytest.mark.exact_input
def test_the_process_sees_what_the_mean_function_has_not():
    X, y = table()
    model = MeanFunctionRegressor(process(), Remembers(), n_folds=4).fit(X, y)
    np.testing.assert_array_equal(model.estimator_.y_train_, y)
    np.testing.assert_allclose(model.predict(X), model.estimator_.predict(X) + 1)


def test_rows_are_left_out_of_both():
    X, y = table(40)
    model = MeanFunctionRegressor(process(), Known()).fit(X, y)
    left = fitted_process(model).left_out(X, y, None, np.array([3, 20]))
    kept = np.arange(40) != 20
    without = clone(model).fit(X[kept], y[kept]).predict(X[[20]], return_std=True)
    np.testing.assert_allclose((left.mean[1], left.std[1]), np.ravel(without), rtol=1e-5)


def test_noise_weighs_rows_of_the_mean_function():
    X, y = table(200)
    y[:100] += 20 * np.random.default_rng(1).standard_normal(100)
    noise = np.where(np.arange(200) < 100, 400.0, 0.04)
    linear = LinearRegression()
    plain = MeanFunctionRegressor(process(), linear).fit(X, y).mean_function_
    told = MeanFunctionRegressor(process(), linear).fit(X, y, noise_variance=noise).mean_function_
    assert abs(told.coef_[0] - 5) < 0.5 < abs(plain.coef_[0] - 5)


@pytest.mark.slow
def test_noise_that_depends_on_the_row_goes_on_top():
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(300, 1))
    y = 10 * (X[:, 0] > 0.5) + np.sin(9 * X[:, 0]) + (0.05 + X[:, 0]) * rng.standard_normal(300)
    below = MeanFunctionRegressor(RFFRegressor(), HistGradientBoostingRegressor(max_iter=30))
    model = HeteroscedasticRegressor(below, n_refits=1, random_state=0).fit(X, y)
    assert model.fit_report_.choices["residuals"].value == "leave_one_out"
    low, high = model.predict_std([[0.05], [0.95]])
    assert high > 3 * low


def test_both_regressors_may_name_columns():
    X, y = table(60)
    frame = pd.DataFrame(X, columns=["a", "b"])
    kernels = [Columns(RBF(), [name]) + WhiteKernel() for name in "ab"]
    mean, left = (RFFRegressor(kernel, random_state=0) for kernel in kernels)
    named = MeanFunctionRegressor(left, mean, random_state=0).fit(frame, y)
    for model, column in ((mean, 0), (left, 1)):
        model.set_params(kernel=Columns(RBF(), [column]) + WhiteKernel())
    numbered = MeanFunctionRegressor(left, mean, random_state=0).fit(X, y)
    np.testing.assert_array_equal(named.predict(frame), numbered.predict(X))


def test_the_process_is_one_of_this_package():
    X, y = table()
    with pytest.raises(TypeError, match="estimator must be a regressor of skscalablegp, got Lin"):
        MeanFunctionRegressor(LinearRegression()).fit(X, y)


def test_a_short_budget_takes_fewer_folds():
    class Slow(LinearRegression):
        fits = 0

        def fit(self, X, y, sample_weight=None):
            type(self).fits += 1
            time.sleep(0.2)
            return super().fit(X, y, sample_weight)

    X = np.linspace(0, 1, 60)[:, None]
    y = 5 * X[:, 0] + 0.1 * np.sin(20 * X[:, 0])
    model = MeanFunctionRegressor(mean_function=Slow(), max_seconds=1.0, random_state=0).fit(X, y)
    # One on all rows, and half of the 0.8 seconds that are left for two folds.
    assert Slow.fits == 3
    assert "n_folds" in model.fit_report_.ignored
    assert np.isfinite(model.predict(X)).all()


def test_trees_are_left_out_where_they_only_roughen_the_errors():
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (150, 1))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(150)
    model = MeanFunctionRegressor(n_folds=2, random_state=0).fit(X, y)
    assert model.weight_ == 0 == model.fit_report_.choices["weight"].value
    alone = PoERegressor(random_state=model.estimator_.random_state).fit(X, y)
    np.testing.assert_allclose(model.predict_std(X), alone.predict_std(X))
    np.testing.assert_allclose(model.predict(X), alone.predict(X))


def test_trees_stay_where_they_know_more():
    # A staircase, which a process of long length scales cannot follow.
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(400, 10))
    y = np.floor(8 * X[:, 0]) % 2 + 0.05 * rng.standard_normal(400)
    smooth = PoERegressor(kernel=RBF(3.0, "fixed") + WhiteKernel(0.1))
    model = MeanFunctionRegressor(smooth, n_folds=2, random_state=0).fit(X, y)
    assert model.weight_ == 1
    X_new = rng.uniform(size=(100, 10))
    wrong = np.floor(8 * X_new[:, 0]) % 2 - model.predict(X_new)
    assert np.mean(wrong**2) < 0.1


@pytest.mark.parametrize(
    ("error", "budget", "status"),
    [
        (KeyboardInterrupt(), None, "interrupted"),
        (StopTraining(End.MAX_SECONDS), 100.0, "max_seconds"),
        (TimeoutError("no time"), 100.0, "max_seconds"),
        (TimeoutError("no time of its own"), None, "completed"),
        (MemoryError("no memory"), 100.0, "completed"),
    ],
)
def test_a_second_fit_that_fails_leaves_the_first(error, budget, status):
    class Fails(PoERegressor):
        fits = 0

        def fit(self, X, y, noise_variance=None):
            type(self).fits += 1
            if self.fits > 1:
                raise error
            return super().fit(X, y, noise_variance)

    X, y = table()
    model = MeanFunctionRegressor(Fails(), n_folds=2, max_seconds=budget, random_state=0)
    with pytest.warns(ConvergenceWarning, match=str(error) if status == "completed" else status):
        model.fit(X, y)
    assert Fails.fits == 2 and model.weight_ == 0
    report = model.fit_report_
    assert report.status == (
        status if status != "completed" else model.estimator_.fit_report_.status
    )
    assert np.isfinite(model.predict_std(X)).all()


def test_half_a_mean_function():
    X, y = table()
    model = MeanFunctionRegressor(process(), Known(), weight=0.5, random_state=0).fit(X, y)
    by_hand = process().fit(X, y - 2.5 * X[:, 0])
    np.testing.assert_allclose(model.predict(X), by_hand.predict(X) + 2.5 * X[:, 0])
    assert model.weight_ == 0.5
