"""The table of solver names."""

from __future__ import annotations

from ..._named import named
from ..preconditioners import (
    PivotedCholesky,
    Preconditioner,
    PreconditionerConfig,
    resolve_preconditioner,
)
from ._adasap import ADASAP
from ._ap import AP
from ._base import Solver
from ._block_cg import BlockCG
from ._cg import CG
from ._cholesky import Cholesky
from ._sdd import SDD
from ._sgd import SGD

# Rank of the preconditioner of a solver by name: its cost is linear in n, its gain is not.
_AUTO_RANK = 200

# one row for each solver: the name and how to make it with its defaults
SOLVERS = {
    "cg": CG,
    "block_cg": BlockCG,
    "cholesky": Cholesky,
    "ap": AP,
    "sgd": SGD,
    "sdd": SDD,
    "adasap": ADASAP,
}


def resolve_solver(solver) -> Solver:
    """A name from the table becomes a solver; objects come back as they are.

    Parameters
    ----------
    solver : str or Solver
        What a user may write.
    """
    made = "CG(preconditioner=PivotedCholesky(rank=200))"
    others = f"an object such as {made}, or, in an estimator, 'auto'"
    return named("solver", solver, SOLVERS, others, kinds=Solver)


def preconditioner_for(
    solver: str | Solver, preconditioner="auto"
) -> PreconditionerConfig | Preconditioner | None:
    """The settings that a solver is preconditioned with, None for none at all.

    Parameters
    ----------
    solver : str or Solver
        One that takes no preconditioner gets none.
    preconditioner : "auto", str, PreconditionerConfig, Preconditioner or None, default="auto"
        "auto" is the solver object's own, and for a solver by name randomly pivoted Cholesky of
        rank 200: at equal rank random pivots need fewer iterations than greedy ones.
    """
    method = resolve_solver(solver)
    auto = isinstance(preconditioner, str) and preconditioner == "auto"
    # an unknown name is an error also where nothing comes of it
    chosen = None if auto else resolve_preconditioner(preconditioner)
    if not method.takes_preconditioner:
        return None
    if not auto:
        return chosen
    if isinstance(solver, str):
        return PivotedCholesky(rank=_AUTO_RANK, randomized=True)
    return resolve_preconditioner(method.preconditioner)
