"""The table of solver names."""

from __future__ import annotations

from ._adasap import ADASAP
from ._ap import AP
from ._base import Solver
from ._block_cg import BlockCG
from ._cg import CG
from ._cholesky import Cholesky
from ._sdd import SDD
from ._sgd import SGD

# one row for each solver: the name and how to make it with its defaults
SOLVERS = {
    "cg": lambda: CG(preconditioner="pivoted_cholesky"),
    "block_cg": lambda: BlockCG(preconditioner="pivoted_cholesky"),
    "cholesky": lambda: Cholesky(),
    "ap": lambda: AP(),
    "sgd": lambda: SGD(),
    "sdd": lambda: SDD(),
    "adasap": lambda: ADASAP(),
}


def resolve_solver(solver) -> Solver:
    """A name from the table becomes a solver; objects come back as they are.

    Parameters
    ----------
    solver : str or Solver
        What a user may write.
    """
    if isinstance(solver, str):
        if solver in SOLVERS:
            return SOLVERS[solver]()
    elif hasattr(solver, "init") and hasattr(solver, "step") and not isinstance(solver, type):
        return solver
    known = ", ".join(repr(name) for name in sorted(SOLVERS))
    raise ValueError(
        f"Unknown solver {solver!r}: use one of {known}, an object such as "
        "CG(preconditioner=PivotedCholesky(rank=200)), or, in an estimator, 'auto'."
    )
