"""The training objectives: sums over small systems around some of the rows."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator
from ._local import blocks, left_out
from ._metric import Index, Metric, others_near

# The objectives by name: functions of a problem, theta, rows and their neighbours.
VALUES = {"leave_one_out": left_out, "blocks": blocks}


def neighbours_of(
    problem: GPProblem, theta: Float[Tensor, " p"], rows: Int[Tensor, " s"], m: int
) -> Int[Tensor, "s m"]:
    """Of each row the m nearest other rows, in the kernel's metric at theta."""
    points = Metric(problem.kernel, theta, problem.X).points
    return others_near(Index(points), points[rows.cpu().numpy()], rows, m)


class LocalGradient(GradientEstimator):
    """An average over small systems around some rows, times the number of rows in the table.

    The neighbours are searched at the first hyperparameters and then kept, so that the objective is
    a smooth function.

    Parameters
    ----------
    centres : Tensor of shape (s,)
        Numbers of the rows around which the systems are.
    n_neighbors : int
    objective : {"leave_one_out", "blocks"}
    chosen : Tensor of bool of shape (p,), optional
        The hyperparameters whose gradient is not set to zero; all by default.
    """

    exact = True

    def __init__(self, centres, n_neighbors, objective, chosen=None):
        self.centres, self.n_neighbors = centres, n_neighbors
        self.objective, self.chosen = objective, chosen

    def estimate(self, problem, theta, state):
        if "near" not in state.extra:
            near = neighbours_of(problem, theta, self.centres, self.n_neighbors)
            state = replace(state, extra=state.extra | {"near": near})
        value, grad = VALUES[self.objective](problem, theta, self.centres, state.extra["near"])
        if self.chosen is not None:
            grad = torch.where(self.chosen, grad, 0.0)
        n = len(problem.X)
        return GradientEstimate(n * grad, n * value), state
