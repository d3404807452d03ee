"""Default settings on small tables: approximate estimators compute the exact process."""

import pickle

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process import GaussianProcessRegressor

from skscalablegp import (
    BSGDDKLRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    MinimaxDKLRegressor,
    NNGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SSRFFRegressor,
)

DEEP = [SCGDDKLRegressor, MinimaxDKLRegressor, BSGDDKLRegressor]
CLASSES = [KISSGPRegressor, RFFRegressor, *DEEP]


def table(n=150):
    X, y = make_friedman1(n + 200, 5, noise=0.25, random_state=0)
    return X[:n], y[:n], X[n:], y[n:]


@pytest.fixture(scope="module")
def exact():
    X, y, X_new, _ = table()
    model = IterativeGPRegressor(solver="cholesky", random_state=0).fit(X, y)
    return model.predict(X_new, return_std=True)


@pytest.mark.parametrize("cls", CLASSES)
def test_defaults_are_the_exact_process(cls, exact):
    X, y, X_new, y_new = table()
    expected, deviation = exact
    model = cls(random_state=0).fit(X, y)
    assert "exact process of 150 rows" in str(model.fit_report_)
    for made in (model, pickle.loads(pickle.dumps(model))):
        mean, std = made.predict(X_new, return_std=True)
        assert_allclose(mean, expected, atol=2e-2 * y.std())
        assert_allclose(std, deviation, rtol=5e-2)
    assert 0.9 < np.mean(np.abs(y_new - mean) < 1.96 * std) < 0.99


@pytest.mark.parametrize(
    "cls", [DEEP[0], *(pytest.param(cls, marks=pytest.mark.slow) for cls in DEEP[1:])]
)
def test_a_stream_after_it_has_a_network(cls):
    X, y, X_new, y_new = table()
    model = cls(random_state=0).fit(X, y)
    assert model.coef_ is None and model.extract_features(X_new).shape == X_new.shape
    model.set_params(feature_extractor=(16,)).partial_fit(X_new, y_new)
    assert model.n_samples_seen_ == 350 and model.coef_.shape == (18, 1)
    assert np.isfinite(model.predict(X)).all()


@pytest.mark.parametrize("cls", [KISSGPRegressor, NNGPRegressor, RFFRegressor, SSRFFRegressor])
def test_its_likelihood_and_other_hyperparameters(cls):
    """Against scikit-learn, at the trained kernel and after `clone_kernel=False`."""
    X, y, X_new, _ = table(60)
    model = pickle.loads(pickle.dumps(cls(random_state=0).fit(X, y)))
    theta, target = model.kernel_.theta - 0.3, (y - y.mean()) / y.std()
    other = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(X, target)
    value, gradient = model.log_marginal_likelihood(theta, eval_gradient=True)
    expected = other.log_marginal_likelihood(theta, eval_gradient=True)
    assert_allclose(value, expected[0], rtol=1e-9)
    assert_allclose(gradient, expected[1], rtol=1e-6, atol=1e-8)
    model.log_marginal_likelihood(theta, clone_kernel=False)
    moved = GaussianProcessRegressor(model.kernel_, optimizer=None).fit(X, target)
    assert_allclose(moved.kernel_.theta, theta)
    mean, std = moved.predict(X_new, return_std=True)
    assert_allclose(model.predict(X_new), mean * y.std() + y.mean(), rtol=1e-7)
    assert_allclose(model.predict_std(X_new), std * y.std(), rtol=1e-7)


def test_rows_join_an_exact_process_without_a_grid():
    X, y, X_new, y_new = table()
    model = KISSGPRegressor().fit(X, y)
    kernel, offset, scale = model.kernel_, y.mean(), y.std()
    model.partial_fit(X_new, y_new)
    assert model.grid_ is None and model.n_samples_seen_ == 350 and model.kernel_ == kernel
    rows, target = np.vstack([X, X_new]), (np.append(y, y_new) - offset) / scale
    H = kernel(rows)
    expected = offset + scale * (kernel(X, rows) @ np.linalg.solve(H, target))
    assert_allclose(model.predict(X), expected, atol=1e-6 * scale)
    # A stream begins with a grid, however few rows there are, and a large table has one.
    assert KISSGPRegressor(optimizer=None).partial_fit(X, y).grid_ is not None
