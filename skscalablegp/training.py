"""Optimisers (values of ``optimizer=``), the argument of callbacks, and the report of a fit."""

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
