"""Optimisers, values of ``optimizer=``; what callbacks see, and the report of a fit."""

from .core import FitReport
from .core.training import (
    LBFGS,
    Adam,
    CallableOptimizer,
    NaturalGradient,
    Optimizer,
    QuasiNewton,
    TrainingStep,
)

__all__ = [
    "LBFGS",
    "Adam",
    "CallableOptimizer",
    "FitReport",
    "NaturalGradient",
    "Optimizer",
    "QuasiNewton",
    "TrainingStep",
]
