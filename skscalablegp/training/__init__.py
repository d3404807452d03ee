"""The outer loop over hyperparameters, with its optimisers and what watches it."""

from ._loop import TrainingResult, restart_points, train
from ._monitor import Monitor, SolveSummary, StopTraining, TrainingStep
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer, Optimum
from ._quasi_newton import QuasiNewton
from ._resolve import OPTIMIZERS, resolve_optimizer
from ._rows import BLOCK_ROWS, RowSource, Scaling, column_moments
from ._steps import Stepper, StepsResult, train_steps
from ._subsets import centroid_subsets, random_subset

__all__ = [
    "Adam",
    "BLOCK_ROWS",
    "CallableOptimizer",
    "LBFGS",
    "Monitor",
    "OPTIMIZERS",
    "Optimizer",
    "Optimum",
    "QuasiNewton",
    "RowSource",
    "Scaling",
    "SolveSummary",
    "Stepper",
    "StepsResult",
    "StopTraining",
    "TrainingResult",
    "TrainingStep",
    "centroid_subsets",
    "column_moments",
    "random_subset",
    "resolve_optimizer",
    "restart_points",
    "train",
    "train_steps",
]
