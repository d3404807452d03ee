"""The gradient by dense algebra."""

from __future__ import annotations

from ._base import GradientEstimate, GradientEstimator
from ._marginal_likelihood import exact_marginal_likelihood


class ExactGradient(GradientEstimator):
    """The exact value and gradient, from one Cholesky factorisation.

    Parameters
    ----------
    max_jitter : float, default=1e-3
        Largest multiple of H's mean diagonal entry that may be added to its diagonal.

    Notes
    -----
    O(n^3) time and two n x n matrices.
    """

    exact = True

    def __init__(self, max_jitter: float = 1e-3):
        self.max_jitter = max_jitter

    def estimate(self, problem, theta, state):
        result = exact_marginal_likelihood(problem, theta, max_jitter=self.max_jitter)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state

    def on_subset(self) -> GradientEstimator:
        return self
