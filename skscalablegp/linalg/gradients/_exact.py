"""The gradient by dense algebra."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ._base import GradientEstimate, GradientEstimator, GradientState
from ._marginal_likelihood import exact_marginal_likelihood
from ._problem import GPProblem


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

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        result = exact_marginal_likelihood(problem, theta, max_jitter=self.max_jitter)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state

    def on_subset(self) -> GradientEstimator:
        return self
