"""Estimators of the gradient of the log marginal likelihood: values of ``gradient=``."""

from .linalg.gradients import ExactGradient as ExactGradient
from .linalg.gradients import GradientEstimate as GradientEstimate
from .linalg.gradients import GradientEstimator as GradientEstimator
from .linalg.gradients import GradientState as GradientState
from .linalg.gradients import PathwiseGradient as PathwiseGradient
from .linalg.gradients import StandardGradient as StandardGradient
from .linalg.gradients import TruncatedGradient as TruncatedGradient

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
