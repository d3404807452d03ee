"""Gradients of the collapsed bound."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...linalg.gradients import GradientEstimate, GradientEstimator
from ._collapsed import collapsed_bound, problem_blocks


class InducingGradient(GradientEstimator):
    """Value and gradient of the collapsed bound of Titsias (2009), both exact.

    Parameters
    ----------
    Z : Tensor of shape (m, d)
        Inducing points.
    scale : Tensor of shape (d,) or None, default=None
        Units in which the points are trained. The points' coordinates in these units, row by row,
        then follow the hyperparameters in theta and in the gradient. None keeps the points.

    Notes
    -----
    It costs O(n m^2) time, and O(m^2) memory in addition to a block of rows.
    """

    exact = True

    def __init__(self, Z: Any, *, scale: Any = None):
        self.Z = Z
        self.scale = scale

    def points(self, theta: Float[Tensor, " p"], n_params: int) -> Tensor:
        """The inducing points that belong to theta."""
        if self.scale is None:
            return self.Z
        return theta[n_params:].reshape(self.Z.shape).to(self.Z) * self.scale

    def moving(self) -> np.ndarray:
        """The initial points in their units, which follow the hyperparameters in theta."""
        return np.zeros(0) if self.scale is None else (self.Z / self.scale).cpu().numpy().ravel()

    def estimate(self, problem, theta, state):
        kernel = problem.kernel
        p, Z = kernel.n_params, self.points(theta, kernel.n_params)
        bound = collapsed_bound(kernel, theta[:p], Z, problem_blocks(problem), eval_gradient=True)
        grad = bound.grad
        if self.scale is not None:
            grad = torch.cat([grad, (bound.grad_inducing * self.scale).flatten().to(grad)])
        return GradientEstimate(grad, bound.value, None, bound.white.jitter), state
