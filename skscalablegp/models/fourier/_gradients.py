"""Gradients of likelihoods that are made of random Fourier features."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ...features import PriorFeatures
from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, GradientState
from ...linalg.truncation import ReciprocalTruncation
from ._collapsed import collapsed_marginal_likelihood
from ._single_sample import FeatureLevels, single_sample_terms


class FeatureGradient(GradientEstimator):
    """Value and gradient of the likelihood of a feature map whose frequencies are frozen.

    Both are exact for the map, so that any optimiser will do; for the kernel behind it they are
    biased: few features overestimate the quadratic term and underestimate the determinant.

    Parameters
    ----------
    features : PriorFeatures
        The map.
    """

    exact = True

    def __init__(self, features: PriorFeatures):
        self.features = features

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        result = collapsed_marginal_likelihood(problem, theta, self.features)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state


class SingleSampleGradient(GradientEstimator):
    """Random features with one random correction term: unbiased, and very noisy.

    Parameters
    ----------
    truncation : TruncationDistribution or None, default=None
        Of the level, in units of `step` features, at which the correction is computed; None is
        ``ReciprocalTruncation()``.
    min_features : int, default=500
        Features that are always there.
    step : int, default=100
        Features from one level to the next; the last level is the exact kernel matrix.

    Notes
    -----
    Potapczynski et al. (2021), section 4.2, who find that training takes 100 times as many steps.
    """

    def __init__(self, truncation: Any = None, *, min_features: int = 500, step: int = 100):
        self.truncation = truncation
        self.min_features = min_features
        self.step = step

    def levels(self, n: int) -> FeatureLevels:
        """The series for n rows; wrong settings fail here."""
        truncation = self.truncation or ReciprocalTruncation()
        return FeatureLevels.of(n, self.min_features, self.step, truncation)

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        levels = self.levels(len(problem.X))
        terms = single_sample_terms(problem, theta, levels, state.generator)
        return GradientEstimate(terms[2:], None), state
