"""Time budgets of fits by linear solves, whose products and preconditioners take most of it."""

import numpy as np
import pytest
import torch
from inside import clock
from named import module
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import IterativeGPRegressor
from skscalablegp.core.training import Budget
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows
from skscalablegp.linalg.operators import KernelOperator
from skscalablegp.linalg.solvers import Solution
from skscalablegp.solvers import End

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


def rows_of_noise(n):
    X = torch.tensor(np.random.default_rng(0).standard_normal((n, 2)))
    return GPProblem(compile_kernel(RBF() + WhiteKernel(0.1), 2), Rows.of(X, X[:, :1]), keep=True)


@pytest.mark.parametrize(
    ("limit", "kept"), [(5.0, False), (14.4, False), (14.5, True), (None, True)]
)
def test_a_matrix_is_stored_if_that_takes_a_share_of_the_time(limit, kept, stand_in):
    """The matrix of all rows takes 2 s, 0.15 of 13.3 s, and that of 1,500 rows 1.1 s."""
    passed, problem = [0.0], rows_of_noise(N)

    def slow(self, out):
        passed[0] += 2.0 * (self.shape[0] / N) ** 2
        return out

    stand_in("KernelOperator._fill", slow)
    with clock(lambda: passed[0]):
        budget = Budget(limit)
        found = module("_stored_in_time")._stored_in_time(problem, problem.kernel.theta0, budget)
    assert found.keep == kept and (passed[0] == 0) == (limit is None)


def test_a_solve_leaves_time_for_the_errors_of_held_out_rows(stand_in):
    passed, problem = [0.0], rows_of_noise(50)
    solves = module("solve_without")

    def slow(*args):
        passed[0] += 0.6

    def solved(part, early):
        assert budget.reserved == 0.6
        weights = torch.zeros_like(part.Y)
        solution = Solution(weights, End.CONVERGED, torch.zeros(1), 1.0, 1)
        return solves.FinalSolve(solution, weights, None, 0.0, 0.0, False)

    stand_in("HeldOutErrors", slow)
    with clock(lambda: passed[0]):
        budget = Budget(5.0)
        given = problem.kernel.theta0, solved, budget
        solves.solve_without(torch.arange(3), problem, *given, ends_early=True)


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
