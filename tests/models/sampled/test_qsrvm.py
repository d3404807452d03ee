"""Relevance vector machines: large dictionaries, kernels of any diagonal."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, DotProduct, WhiteKernel

from skscalablegp import QSRVMRegressor
from skscalablegp.models.sampled import _qsrvm


def sinc(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (n, 1))
    return X, np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(n)


def test_large_dictionaries_shrink_by_steps(monkeypatch):
    monkeypatch.setattr(_qsrvm, "_EXACT", 100)
    monkeypatch.setattr(_qsrvm, "_ROUNDS", 3)
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


def test_a_callback_ends_the_rounds(monkeypatch):
    monkeypatch.setattr(_qsrvm, "_EXACT", 60)
    X, y = sinc(150)
    settings = dict(control_variate_rank=50, random_state=0)
    model = QSRVMRegressor(
        callbacks=lambda step: step.stage == "batches" and step.iteration > 2, **settings
    ).fit(X, y)
    assert model.fit_report_.status == "callback"
    assert model.history_["stage"].count("batches") == 3
    assert len(model.relevance_) <= 60 and model.score(X, y) > 0.5
