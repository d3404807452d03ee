"""Frozen objects that answer predictions."""

from ._base import Posterior
from ._exact import ExactPosterior
from ._grid import GridPosterior
from ._iterative import IterativePosterior, PathwiseSamples
from ._love import LOVEPosterior, LOVEResult, love

__all__ = [
    "ExactPosterior",
    "GridPosterior",
    "IterativePosterior",
    "LOVEPosterior",
    "LOVEResult",
    "PathwiseSamples",
    "Posterior",
    "love",
]
