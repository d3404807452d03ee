"""Solve H V = B: solvers with one step each, stopping rules, and the loop around them."""

from ._adasap import ADASAP
from ._ap import AP
from ._base import Column, Solver, SolverState
from ._block_cg import BlockCG
from ._cg import CG, CGState
from ._cholesky import Cholesky, cholesky_with_jitter
from ._lanczos import Lanczos, lanczos, radau, stochastic_log_det
from ._loop import solve
from ._resolve import SOLVERS, preconditioner_for, resolve_solver
from ._sdd import SDD
from ._sgd import SGD
from ._solution import Solution, SolveSummary, Status
from ._stopping import MaxEpochs, MaxIterations, MaxSeconds, Progress, RelativeResidual
