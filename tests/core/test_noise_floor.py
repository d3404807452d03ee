"""Functions without noise: the lower bound of the noise is dropped where it pays."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor, NNGPRegressor, SGPRRegressor, SVGPRegressor

LOW, LOWER = 1e-4, 1e-7


def smooth(n, seed=0):
    X = np.random.default_rng(seed).random((n, 2))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] ** 2


def nll(model, X, y):
    mean, std = model.predict(X, return_std=True)
    return np.mean(np.log(std) + 0.5 * ((y - mean) / std) ** 2)


def noise_of(model):
    """The noise level and its lower bound."""
    white = model.kernel_.k2
    return white.noise_level, white.noise_level_bounds[0]


@pytest.mark.parametrize(
    "estimator", [IterativeGPRegressor, NNGPRegressor, SGPRRegressor, SVGPRegressor]
)
def test_smooth_functions_without_noise(estimator):
    X, y = smooth(200)
    X_new, y_new = smooth(1000, 1)
    model = estimator(random_state=0).fit(X, y)
    level, low = noise_of(model)
    assert_allclose(low, LOWER, rtol=1e-6)
    assert level < LOW / 10
    # The optimum with the usual bound, by scikit-learn.
    given = model.kernel_.k1 + WhiteKernel(LOW, (LOW, 1.0))
    with pytest.warns(ConvergenceWarning, match="lower bound"):
        bounded = GaussianProcessRegressor(given, normalize_y=True, alpha=1e-10).fit(X, y)
    assert nll(model, X_new, y_new) < nll(bounded, X_new, y_new) - 1
    # With all rows as inducing points, the lower bound is the likelihood.
    sparse = hasattr(model, "lower_bound_")
    value = model.lower_bound_ if sparse else model.log_marginal_likelihood_value_
    assert value > bounded.log_marginal_likelihood_value_ + 50
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True).fit(X, y)
    likelihood = exact.log_marginal_likelihood(model.kernel_.theta)
    assert_allclose(value, likelihood, rtol=1e-3)
    assert_allclose(model.predict(X_new), exact.predict(X_new), atol=1e-4)
    report = model.fit_report_
    assert report.status == "converged" and not report.warnings
    # It says that there is no noise, and gives no advice about bounds that are not the user's.
    said = report.at_bounds["k2__noise_level 0"]
    assert "1e-07" in said and "no noise" in said and "fit again" not in str(report)


@pytest.mark.slow
def test_some_rows_stand_for_those_of_a_larger_table(thresholds):
    X, y = smooth(400)
    X_new, y_new = smooth(1000, 1)
    thresholds("_noise_floor", _MOST_ROWS=300, _SOME_ROWS=200)
    model, bounded = IterativeGPRegressor(random_state=0).fit(X, y), IterativeGPRegressor()
    thresholds("_noise_floor", _LOWER=1.0)
    bounded.set_params(random_state=0).fit(X, y)
    assert noise_of(model)[0] < LOW / 10
    assert nll(model, X_new, y_new) < nll(bounded, X_new, y_new) - 1
    # The rows of the likelihood were few, those of the process all.
    assert len(model.X_train_) == 400
    exact = GaussianProcessRegressor(model.kernel_, optimizer=None, normalize_y=True).fit(X, y)
    assert_allclose(model.predict(X_new), exact.predict(X_new), atol=1e-4)


@pytest.mark.filterwarnings("ignore:The optimal value found")
def test_steps_keep_the_bound():
    X = np.random.default_rng(2).random((400, 1))
    model = IterativeGPRegressor(random_state=0).fit(X, np.floor(3 * X[:, 0]))
    assert_allclose(noise_of(model), LOW, rtol=0.02)


def test_noise_keeps_the_bound():
    X, y = smooth(200)
    y = y + 0.1 * np.random.default_rng(2).standard_normal(200)
    level, low = noise_of(IterativeGPRegressor(random_state=0).fit(X, y))
    assert_allclose(low, LOW)
    assert 0.005 < level < 0.1


@pytest.mark.filterwarnings("ignore:The optimal value found")
@pytest.mark.parametrize("known", ["kernel", "noise_variance", "repeats"])
def test_bounds_of_others_are_theirs(known):
    X, y = smooth(150)
    kernel, noise = None, None
    if known == "kernel":
        kernel = ConstantKernel() * Matern(nu=1.5) + WhiteKernel(1.0, (LOW, 10.0))
    elif known == "noise_variance":
        noise = np.full(150, 1e-3)
    else:
        X, y = np.vstack([X, X]), np.concatenate([y, y])
    model = IterativeGPRegressor(kernel, random_state=0).fit(X, y, noise_variance=noise)
    assert_allclose(noise_of(model)[1], LOW)


@pytest.mark.slow
def test_time_ends_the_descent():
    """Whatever step ends the fit, the kernel's bounds hold for its values."""
    X, y = smooth(150)
    whole = IterativeGPRegressor(random_state=0).fit(X, y)
    for last in range(1, whole.fit_report_.n_iter, 4):
        seen = []

        def stop(state, last=last, seen=seen):
            seen.append(state)
            return len(seen) >= last

        model = IterativeGPRegressor(random_state=0, callbacks=stop).fit(X, y)
        level, low = noise_of(model)
        assert level >= low * (1 - 1e-9)
        assert np.isfinite(model.predict(X, return_std=True)).all()
