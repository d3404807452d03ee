"""The table of solvers; each row goes through the whole contract."""

from contracts.solver_contract import SolverContract, SolverRow

from skscalablegp.preconditioners import Nystrom, PivotedCholesky
from skscalablegp.solvers import ADASAP, AP, CG, SDD, SGD, BlockCG, Cholesky

ROWS = [
    SolverRow("cg", lambda: CG()),
    SolverRow("cg-pivoted", lambda: CG(PivotedCholesky(rank=10))),
    SolverRow("cg-rpcholesky", lambda: CG(PivotedCholesky(rank=10, randomized=True))),
    SolverRow("cg-nystrom", lambda: CG(Nystrom(rank=10, random_state=0))),
    SolverRow("cg-refreshed", lambda: CG(PivotedCholesky(rank=10), residual_refresh=5)),
    SolverRow("block-cg", lambda: BlockCG()),
    SolverRow("block-cg-rpcholesky", lambda: BlockCG(PivotedCholesky(rank=10, randomized=True))),
    SolverRow("cholesky", lambda: Cholesky(), direct=True),
    SolverRow("ap", lambda: AP(block_size=20), max_condition=1.5e3),
    SolverRow("ap-one-block", lambda: AP(), direct=True),
    SolverRow("sgd", lambda: SGD(batch_size=20), max_condition=1e5, smallest_tol=1e-4),
    SolverRow("sdd", lambda: SDD(batch_size=20), max_condition=1e5, smallest_tol=1e-4),
    SolverRow("adasap", lambda: ADASAP(block_size=15, rank=5), max_condition=1e5),
    SolverRow(
        "adasap-average",
        lambda: ADASAP(block_size=15, rank=5, tail_averaging=True),
        max_condition=1e5,
    ),
    SolverRow("adasap-exact", lambda: ADASAP(block_size=20, rank=None), max_condition=1e5),
]


class TestSolvers(SolverContract, rows=ROWS):
    pass
