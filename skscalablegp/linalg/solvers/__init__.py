"""Solve H V = B: solvers with one step each, stopping rules, and the loop around them.

Importing this package imports every module in it, so that a solver is one file: the one that names
its class.
"""

from importlib import import_module
from pkgutil import iter_modules

from ._base import (
    SOLVERS,
    Column,
    Solver,
    SolverState,
    first_guess,
    relative_norms,
    true_residual,
)
from ._cg import CG, CGState
from ._cholesky import Cholesky, cholesky_with_jitter
from ._lanczos import Lanczos, LogDet, WithLogDet, lanczos, radau
from ._loop import solve
from ._resolve import preconditioner_for, resolve_solver
from ._solution import Solution, SolveSummary
from ._stopping import (
    MaxEpochs,
    MaxIterations,
    MaxSeconds,
    Progress,
    RelativeResidual,
    StoppingRule,
)

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
