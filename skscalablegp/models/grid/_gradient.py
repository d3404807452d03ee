"""The gradient in grid space."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, GradientState
from ._objective import grid_marginal_likelihood


class GridGradient(GradientEstimator):
    """Exact value and gradient of an interpolated model."""

    exact = True

    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        result = grid_marginal_likelihood(problem, theta)
        return GradientEstimate(result.grad, result.value, None, result.jitter), state
