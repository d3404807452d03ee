"""Estimators of the gradient of the log marginal likelihood."""

from ._features import FeatureGradient, SingleSampleGradient
from ._grid import GridGradient

__all__ = [
    "FeatureGradient",
    "GridGradient",
    "SingleSampleGradient",
]
