"""What training maximises: small systems around some of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, GradientState
from ._local import blocks, left_out
from ._metric import Index, Metric

Values = Callable[..., tuple[float, Tensor | None]]


def neighbours_of(
    problem: GPProblem, theta: Float[Tensor, " p"], rows: Int[Tensor, " s"], m: int
) -> Int[Tensor, "s m"]:
    """The m nearest of all other rows, in the metric of the kernel at theta."""
    points = Metric(problem.kernel, theta, problem.X).points
    found = torch.as_tensor(Index(points).nearest(points[rows.cpu().numpy()], m + 1)[1])
    own = found == rows[:, None].cpu()
    # Among many equal rows a row need not be one of its own nearest.
    own[~own.any(1), -1] = True
    return found[~own].reshape(len(rows), m).to(rows)


class LocalGradient(GradientEstimator):
    """A sum over small systems around some rows, as many times as there are such in the table.

    The neighbours are those at the first hyperparameters that are asked for, so that the objective
    is a smooth function.

    Parameters
    ----------
    centres : Tensor of shape (s,)
        Numbers of rows.
    n_neighbors : int
    objective : {"leave_one_out", "blocks"}
    chosen : Tensor of bool of shape (p,), optional
        The hyperparameters that may move; all by default.
    """

    exact = True

    def __init__(self, centres, n_neighbors, objective, chosen=None):
        self.centres, self.n_neighbors = centres, n_neighbors
        self.objective, self.chosen = objective, chosen

    def estimate(
        self, problem: GPProblem, theta: Float[Tensor, " p"], state: GradientState
    ) -> tuple[GradientEstimate, GradientState]:
        if "near" not in state.extra:
            near = neighbours_of(problem, theta, self.centres, self.n_neighbors)
            state = replace(state, extra=state.extra | {"near": near})
        value, grad = VALUES[self.objective](problem, theta, self.centres, state.extra["near"])
        if self.chosen is not None:
            grad = torch.where(self.chosen, grad, 0.0)
        n = len(problem.X)
        return GradientEstimate(n * grad, n * value), state


VALUES: dict[str, Values] = {"leave_one_out": left_out, "blocks": blocks}


def variances(kernel: TorchKernel) -> np.ndarray:
    """Which entries of theta are variances: amplitudes and noise."""
    kinds = [
        np.full(h.n_elements, h.name.endswith(("constant_value", "noise_level")))
        for h in kernel.kernel.hyperparameters
        if not h.fixed
    ]
    return np.concatenate(kinds) if kinds else np.zeros(0, dtype=bool)
