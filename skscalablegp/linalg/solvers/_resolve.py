"""Solvers and their preconditioners by name."""

from __future__ import annotations

from ..._named import named
from ..preconditioners import (
    PivotedCholesky,
    Preconditioner,
    PreconditionerConfig,
    resolve_preconditioner,
)
from ._base import SOLVERS, Solver

# Rank of the default preconditioner. Its cost is linear in n, whereas it saves products with H.
_AUTO_RANK = 200


def resolve_solver(solver) -> Solver:
    """Return the solver that a name stands for; objects are returned unchanged.

    Parameters
    ----------
    solver : str or Solver

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    made = "CG(preconditioner=PivotedCholesky(rank=200))"
    others = f"an object such as {made}, or, in an estimator, 'auto'"
    return named("solver", solver, SOLVERS, others, kinds=Solver)


def preconditioner_for(
    solver: str | Solver, preconditioner="auto"
) -> PreconditionerConfig | Preconditioner | None:
    """The settings of a solver's preconditioner, or None for no preconditioner.

    Parameters
    ----------
    solver : str or Solver
        The result is None for solvers that use no preconditioner.
    preconditioner : "auto", str, PreconditionerConfig, Preconditioner or None, default="auto"
        "auto" means the preconditioner that a solver object has, and for a solver by name randomly
        pivoted Cholesky of rank 200. At equal rank random pivots need fewer iterations than greedy
        ones.
    """
    method = resolve_solver(solver)
    auto = isinstance(preconditioner, str) and preconditioner == "auto"
    # An unknown name is an error also for solvers that use no preconditioner.
    chosen = None if auto else resolve_preconditioner(preconditioner)
    if not method.takes_preconditioner:
        return None
    if not auto:
        return chosen
    if isinstance(solver, str):
        return PivotedCholesky(rank=_AUTO_RANK, randomized=True)
    return resolve_preconditioner(method.preconditioner)
