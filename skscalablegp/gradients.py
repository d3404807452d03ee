"""Estimators of the gradient of the log marginal likelihood: values of ``gradient=``."""

from .linalg.gradients import (
    ExactGradient,
    GradientEstimate,
    GradientEstimator,
    GradientState,
    PathwiseGradient,
    StandardGradient,
    TruncatedGradient,
)

__all__ = [
    "ExactGradient",
    "GradientEstimate",
    "GradientEstimator",
    "GradientState",
    "PathwiseGradient",
    "StandardGradient",
    "TruncatedGradient",
]
