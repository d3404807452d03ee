"""Relevance vector machines: large dictionaries, kernels of any diagonal, targets without noise."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, Matern, WhiteKernel

from skscalablegp import QSRVMRegressor
from skscalablegp.core.posteriors import FeatureWeights
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.sampled._basis import KernelFunctions
from skscalablegp.models.sampled._process import ProcessMap, pivots


def sinc(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (n, 1))
    return X, np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(n)


def test_large_dictionaries_shrink_by_steps(thresholds):
    thresholds("sampled", EXACT_DICTIONARY=100, _ROUNDS=3)
    X, y = sinc(150)
    model = QSRVMRegressor(n_components=150, control_variate_rank=50, random_state=0).fit(X, y)
    assert "0 rounds" not in model.fit_report_.summary
    assert 1 <= len(model.relevance_) <= 100
    error = model.predict(X) - np.sinc(X[:, 0] / np.pi)
    assert np.sqrt(np.mean(error**2)) < 0.06


@pytest.mark.parametrize(
    "kernel",
    [DotProduct(1.0, "fixed"), DotProduct(0.5) + RBF(), ConstantKernel(4.0) * RBF() * DotProduct()],
)
def test_predictions_are_the_weighted_sum_of_functions_that_are_1_at_their_own_row(kernel):
    rng = np.random.RandomState(4)
    X = rng.uniform(1, 3, (60, 1))
    y = 2 * X[:, 0] + 1 + 0.1 * rng.randn(60)
    settings = dict(optimizer=None, standardize=False, n_components=60, random_state=0)
    model = QSRVMRegressor(kernel + WhiteKernel(0.01), **settings).fit(X, y)
    Z = model.relevance_vectors_
    functions = kernel(X, Z) / kernel.diag(Z)
    assert_allclose(model.predict(X), functions @ model.coef_[:, 0], rtol=1e-8)
    H = functions.T @ functions / model.noise_variance_ + np.diag(model.precision_ / np.mean(y**2))
    expected = np.linalg.solve(H, functions.T @ y / model.noise_variance_)
    assert_allclose(functions @ model.coef_[:, 0], functions @ expected, rtol=1e-6)
    assert model.score(X, y) > 0.9


def test_units_of_the_target_do_not_matter():
    X, y = sinc(100)
    found = []
    for unit in (1.0, 1e-6, 1e6):
        model = QSRVMRegressor(random_state=0).fit(X, unit * y)
        found.append(np.array(model.predict(X, return_std=True)) / unit)
    for scaled in found[1:]:
        assert_allclose(scaled, found[0], rtol=1e-3, atol=1e-4)


def test_a_callback_ends_the_rounds(thresholds):
    thresholds(EXACT_DICTIONARY=60)
    X, y = sinc(150)
    settings = dict(control_variate_rank=50, random_state=0)
    model = QSRVMRegressor(
        callbacks=lambda step: step.stage == "batches" and step.iteration > 2, **settings
    ).fit(X, y)
    assert model.fit_report_.status == "callback"
    assert model.history_["stage"].count("batches") == 3
    assert len(model.relevance_) <= 60 and model.score(X, y) > 0.5


def perturbed(X, y):
    """The rows in another order, with digits that rounding could have changed."""
    rng = np.random.default_rng(1)
    rows = rng.permutation(len(X))
    X = X * (1 + 1e-12 * rng.standard_normal(X.shape))
    return X[rows], (y * (1 + 1e-12 * rng.standard_normal(y.shape)))[rows]


@pytest.mark.parametrize(("n", "noise"), [(100, 0.0), (199, 1e-8), (200, 0.0), (201, 1e-4)])
def test_few_functions_describe_a_target_without_noise(n, noise):
    rng = np.random.default_rng(2)
    X, Z = rng.uniform(-10, 10, (n, 1)), np.linspace(-9.5, 9.5, 1000)[:, None]
    y = np.sinc(X[:, 0] / np.pi) + noise * rng.standard_normal(n)
    for rows in ((X, y), perturbed(X, y)):
        model = QSRVMRegressor(n_components=n, random_state=0).fit(*rows)
        mean, std = model.predict(Z, return_std=True)
        error = np.sqrt(np.mean((mean - np.sinc(Z[:, 0] / np.pi)) ** 2))
        assert len(model.relevance_) < 25
        # The second error is that of 13 weights, and of functions that noise hides.
        assert error < np.hypot(1e-4 * np.std(y), noise * (50 / n) ** 0.5)
        assert 0.2 * error < np.median(std) < 1e-3 * np.std(y) + 5 * noise


def test_rough_functions_of_a_target_without_noise_are_as_many_after_a_perturbation():
    X = np.linspace(-10, 10, 200)[:, None]
    y = np.sinc(X[:, 0] / np.pi)
    kernel = ConstantKernel(7.0) * Matern(2.2, nu=1.5) + WhiteKernel(1e-5)
    settings = dict(optimizer=None, n_components=200, normalize_y=True, random_state=0)
    numbers = []
    for rows in ((X, y), perturbed(X, y), (X[::-1], y[::-1])):
        model = QSRVMRegressor(kernel, **settings).fit(*rows)
        numbers.append(len(model.relevance_))
        assert np.abs(model.predict(X) - y).max() < 1e-3
    assert max(numbers) < 100 and max(numbers) - min(numbers) < 10


def test_variances_do_not_depend_on_a_factor_that_exists_by_accident():
    """Of points that determine each other; some of their matrices have a factor of rounding."""
    none = FeatureWeights(1e3 * torch.eye(64).double(), torch.zeros(64, 1).double())
    for lengths in ([1.0, 5.0], [0.6, 10.0]):
        kernel = compile_kernel(ConstantKernel(0.06) * RBF(lengths) + WhiteKernel(0.9), 2)
        for seed in range(60):
            X = torch.tensor(np.random.default_rng(seed).standard_normal((84, 2)))
            process = ProcessMap(KernelFunctions(kernel, X[:64]), 0.9)
            variance = process.posterior(none).moments(X).variance
            assert float(variance[:64].max()) < 1e-5 and float(variance.max()) < 0.061


def test_pivots_leave_no_row_open():
    X = np.random.default_rng(0).uniform(-2, 2, (150, 2))
    kernel = ConstantKernel(2.0) * Matern(2.0, nu=2.5)
    for tol in (1e-1, 1e-3):
        rows, left = pivots(compile_kernel(kernel, 2), torch.tensor(X), 150, tol)
        K = kernel(X)
        open_ = K - K[:, rows] @ np.linalg.solve(K[np.ix_(rows, rows)], K[rows])
        assert left <= tol and open_.diagonal().max() <= tol * 1.001
        assert len(rows) == len(set(rows.tolist())) < 150
    assert len(pivots(compile_kernel(kernel, 2), torch.tensor(X), 20, 1e-9)[0]) == 20
