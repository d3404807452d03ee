"""A new solver is one class: an object of it works everywhere, a row in the table names it."""

from dataclasses import dataclass

import pytest
import torch
from contracts.solver_contract import SolverContract, SolverRow
from oracles import normal
from sklearn.gaussian_process.kernels import RBF, WhiteKernel

from skscalablegp import IterativeGPRegressor
from skscalablegp.linalg.operators import column_norms
from skscalablegp.linalg.solvers import (
    SOLVERS,
    Column,
    Solver,
    SolverState,
    first_guess,
    preconditioner_for,
    relative_norms,
    resolve_solver,
    true_residual,
)
from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import AP, CG, Cholesky


@dataclass(eq=False)
class RichardsonState(SolverState):
    pace: float = 0.0
    R: torch.Tensor = None


class Richardson(Solver):
    """x + 2 R / (largest + smallest eigenvalue)."""

    def init(self, operator, B, x0=None, preconditioner=None):
        x, b_norms = first_guess(B, x0), column_norms(B)
        columns = torch.zeros_like(b_norms, dtype=torch.long)
        state = RichardsonState(B, x, b_norms, b_norms, columns)
        H = operator.to_dense().double()
        if bool(H.isfinite().all()):
            values = torch.linalg.eigvalsh(H)
            state.pace = 2 / float(values[0] + values[-1])
        return self.check(operator, state)

    def step(self, operator, state):
        state.x += state.pace * true_residual(operator, state)
        state.iteration += 1
        return self.check(operator, state)

    def check(self, operator, state):
        state.residual_norms = relative_norms(true_residual(operator, state), state.b_norms)
        if not state.pace > 0:
            state.columns = torch.full_like(state.columns, Column.BROKEN)
        return state


ROW = SolverRow("richardson", Richardson, max_condition=50, max_epochs=50_000)


class TestRichardson(SolverContract, rows=[ROW]):
    pass


@pytest.mark.parametrize("by_name", [False, True])
def test_in_an_estimator(by_name, monkeypatch):
    monkeypatch.setitem(SOLVERS, "richardson", Richardson)
    X = normal(40, 2).numpy()
    y = X[:, 0] ** 2
    kernel = RBF(1.0) + WhiteKernel(1.0)
    settings = {"optimizer": None, "posterior": "solve", "solver_tol": 1e-6}
    solver = "richardson" if by_name else Richardson()
    ours, exact = (
        IterativeGPRegressor(kernel, solver=solver, **settings).fit(X, y).predict(X)
        for solver in (solver, "cholesky")
    )
    assert abs(ours - exact).max() < 1e-4
    with pytest.raises(ValueError, match="'richardson'"):
        resolve_solver("jacobi")


def test_the_preconditioner_of_a_solver():
    for name in ("cg", "block_cg"):
        auto = preconditioner_for(name)
        assert (auto.rank, auto.randomized) == (200, True)
    own = Nystrom(7)
    assert preconditioner_for(CG(own)) is own
    assert preconditioner_for(CG()) is None
    assert preconditioner_for(CG(own), None) is None
    assert isinstance(preconditioner_for(CG(own), "pivoted_cholesky"), PivotedCholesky)
    for solver in ("ap", AP(), Cholesky()):
        assert preconditioner_for(solver, own) is None
    with pytest.raises(ValueError, match="'ilu'"):
        preconditioner_for("ap", "ilu")
