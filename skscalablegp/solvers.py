"""Solvers of linear systems: values of ``solver=``, and base classes of user-defined solvers."""

from .linalg.solvers import (
    ADASAP,
    AP,
    CG,
    SDD,
    SGD,
    BlockCG,
    Cholesky,
    MaxEpochs,
    MaxIterations,
    MaxSeconds,
    RelativeResidual,
    Solution,
    Solver,
    SolverState,
    Status,
    solve,
)

__all__ = [
    "ADASAP",
    "AP",
    "BlockCG",
    "CG",
    "Cholesky",
    "MaxEpochs",
    "MaxIterations",
    "MaxSeconds",
    "RelativeResidual",
    "SDD",
    "SGD",
    "Solution",
    "Solver",
    "SolverState",
    "Status",
    "solve",
]
