"""Hyperparameters of short distances, which random subsets do not have, from neighbourhoods."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Int
from torch import Tensor

from ...core import FitRun
from ...core.data import random_rows
from ...core.training import QuasiNewton, TrainingResult, train
from ...linalg.gradients import (
    ExactGradient,
    GPProblem,
    GradientEstimate,
    GradientEstimator,
)

# Number of neighbourhoods, the rows of each, and the largest number of steps.
_CENTRES, _ROWS, _STEPS = 200, 256, 8
# Weight of their hyperparameters beside those of random rows. On protein the errors rise with it
# (RMSE .482 and .485 at 0 and 1/2), while the NLL falls (.615 and .568).
_WEIGHT = 1 / 3


class NeighbourhoodGradient(GradientEstimator):
    """The exact likelihood of separate sets of rows, in proportion for all rows of the table.

    A composite likelihood (Varin, Reid and Firth, 2011); O(k^3) for a set of k rows.

    Parameters
    ----------
    sets : Tensor of shape (s, k)
        Numbers of the rows of each set.
    """

    exact = True

    def __init__(self, sets: Int[Tensor, "s k"]):
        self.sets = sets

    def estimate(self, problem, theta, state):
        exact = ExactGradient()
        found = [exact.estimate(problem.subset(rows), theta, state)[0] for rows in self.sets]
        share = len(problem.X) / self.sets.numel()
        grad = share * sum(one.grad for one in found)
        return GradientEstimate(grad, share * sum(one.value for one in found)), state


def with_neighbourhoods(
    problem: GPProblem, result: TrainingResult, gain_per_row: float, run: FitRun
) -> TrainingResult:
    """A weighted mean of these log hyperparameters and those that suit neighbourhoods best.

    Random rows of a large table are far from each other, and teach nothing about distances at which
    all rows have neighbours: their noise then stands for details that more rows resolve. Rows near
    to each other have too few long distances.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    result : TrainingResult
        Of random subsets, with the curvature.
    gain_per_row : float
        Predicted gain, in nats per row, that is worth another step.
    run : FitRun
    """
    n, theta = len(problem.X), torch.as_tensor(result.theta)
    try:
        centres = random_rows(n, min(_CENTRES, n), run.generator).to(problem.X.device)
        covariances = problem.operator(theta).cross(problem.X[centres]).to_dense()
        near = covariances.topk(min(_ROWS, n), 1).indices
        run.monitor.begin("neighbourhoods", _STEPS)
        local = train(
            problem.to(torch.float64),
            NeighbourhoodGradient(near),
            QuasiNewton(gain_tol=max(0.5, gain_per_row * n)),
            result.theta,
            problem.kernel.bounds.numpy(),
            max_iter=_STEPS,
            monitor=run.monitor,
            generator=run.generator,
            metric=result.metric,
        )
    except KeyboardInterrupt:
        return replace(result, stop_reason=run.monitor.end("interrupted"))
    except torch.linalg.LinAlgError:
        run.monitor.failures.append("neighbourhoods: no Cholesky factor")
        return result
    mean = (1 - _WEIGHT) * result.theta + _WEIGHT * local.theta
    n_iter = result.n_iter + local.n_iter
    reason = local.stop_reason if run.stopped else result.stop_reason
    return replace(result, theta=mean, n_iter=n_iter, stop_reason=reason, metric=None)
