"""The table of solvers; each row goes through the whole contract."""

import pytest
from contracts.solver_contract import SolverContract, SolverRow

from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import CG, Cholesky

ROWS = [
    SolverRow("cg", lambda: CG()),
    SolverRow("cg-pivoted", lambda: CG(PivotedCholesky(rank=10))),
    SolverRow("cg-rpcholesky", lambda: CG(PivotedCholesky(rank=10, randomized=True))),
    SolverRow("cg-nystrom", lambda: CG(Nystrom(rank=10, random_state=0))),
    SolverRow("cg-refreshed", lambda: CG("pivoted_cholesky", residual_refresh=5)),
    SolverRow("cholesky", lambda: Cholesky(), direct=True),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
class TestSolvers(SolverContract):
    pass
