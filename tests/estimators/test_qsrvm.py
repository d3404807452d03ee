"""Relevance vector machines: large dictionaries, kernels of any diagonal."""

import numpy as np

from skscalablegp import QSRVMRegressor
from skscalablegp.estimators import _qsrvm


def sinc(n=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (n, 1))
    return X, np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(n)


def test_large_dictionaries_shrink_by_steps(monkeypatch):
    monkeypatch.setattr(_qsrvm, "_EXACT", 100)
    X, y = sinc(150)
    model = QSRVMRegressor(control_variate_rank=50, random_state=0).fit(X, y)
    assert "0 rounds" not in model.solver_info_["plan"]
    assert 1 <= len(model.relevance_) <= 100
    error = model.predict(X) - np.sinc(X[:, 0] / np.pi)
    assert np.sqrt(np.mean(error**2)) < 0.06
