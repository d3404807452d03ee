"""Estimators of the gradient of the log marginal likelihood."""

from ._batch import BatchGradient, FeatureBatch, MinibatchGradient, automatic_rate
from ._compositional import CompositionalGradient
from ._experts import ExpertsGradient, ExpertTable
from ._features import FeatureGradient, SingleSampleGradient
from ._grid import GridGradient
from ._inducing import InducingGradient
from ._minimax import MinimaxGradient
from ._qsgp import SampledGradient, sampled_gradient

__all__ = [
    "BatchGradient",
    "CompositionalGradient",
    "ExpertTable",
    "ExpertsGradient",
    "FeatureBatch",
    "FeatureGradient",
    "GridGradient",
    "InducingGradient",
    "MinibatchGradient",
    "MinimaxGradient",
    "SampledGradient",
    "SingleSampleGradient",
    "automatic_rate",
    "sampled_gradient",
]
