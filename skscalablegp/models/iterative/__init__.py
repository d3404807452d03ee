"""Gaussian processes trained through linear solves, randomly truncated ones included."""

from ._iterative import IterativeGPRegressor
from ._plan import Plan
from ._posterior import IterativePosterior, PathwiseSamples
from ._rrcg import RRCGRegressor, TruncatedGPRegressor

__all__ = [
    "IterativeGPRegressor",
    "IterativePosterior",
    "PathwiseSamples",
    "Plan",
    "RRCGRegressor",
    "TruncatedGPRegressor",
]
