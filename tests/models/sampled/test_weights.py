"""Weights of rows in sampled models, against repeated rows that differ too much to be merged."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from scipy.stats import multivariate_normal
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPClassifier, QSGPRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Gaussian
from skscalablegp.linalg.gradients import Rows
from skscalablegp.models.sampled import (
    Dictionary,
    Fit,
    NoiseAtRows,
    SeededFourier,
    SupportRows,
    support_gram,
)
from skscalablegp.models.sampled._relevance import whole_model
from skscalablegp.models.sampled._steps import _first_weights

SMOOTH = ConstantKernel(1.5) * RBF([0.8, 1.2])
KERNEL = SMOOTH + WhiteKernel(0.1)
FIXED = {"kernel": KERNEL, "optimizer": None, "random_state": 0, "standardize": False}
POINTS = np.random.default_rng(2).normal(size=(12, 2))
# Fits of few steps say that they have not converged.
pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")


def table(n=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + 0.3 * rng.normal(size=n), rng.integers(1, 5, size=n)


def apart(X, y, weights):
    """The repeated rows, each moved a little."""
    X, y = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    return X + 1e-8 * np.random.default_rng(1).normal(size=X.shape), y


@pytest.mark.parametrize(
    "model",
    [
        QSGPRegressor(basis=POINTS, **FIXED),
        QSGPRegressor(n_components=30, **FIXED),
        QSGPRegressor(n_components=30, likelihood="laplace", **FIXED),
        QSGPClassifier(n_components=30, **FIXED),
        QSGPClassifier(basis=POINTS, **FIXED),
    ],
    ids=["functions", "features", "laplace", "classes", "classes-of-functions"],
)
def test_full_batches_with_weights_are_those_of_all_rows(model):
    X, y, weights = table()
    y = y > 0 if isinstance(model, QSGPClassifier) else y
    weighted = clone(model).fit(X, y, sample_weight=weights)
    whole = clone(model).fit(*apart(X, y, weights))
    assert weighted.inference_ == "exact" and whole.n_samples_seen_ == weights.sum()
    assert_allclose(weighted.lower_bound_, whole.lower_bound_, rtol=1e-4)
    at = X + 0.1
    if isinstance(model, QSGPClassifier):
        got, want = (m.latent_mean_and_variance(at) for m in (weighted, whole))
        assert_allclose(np.c_[got], np.c_[want], atol=2e-4)
        return
    assert_allclose(weighted.predict(at), whole.predict(at), atol=2e-4)
    assert_allclose(weighted.predict_std(at), whole.predict_std(at), rtol=1e-4)


def test_the_bound_of_all_functions_is_the_likelihood_of_all_rows():
    X, y, weights = table()
    model = QSGPRegressor(basis="rows", normalize_y=False, **FIXED)
    model.fit(X, y, sample_weight=weights)
    rows, targets = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    H = SMOOTH(rows) + 0.1 * np.eye(len(rows))
    expected = multivariate_normal(np.zeros(len(rows)), H).logpdf(targets)
    assert_allclose(model.lower_bound_, expected, rtol=1e-5)
    mean = SMOOTH(X + 0.1, rows) @ np.linalg.solve(H, targets)
    assert_allclose(model.predict(X + 0.1), mean, atol=1e-4)


STEPS = {"inference": "stochastic", "dtype": "float64", "max_iter": 400, "n_iter_no_change": None}


@pytest.mark.parametrize("batch_size", [40, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"n_components": 40, "n_dense": 0}, marks=pytest.mark.slow),
        {"basis": "rows"},
    ],
    ids=["features", "functions"],
)
def test_steps_with_weights_find_the_mean_of_all_rows(settings, batch_size):
    X, y, weights = table()
    # A weight that no estimate may miss.
    weights[3] = 30
    settings = FIXED | settings | {"normalize_y": False}
    steps = QSGPRegressor(batch_size=batch_size, decay=0.01, **STEPS, **settings)
    steps.fit(X, y, sample_weight=weights)
    exact = QSGPRegressor(inference="exact", **settings | {"n_dense": "auto"})
    exact.fit(X, y, sample_weight=weights)
    plain = clone(exact).fit(X, y)
    error = np.abs(steps.predict(X) - exact.predict(X)).max()
    assert error < 0.2 * np.abs(plain.predict(X) - exact.predict(X)).max()
    if batch_size == 40:
        assert error < 0.01


def test_variances_given_support_rows_count_their_weights():
    X, y, weights = table()
    model = QSGPRegressor(n_components=400, control_variate_rank=40, **STEPS | FIXED)
    model.set_params(max_iter=2, normalize_y=False).fit(X, y, sample_weight=weights)
    rows, at = np.repeat(X, weights, axis=0), X + 0.5
    H = SMOOTH(rows) + 0.1 * np.eye(len(rows))
    cross = SMOOTH(at, rows)
    variance = 1.5 - (cross * np.linalg.solve(H, cross.T).T).sum(1)
    assert_allclose(model.predict_std(at, include_noise=False) ** 2, variance, rtol=1e-5)
    # Of a stream of equal parts, each row stands for two.
    some = clone(model).partial_fit(X, y, sample_weight=weights)
    some.partial_fit(X, y, sample_weight=weights)
    assert some.n_samples_seen_ == 2 * weights.sum()
    H = SMOOTH(rows) + 0.05 * np.eye(len(rows))
    variance = 1.5 - (cross * np.linalg.solve(H, cross.T).T).sum(1)
    assert_allclose(some.predict_std(at, include_noise=False) ** 2, variance, rtol=1e-5)


def test_a_machine_that_keeps_all_functions_is_the_process_of_all_rows():
    X, y, weights = table()
    unit = Scaling(np.zeros(2), np.ones(2), np.zeros(1), np.ones(1))
    source = RowSource.of(X, y[:, None], unit, torch.float64, weight=weights)
    found = whole_model(Dictionary.of(compile_kernel(KERNEL, 2), source, np.arange(40), 1e4))
    rows, targets = np.repeat(X, weights, axis=0), np.repeat(y, weights)
    H = SMOOTH(rows) + 0.1 * np.eye(len(rows))
    expected = multivariate_normal(np.zeros(len(rows)), H).logpdf(targets)
    assert_allclose(found.weights.evidence, expected, rtol=1e-8)
    mean = SMOOTH(X, rows) @ np.linalg.solve(H, targets)
    assert_allclose(SMOOTH(X) / 1.5 @ found.weights.mean.numpy()[:, 0], mean, atol=1e-6)
    assert_allclose(found.weights.residual, (weights * (y - mean) ** 2).sum(), rtol=1e-6)
    variance = np.diag(SMOOTH(X) - SMOOTH(X, rows) @ np.linalg.solve(H, SMOOTH(rows, X)))
    phi = SMOOTH(X) / 1.5
    assert_allclose((phi @ found.weights.covariance.numpy() * phi).sum(1), variance, rtol=1e-4)


def test_dense_columns_begin_with_the_covariance_of_all_rows():
    """Columns of the inverse of I + phi' D phi / noise, with D the weights of the rows."""
    X, y, weights = (torch.as_tensor(a) for a in table())
    kernel, c, noise = compile_kernel(KERNEL, 2), 6, 0.1
    basis = SeededFourier(kernel, 20, 3, 4, torch.float64)
    rows = Rows.of(X, y[:, None], weight=weights)
    support = SupportRows(kernel, kernel.theta0, rows, rows.take(slice(7)))
    fit, head = Fit.__new__(Fit), c // 2
    fit.steps = SimpleNamespace(n_dense=SimpleNamespace(value=c), preconditioned=True)
    fit.t, fit.n, fit.past = 1, len(X), None
    likelihood = NoiseAtRows(Gaussian(), noise, 1 / noise)
    gram = support_gram(support, basis, skip=head)
    found = _first_weights(fit, basis, support, gram, likelihood, head)

    phi = basis.part(np.arange(basis.n_blocks)).evaluate(kernel.theta0, X).reshape(40, 2, 20)
    # Coordinates are numbered unit by unit.
    of_units = phi.permute(0, 2, 1).flatten(1)
    whole = of_units.repeat_interleave(weights, 0)
    columns = torch.linalg.inv(torch.eye(40).double() + whole.T @ whole / noise)[:, :c]
    columns = (columns / columns.diagonal().sqrt()).tril()
    got = found.coef[:, :, 1:].clone()
    got[:, head:] += torch.einsum("squ,sc->quc", phi[:, :, head:], found.shared[:, 1:])
    assert_allclose(got.permute(1, 0, 2).flatten(0, 1), columns, atol=1e-8)
    assert_allclose(found.a[:40, 1:], of_units @ columns, atol=1e-7)
