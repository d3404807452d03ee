"""Time budgets of fits by linear solves, whose products and preconditioners take most of it."""

import numpy as np
import pytest
from inside import clock
from sklearn.exceptions import ConvergenceWarning

from skscalablegp import IterativeGPRegressor
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


def case(quick=False, **settings):
    marks = () if quick else pytest.mark.slow
    return pytest.param(settings, id="-".join(map(str, settings.values())), marks=marks)


@pytest.mark.parametrize(
    "settings",
    [
        case(solver="cg"),
        case(solver="cg", subset_size=200, quick=True),
        case(solver="cg", posterior="pathwise", quick=True),
        case(solver="cg", posterior="neighbors"),
        case(solver="block_cg", train_on="subsets", posterior="pathwise"),
    ],
)
def test_every_path_ends_by_the_budget(settings, seconds):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((N, 3))
    y = np.sin(X.sum(1)) + 0.3 * rng.standard_normal(N)
    model = IterativeGPRegressor(max_seconds=5.0, random_state=0, **settings)
    with pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, y)
    assert seconds[0] < 1.2 * 5.0
    truth = np.sin(X[:20].sum(1))
    assert np.mean((truth - model.predict(X[:20])) ** 2) < 0.5 * np.var(truth)


def test_subsets_leave_half_of_the_time_for_the_first_solve():
    """A step takes a second, and the subset would take more than three."""
    passed = [0.0]

    def step(_):
        passed[0] += 1.0

    X = np.random.default_rng(0).standard_normal((300, 3))
    settings = {"solver": "cg", "subset_size": 100, "max_seconds": 4.0, "callbacks": step}
    model = IterativeGPRegressor(random_state=0, **settings)
    with clock(lambda: passed[0]), pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, np.sin(X.sum(1)))
    assert passed[0] == 2.0
