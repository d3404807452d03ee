"""Gradient estimators that use random Fourier features."""

from __future__ import annotations

from typing import Any

from ..._named import keep_settings
from ...features import PriorFeatures
from ...linalg.gradients import GradientEstimate, GradientEstimator
from ...linalg.truncation import resolve_truncation
from ._collapsed import collapsed_marginal_likelihood
from ._noise import starting_noise
from ._single_sample import FeatureLevels, single_sample_terms


class FeatureGradient(GradientEstimator):
    """Value and gradient of the likelihood of a feature map with fixed frequencies.

    Both are exact for the map, so that any optimiser can be used. For the kernel they are biased:
    few features overestimate the quadratic term and underestimate the determinant.

    Parameters
    ----------
    features : PriorFeatures
        The map.
    """

    exact = True

    def __init__(self, features: PriorFeatures):
        self.features = features

    def estimate(self, problem, theta, state):
        result = collapsed_marginal_likelihood(problem, theta, self.features)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state

    def suited(self, problem, theta):
        return starting_noise(problem, theta, self.features)


class SingleSampleGradient(GradientEstimator):
    """Random features with one random correction term; unbiased but very noisy.

    Parameters
    ----------
    truncation : str or TruncationDistribution, default="reciprocal"
        Distribution of the level at which the correction is computed. Level j has
        ``j * component_step`` functions.
    min_components : int, default=500
        Random Fourier functions that every step has.
    component_step : int, default=100
        Functions from one level to the next; the last level is the exact kernel matrix.

    Notes
    -----
    Potapczynski et al. (2021), section 4.2, who find that training takes 100 times as many steps.
    """

    def __init__(
        self,
        truncation: Any = "reciprocal",
        *,
        min_components: int = 500,
        component_step: int = 100,
    ):
        keep_settings(self, locals())

    def levels(self, n: int) -> FeatureLevels:
        """The series for n rows; raises an error for wrong settings."""
        truncation = resolve_truncation(self.truncation)
        return FeatureLevels.of(n, self.min_components, self.component_step, truncation)

    def estimate(self, problem, theta, state):
        levels = self.levels(len(problem.X))
        terms = single_sample_terms(problem, theta, levels, state.generator)
        return GradientEstimate(terms[2:], None), state
