"""Solvers of linear systems: values of ``solver=``, and base classes of user-defined solvers."""

from ._end import End as End
from .linalg.solvers import CG as CG
from .linalg.solvers import Cholesky as Cholesky
from .linalg.solvers import MaxEpochs as MaxEpochs
from .linalg.solvers import MaxIterations as MaxIterations
from .linalg.solvers import MaxSeconds as MaxSeconds
from .linalg.solvers import RelativeResidual as RelativeResidual
from .linalg.solvers import Solution as Solution
from .linalg.solvers import Solver as Solver
from .linalg.solvers import SolverState as SolverState
from .linalg.solvers import solve as solve
from .linalg.solvers._adasap import ADASAP as ADASAP
from .linalg.solvers._ap import AP as AP
from .linalg.solvers._block_cg import BlockCG as BlockCG
from .linalg.solvers._sdd import SDD as SDD
from .linalg.solvers._sgd import SGD as SGD

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
