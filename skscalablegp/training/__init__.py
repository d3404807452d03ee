"""The outer loop over hyperparameters, with its optimisers and what watches it."""

from ._loop import TrainingResult, restart_points, train
from ._monitor import Monitor, SolveSummary, StopTraining, TrainingStep
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer, Optimum
from ._quasi_newton import QuasiNewton
from ._resolve import OPTIMIZERS, resolve_optimizer
from ._subsets import centroid_subsets, random_subset

__all__ = [
    "Adam",
    "CallableOptimizer",
    "LBFGS",
    "Monitor",
    "OPTIMIZERS",
    "Optimizer",
    "Optimum",
    "QuasiNewton",
    "SolveSummary",
    "StopTraining",
    "TrainingResult",
    "TrainingStep",
    "centroid_subsets",
    "random_subset",
    "resolve_optimizer",
    "restart_points",
    "train",
]
