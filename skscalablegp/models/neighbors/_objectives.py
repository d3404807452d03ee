"""The training objectives: sums over small systems around some of the rows."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, GradientState
from ._full_scale import Earlier, FullScale, earlier_rows, inducing_rows
from ._local import Shared, blocks, left_out, left_out_moments, predict
from ._metric import Index, Metric, others_near

# The logarithm of the largest factor by which a kernel is scaled.
_MOST_SCALE = 5.0
# Powers of local errors that are compared; the standard errors of its gain by which the best has to
# beat zero; and what is added to every local mean squared error.
_POWERS, _DOUBT, _EVEN = (0.3, 0.5, 0.7, 1.0), 2.0, 0.03
# The objectives by name: functions of a problem, theta, rows and their neighbours.
VALUES = {"leave_one_out": left_out, "blocks": blocks}


def neighbours_of(
    problem: GPProblem, theta: Float[Tensor, " p"], rows: Int[Tensor, " s"], m: int
) -> Int[Tensor, "s m"]:
    """The m nearest other rows of each row, in the kernel's metric at theta."""
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
    """

    exact = True

    def __init__(self, centres, n_neighbors, objective):
        self.centres, self.n_neighbors = centres, n_neighbors
        self.objective = objective

    def estimate(self, problem, theta, state):
        if "near" not in state.extra:
            near = neighbours_of(problem, theta, self.centres, self.n_neighbors)
            state = replace(state, extra=state.extra | {"near": near})
        value, grad = VALUES[self.objective](problem, theta, self.centres, state.extra["near"])
        n = len(problem.X)
        return GradientEstimate(n * grad, n * value), state


class FullScaleGradient(GradientEstimator):
    """The likelihood of all rows by the full-scale Vecchia approximation.

    The order of the rows, their neighbours and the inducing points are those of the first
    hyperparameters, so that the objective is a smooth function.

    Parameters
    ----------
    n_inducing : int
        Zero for Vecchia's approximation itself.
    n_neighbors : int
        Neighbours among the rows before each row.
    seed : int
        Of the order and of the inducing points.
    """

    exact = True

    def __init__(self, n_inducing, n_neighbors, seed):
        self.n_inducing, self.n_neighbors, self.seed = n_inducing, n_neighbors, seed

    def prepared(
        self, problem: GPProblem, theta: Float[Tensor, " p"], state: GradientState
    ) -> GradientState:
        """The state with inducing points and neighbours, chosen at theta if it has none."""
        extra = dict(state.extra)
        if "inducing" not in extra:
            chosen = np.zeros(0, dtype=int)
            if self.n_inducing:
                chosen = inducing_rows(problem, theta, self.n_inducing, self.seed)
            extra["inducing"] = torch.as_tensor(chosen)
        if "near" not in extra:
            points = Metric(problem.kernel, theta, problem.X).points
            extra["near"] = earlier_rows(points, self.n_neighbors, self.seed).near
        return replace(state, extra=extra)

    def estimate(self, problem, theta, state):
        state = self.prepared(problem, theta, state)
        process = FullScale(problem, theta, state.extra["inducing"])
        earlier = Earlier.of(state.extra["near"].cpu().numpy(), self.seed)
        value, grad = process.likelihood(earlier)
        return GradientEstimate(grad, value), state


class Scaled(NamedTuple):
    """The hyperparameters of a kernel times `scale`, and the mean leave-one-out log density.

    `power` is that of the local errors in `local_factor`.
    """

    theta: Float[Tensor, " p"]
    scale: float
    density: float
    power: float = 0.0


def local_factor(surprise: Float[Tensor, " b"], power: float) -> Float[Tensor, " b"]:
    """The factor of predictive variances where the nearest rows have these mean squared errors."""
    return ((surprise + _EVEN) / (1 + _EVEN)) ** power


class Scales:
    """Multiplies a kernel by one number, through its amplitudes and noise levels.

    The means of predictions do not depend on this number, unless the noise of some rows is known.
    Priors count as in training, where they are added to the log density of all rows. The amplitude
    and the noise could be trained one by one, but a few hundred rows do not determine
    both: among many equal rows the noise would fall to nearly zero.

    Parameters
    ----------
    problem : GPProblem
        All training rows.
    theta : Tensor of shape (p,)
        The log hyperparameters at which the number is one.

    Attributes
    ----------
    free : bool
        Whether the kernel can be multiplied: no amplitude and no noise level is missing or fixed.
    """

    def __init__(self, problem: GPProblem, theta: Float[Tensor, " p"]):
        self._problem, self._theta, kernel = problem, theta, problem.kernel
        self._moved = torch.as_tensor(kernel.variances).to(theta)
        X = problem.X[:10]
        twice = theta + self._moved * math.log(2)
        self.free = all(
            torch.allclose(2 * part(theta), part(twice), atol=0)
            for part in (lambda at: kernel.cross(at, X, X), lambda at: kernel.noise(at, X))
        )

    def best(
        self,
        rows: Int[Tensor, " s"],
        near: Int[Tensor, "s m"],
        dtype: torch.dtype,
        scaled: bool = True,
        local: bool = True,
        shared: Shared | None = None,
    ) -> Scaled:
        """The number, and the power of local errors, with the highest log density of rows.

        Each row is left out and predicted from these neighbours. The number is one, and the power
        zero, unless `scaled` is true. The power is also zero unless `local` is true and another is
        better by two standard errors of the difference.
        """
        problem, theta = self._problem, self._theta
        X = problem.X[rows]
        predicted = predict(problem, theta, X, near, dtype, scaled and local, shared)
        mean, variance, surprise = predicted[:3]
        # A kernel without noise predicts copies of other rows without any variance.
        floor = torch.finfo(torch.float32).eps * problem.kernel.diag(theta, X)
        white, t = problem.kernel.noise(theta, X), problem.Y.shape[1]
        known = 0.0 if problem.extra_noise is None else problem.extra_noise[rows]
        counts = 1.0 if problem.repeats is None else problem.repeats.counts[rows]
        if shared is not None:
            noise = (white + known) / counts
            mean, variance = left_out_moments(predicted, problem.Y[rows], noise)
        variance = torch.maximum(variance + white / counts, floor)
        error = (problem.Y[rows] - mean).square().mean(1)

        def losses(log_scale: float, power: float) -> Float[Tensor, " s"]:
            scale, factor = math.exp(log_scale), local_factor(surprise, power)
            total = scale * variance * factor + known / counts
            loss = 0.5 * (error / total + (2 * math.pi * total).log())
            if problem.repeats is not None:
                single = scale * factor * white + known
                loss = loss - problem.repeats[rows].log_density(single, t) / t
            return loss

        if not (self.free and scaled):
            return Scaled(theta, 1.0, -float(losses(0.0, 0.0).mean()))
        room = (problem.kernel.bounds - theta.cpu()[:, None])[self._moved.cpu().bool()]
        low, high = max(float(room[:, 0].max()), -_MOST_SCALE), float(room[:, 1].min())
        limits = min(low, 0.0), max(min(high, _MOST_SCALE), 0.0)

        def log_prior(log_scale: float) -> float:
            """For one row."""
            moved = theta + self._moved * log_scale
            return problem.log_prior(moved.cpu().numpy())[0] / len(problem.X)

        found = {}
        for power in (0.0, *_POWERS) if local else (0.0,):
            best = minimize_scalar(
                lambda at, power=power: float(losses(at, power).mean()) - log_prior(at),
                bounds=limits,
                method="bounded",
            )
            found[power] = float(best.x), losses(float(best.x), power)
        power = min(found, key=lambda power: float(found[power][1].mean()))
        gains = found[0.0][1] - found[power][1]
        if float(gains.mean()) <= _DOUBT * float(gains.std(correction=0)) / len(gains) ** 0.5:
            power = 0.0
        log_scale, loss = found[power]
        moved = theta + self._moved * log_scale
        return Scaled(moved, math.exp(log_scale), -float(loss.mean()), power)
