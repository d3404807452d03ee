"""Solve H V = B: solvers with one step each, stopping rules, and the loop around them."""

from ._adasap import ADASAP, ADASAPState
from ._ap import AP, APState
from ._base import Column, Solver, SolverState
from ._block_cg import BlockCG
from ._cg import CG, CGState
from ._cholesky import Cholesky, CholeskyState, cholesky_with_jitter
from ._lanczos import Lanczos, lanczos, stochastic_log_det, tridiagonal_from_cg
from ._loop import solve
from ._resolve import SOLVERS, resolve_solver
from ._rows import RowSolver
from ._sdd import SDD, SDDState
from ._sgd import SGD, SGDState
from ._solution import Solution, SolveSummary, Status
from ._stopping import (
    AllOf,
    AnyOf,
    MaxEpochs,
    MaxIterations,
    MaxSeconds,
    Progress,
    RelativeResidual,
    StoppingRule,
)

__all__ = [
    "ADASAP",
    "AP",
    "CG",
    "SDD",
    "SGD",
    "SOLVERS",
    "ADASAPState",
    "APState",
    "AllOf",
    "AnyOf",
    "BlockCG",
    "CGState",
    "Cholesky",
    "CholeskyState",
    "Column",
    "Lanczos",
    "MaxEpochs",
    "MaxIterations",
    "MaxSeconds",
    "Progress",
    "RelativeResidual",
    "RowSolver",
    "SDDState",
    "SGDState",
    "Solution",
    "SolveSummary",
    "Solver",
    "SolverState",
    "Status",
    "StoppingRule",
    "cholesky_with_jitter",
    "lanczos",
    "resolve_solver",
    "solve",
    "stochastic_log_det",
    "tridiagonal_from_cg",
]
