"""Time budgets of fits by linear solves, whose products and preconditioners take most of it."""

import numpy as np
import pytest
from sklearn.exceptions import ConvergenceWarning

from skscalablegp import IterativeGPRegressor
from skscalablegp._clock import clock
from skscalablegp.linalg.operators import KernelOperator

N = 2000


@pytest.fixture
def seconds(monkeypatch):
    """A clock that products with all rows move, by what they take on 20,000 rows."""
    passed = [0.0]

    def slowly(name, price):
        function = getattr(KernelOperator, name)

        def slow(self, *args, **kwargs):
            passed[0] += price(*args) * self.shape[0] / N
            return function(self, *args, **kwargs)

        monkeypatch.setattr(KernelOperator, name, slow)

    slowly("matmul", lambda *args: 0.5)
    slowly("bilinear_grad", lambda *args: 1.5)
    slowly("rows", lambda some, *args: 0.005 * len(some))
    with clock(lambda: passed[0]):
        yield passed


@pytest.mark.parametrize(
    "model",
    [
        IterativeGPRegressor(solver="cg"),
        IterativeGPRegressor(solver="cg", subset_size=200),
        IterativeGPRegressor(solver="cg", posterior="pathwise"),
        IterativeGPRegressor(solver="cg", posterior="neighbors"),
        IterativeGPRegressor(solver="block_cg", train_on="subsets", posterior="pathwise"),
    ],
    ids=str,
)
def test_every_path_ends_by_the_budget(model, seconds):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y = np.sin(X.sum(1)) + 0.3 * rng.standard_normal(N)
    model.set_params(max_seconds=5.0, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, y)
    assert seconds[0] < 1.2 * 5.0
    truth = np.sin(X[:20].sum(1))
    assert np.mean((truth - model.predict(X[:20])) ** 2) < 0.5 * np.var(truth)
