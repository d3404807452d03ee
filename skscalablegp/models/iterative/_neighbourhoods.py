"""Hyperparameters of short distances, which random subsets do not have, from neighbourhoods."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ...core import FitRun
from ...core.data import random_rows
from ...core.training import QuasiNewton, TrainingResult, train
from ...linalg.blocks import look_up
from ...linalg.gradients import (
    ExactGradient,
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    exact_marginal_likelihood,
    sets_marginal_likelihood,
)

# Number of neighbourhoods, the rows of each, and the largest number of steps.
_CENTRES, _ROWS, _STEPS = 200, 256, 8
# Weight of their hyperparameters in the average with those of random rows, chosen on protein: the
# larger it is, the lower is the NLPD there, and the larger are the errors.
_WEIGHT = 1 / 3


class NeighbourhoodGradient(GradientEstimator):
    """The exact likelihood of separate sets of rows, in proportion for all rows of the table.

    A composite likelihood (Varin, Reid and Firth, 2011); O(k^3) for a set of k rows.

    Parameters
    ----------
    sets : Tensor of shape (s, k)
        Numbers of the rows of each set.
    max_jitter : float
        As in `cholesky_with_jitter`.
    """

    exact = True

    def __init__(self, sets: Int[Tensor, "s k"], max_jitter: float):
        self.sets = sets
        self.max_jitter = max_jitter

    def estimate(self, problem, theta, state):
        share = len(problem.X) / self.sets.numel()
        if not problem.X.is_cpu:
            at = torch.as_tensor(theta)
            all_of = sets_marginal_likelihood(problem, at, self.sets, True, self.max_jitter)
            return GradientEstimate(share * all_of.grad, share * float(all_of.values.sum())), state
        exact, found = ExactGradient(self.max_jitter), []
        for rows in self.sets:
            look_up()
            found.append(exact.estimate(problem.subset(rows), theta, state)[0])
        grad = share * sum(one.grad for one in found)
        return GradientEstimate(grad, share * sum(one.value for one in found)), state


def with_neighbourhoods(
    problem: GPProblem, result: TrainingResult, gain_per_row: float, max_jitter: float, run: FitRun
) -> tuple[TrainingResult, str]:
    """A weighted mean of these log hyperparameters and those of neighbourhoods, if it is better.

    Random rows of a large table are far from each other, and teach nothing about distances at which
    all rows have neighbours: their noise then stands for details that more rows resolve. Rows near
    to each other have too few long distances. The mean is taken if other rows have a higher log
    density given their neighbours with it.

    Callbacks and `history_` do not see the steps on neighbourhoods, whose kernel is not that of the
    model, and `n_iter_` does not count them. The time budget and interrupts hold as in training.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    result : TrainingResult
        Of random subsets, with the curvature.
    gain_per_row : float
        Predicted gain, in nats per row, that is worth another step.
    max_jitter : float
        As in `cholesky_with_jitter`.
    run : FitRun

    Returns
    -------
    result : TrainingResult
    why : str
        What was compared, in words; empty if that was not possible.
    """
    double, beside = problem.to(torch.float64), run.silent(1.0)
    run.monitor.begin("neighbourhoods")
    try:
        with run.budget.may_end():
            local = train(
                double,
                NeighbourhoodGradient(_neighbourhoods(problem, result.theta, run), max_jitter),
                QuasiNewton(gain_tol=max(0.5, gain_per_row * len(problem.X))),
                result.theta,
                problem.kernel.bounds.numpy(),
                max_iter=_STEPS,
                monitor=beside.monitor,
                generator=run.generator,
                metric=result.metric,
            )
            if beside.budget.ended is not None:
                run.budget.end(beside.budget.ended)
            mean = (1 - _WEIGHT) * result.theta + _WEIGHT * local.theta
            if not run.stopped:
                sets = _neighbourhoods(problem, result.theta, run)
                before, after = (
                    _density(double, theta, sets, max_jitter) for theta in (result.theta, mean)
                )
        if run.budget.ended is not None:
            return replace(result, stop_reason=run.budget.ended), ""
    except torch.linalg.LinAlgError:
        run.monitor.failures.append("neighbourhoods: no Cholesky factor")
        return result, ""
    better = after > before
    means = "their mean with those of neighbourhoods" if better else "not averaged with others"
    why = (
        f"subsets give the hyperparameters, {means}: rows given their neighbours have a log "
        f"density of {before:.3f} with those of the subset, and of {after:.3f} with the mean"
    )
    return (replace(result, theta=mean, metric=None) if better else result), why


def _neighbourhoods(problem: GPProblem, theta: np.ndarray, run: FitRun) -> Int[Tensor, "s k"]:
    """Random rows, each after the rows that have the largest covariances with it."""
    n, X = len(problem.X), problem.X
    centres = random_rows(n, min(_CENTRES, n), run.generator).to(X.device)
    covariances = problem.operator(torch.as_tensor(theta)).cross(X[centres]).to_dense()
    covariances[torch.arange(len(centres), device=X.device), centres] = -math.inf
    near = covariances.topk(min(_ROWS, n) - 1, 1).indices
    return torch.cat([near.flip(1), centres[:, None]], 1)


def _density(
    problem: GPProblem, theta: np.ndarray, sets: Int[Tensor, "s k"], max_jitter: float
) -> float:
    """The mean log density of the last row of each set given the others.

    Targets are in the units of training. The kernel has its best scale, because leave-one-out
    errors determine that of the fitted model, too.
    """
    at = torch.as_tensor(theta)
    if problem.X.is_cpu:
        deviations, weights = [], []
        for rows in sets:
            look_up()
            own = exact_marginal_likelihood(problem.subset(rows), at, False, max_jitter)
            deviations.append(own.factor[-1, -1])
            weights.append(own.weights[-1])
        deviation, weight = torch.stack(deviations), torch.stack(weights)
    else:
        found = sets_marginal_likelihood(problem, at, sets, False, max_jitter)
        deviation, weight = found.factor[:, -1, -1], found.weights[:, -1]
    # The last diagonal entry of H^-1 is that of the factor, squared and inverted.
    errors = weight * deviation[:, None]
    spread = deviation.log().mean() + errors.square().mean().log() / 2
    return -float(spread) - 0.5 * math.log(2 * math.pi * math.e)
