"""Frozen objects that answer predictions."""

from ._base import Posterior
from ._exact import ExactPosterior
from ._iterative import IterativePosterior, PathwiseSamples

__all__ = ["ExactPosterior", "IterativePosterior", "PathwiseSamples", "Posterior"]
