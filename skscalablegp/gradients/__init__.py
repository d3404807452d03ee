"""Estimators of the gradient of the log marginal likelihood."""

from ._experts import ExpertsGradient, ExpertTable
from ._features import FeatureGradient, SingleSampleGradient
from ._grid import GridGradient

__all__ = [
    "ExpertTable",
    "ExpertsGradient",
    "FeatureGradient",
    "GridGradient",
    "SingleSampleGradient",
]
