"""Estimators of the gradient of the log marginal likelihood."""

from ._base import GradientEstimate, GradientEstimator, GradientState
from ._batch import BatchGradient, FeatureBatch, MinibatchGradient, automatic_rate
from ._compositional import CompositionalGradient
from ._exact import ExactGradient
from ._experts import ExpertsGradient, ExpertTable
from ._features import FeatureGradient, SingleSampleGradient
from ._grid import GridGradient
from ._inducing import InducingGradient
from ._iterative import (
    PathwiseGradient,
    PathwiseProbes,
    StandardGradient,
    built_preconditioner,
)
from ._minimax import MinimaxGradient
from ._qsgp import SampledGradient, sampled_gradient
from ._truncated import TruncatedGradient

__all__ = [
    "BatchGradient",
    "CompositionalGradient",
    "ExactGradient",
    "ExpertTable",
    "ExpertsGradient",
    "FeatureBatch",
    "FeatureGradient",
    "GradientEstimate",
    "GradientEstimator",
    "GradientState",
    "GridGradient",
    "InducingGradient",
    "MinibatchGradient",
    "MinimaxGradient",
    "PathwiseGradient",
    "PathwiseProbes",
    "SampledGradient",
    "SingleSampleGradient",
    "StandardGradient",
    "TruncatedGradient",
    "automatic_rate",
    "built_preconditioner",
    "sampled_gradient",
]
