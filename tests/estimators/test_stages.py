"""The stages of training: settings that fail before them, and what an interrupt leaves."""

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import IterativeGPRegressor
from skscalablegp.training import LBFGS


def table(n=60):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.1 * rng.standard_normal(n)


def kernel():
    return ConstantKernel(1.0) * RBF([1.0, 1.0]) + WhiteKernel(0.1)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"optimizer": "foo"}, "Unknown optimizer 'foo'"),
        ({"optimizer": "foo", "solver": "cg"}, "Unknown optimizer 'foo'"),
        ({"optimizer": "lbfgs", "solver": "cg"}, "optimizer='adam', or solver='cholesky'"),
        ({"optimizer": LBFGS(), "solver": "cg"}, "optimizer='adam', or solver='cholesky'"),
    ],
    ids=str,
)
def test_wrong_optimisers_fail_before_any_evaluation(settings, message):
    X, y = table()
    seen = []
    model = IterativeGPRegressor(kernel(), subset_size=20, callbacks=seen.append, **settings)
    with pytest.raises(ValueError, match=message):
        model.fit(X, y)
    assert seen == []


@pytest.mark.parametrize("optimizer", ["lbfgs", LBFGS()], ids=str)
def test_an_optimiser_that_needs_values_gets_them_whatever_the_rows(optimizer, monkeypatch):
    monkeypatch.setattr("skscalablegp.estimators._plan.EXACT_TRAINING_ROWS", {"cpu": 30})
    X, y = table()
    model = IterativeGPRegressor(kernel(), optimizer=optimizer, device="cpu").fit(X, y)
    assert model.solver_ == "cholesky"
