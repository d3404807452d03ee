"""The training objectives: sums over small systems around some of the rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import minimize_scalar
from torch import Tensor

from ...linalg.gradients import GPProblem, GradientEstimate, GradientEstimator, GradientState
from ...workers import workers
from ._full_scale import Earlier, WholeLikelihood, earlier_rows, inducing_rows
from ._local import Predicted, Shared, blocks, left_out, left_out_moments, predict
from ._metric import Index, Metric, others_near

# The logarithm of the largest factor by which a kernel is scaled.
_MOST_SCALE = 5.0
# Known noise below this share of all variance counts as none.
_NEGLIGIBLE = 1e-5
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


@dataclass(frozen=True, eq=False)
class Neighbourhoods:
    """Rows and their neighbours, around which small systems are solved.

    Attributes
    ----------
    problem : GPProblem
        All training rows.
    rows : Tensor of shape (s,)
    near : Tensor of shape (s, m)
    shared : Shared or None
        A process that all rows share, in predictions.
    """

    problem: GPProblem
    rows: Int[Tensor, " s"]
    near: Int[Tensor, "s m"]
    shared: Shared | None = None

    def sums(
        self, some: Int[Tensor, " b"], objective: str, theta: Float[Tensor, " p"]
    ) -> tuple[float, Float[Tensor, " p"]]:
        """An objective and its gradient, summed over some of the rows."""
        value, grad = VALUES[objective](self.problem, theta, self.rows[some], self.near[some])
        return len(some) * value, len(some) * grad

    def predicted(
        self,
        some: Int[Tensor, " b"],
        theta: Float[Tensor, " p"],
        dtype: torch.dtype,
        errors: bool,
    ) -> Predicted:
        """Predictions of some of the rows from their neighbours."""
        X, near = self.problem.X[self.rows[some]], self.near[some]
        return predict(self.problem, theta, X, near, dtype, errors, self.shared)


class _SearchedOnce(GradientEstimator):
    """Neighbours are those of the first hyperparameters, with which a fit that goes on begins."""

    exact = True

    @abstractmethod
    def prepared(
        self, problem: GPProblem, theta: Float[Tensor, " p"], state: GradientState
    ) -> GradientState:
        """The state with neighbours, searched at theta if it has none."""

    def kept(self, state: GradientState) -> dict:
        return {"searched_at": state.extra["searched_at"].cpu()}

    def resumed(self, problem: GPProblem, state: GradientState, kept: dict) -> GradientState:
        return self.prepared(problem, kept["searched_at"].to(problem.X.device), state)


class LocalGradient(_SearchedOnce):
    """An average over small systems around some rows, times the number of rows in the table.

    The neighbours are searched at the first hyperparameters and then kept, so that the objective is
    a smooth function.

    Parameters
    ----------
    centres : Tensor of shape (s,)
        Numbers of the rows around which the systems are.
    n_neighbors : int
    objective : {"leave_one_out", "blocks"}
    n_jobs : int or None, default=None
        Number of processes that share the systems, as in joblib.
    """

    def __init__(self, centres, n_neighbors, objective, n_jobs=None):
        self.centres, self.n_neighbors = centres, n_neighbors
        self.objective, self.n_jobs = objective, n_jobs

    def prepared(self, problem, theta, state):
        near = state.extra.get("near")
        if near is None:
            near = neighbours_of(problem, theta, self.centres, self.n_neighbors)
        around = Neighbourhoods(problem, self.centres, near)
        searched = {"near": near, "searched_at": theta.detach()}
        return replace(state, extra=searched | state.extra | {"around": around})

    def estimate(self, problem, theta, state):
        if "around" not in state.extra:
            state = self.prepared(problem, theta, state)
        around, s = state.extra["around"], len(self.centres)
        found = workers(around, s, self.n_jobs, device=problem.X.device).call(
            Neighbourhoods.sums, self.objective, theta.detach(), along=[torch.arange(s)]
        )
        values, grads = zip(*found, strict=True)
        # The scatter of all merged rows: few rows differ much, and some rows may have none of them.
        n, (more, slope) = len(problem.X), problem.repeated(theta)
        grad = n * sum(grads) / s + slope.to(theta)
        return GradientEstimate(grad, n * sum(values) / s + more), state


class FullScaleGradient(_SearchedOnce):
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
    n_jobs : int or None, default=None
        Number of processes that share the rows, as in joblib.
    """

    def __init__(self, n_inducing, n_neighbors, seed, n_jobs=None):
        self.n_inducing, self.n_neighbors, self.seed = n_inducing, n_neighbors, seed
        self.n_jobs = n_jobs

    def prepared(self, problem, theta, state):
        extra = {"searched_at": theta.detach()} | state.extra
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
        if "whole" not in state.extra:
            state = self.prepared(problem, theta, state)
            earlier = Earlier.of(state.extra["near"].cpu().numpy(), self.seed)
            state.extra["whole"] = WholeLikelihood(problem, state.extra["inducing"], earlier)
        value, grad = state.extra["whole"].at(theta, n_jobs=self.n_jobs)
        return GradientEstimate(grad, value), state


class Scaled(NamedTuple):
    """A kernel's hyperparameters times `scale`, and the leave-one-out log density.

    The density is a mean over observations and targets; equal rows are several observations.

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
    Priors count as in training, where they are added to the log density of all rows. Known noise
    may hide how large the rest is: beside it the number's logarithm has a standard normal prior.
    The amplitude and the noise could be trained one by one, but a few hundred rows do not determine
    both: among many equal rows the noise would fall to nearly zero.

    Parameters
    ----------
    problem : GPProblem
        All training rows.
    theta : Tensor of shape (p,)
        The log hyperparameters at which the number is one.
    n_jobs : int or None, default=None
        Number of processes that share the predictions, as in joblib.

    Attributes
    ----------
    free : bool
        Whether the kernel can be multiplied: no amplitude and no noise level is missing or fixed.
    """

    def __init__(self, problem: GPProblem, theta: Float[Tensor, " p"], n_jobs: int | None = None):
        self._problem, self._theta, kernel = problem, theta, problem.kernel
        self._n_jobs = n_jobs
        self._moved = torch.as_tensor(kernel.variances).to(theta)
        self.free = kernel.has_scale(theta, problem.X[:10])

    def best(
        self,
        rows: Int[Tensor, " s"],
        near: Int[Tensor, "s m"],
        dtype: torch.dtype,
        scaled: bool = True,
        local: bool = True,
        shared: Shared | None = None,
    ) -> Scaled:
        """The number, and the power of local errors, with the highest log density of observations.

        Each row is left out and predicted from these neighbours. The number is one, and the power
        zero, unless `scaled` is true. The power is also zero unless `local` is true and another is
        better by two standard errors of the difference.
        """
        problem, theta = self._problem, self._theta
        some = problem.rows.take(rows)
        X, Y, known = some.X, some.Y, some.noise
        around, s = Neighbourhoods(problem, rows, near, shared), torch.arange(len(rows))
        by = workers(around, len(rows), self._n_jobs, device=problem.X.device)
        found = by.call(Neighbourhoods.predicted, theta, dtype, scaled and local, along=[s])
        predicted = Predicted(*map(torch.cat, zip(*found, strict=True)))
        mean, variance, surprise = predicted[:3]
        white = problem.kernel.noise(theta, X)
        if shared is not None:
            mean, variance = left_out_moments(predicted, Y, some.noise_of_means(white + known))
        # Of one observation: equal rows are left out together, and each of them is predicted.
        variance, weight = variance + white, some.weight / some.weight.mean()
        # A kernel without noise predicts copies of other rows without any variance. In single
        # precision the prior variance is no scale for this: that of a smooth function may be 1e8
        # times the posterior's.
        least = torch.finfo(torch.float64).eps * problem.kernel.diag(theta, X)
        floor = torch.maximum(torch.finfo(torch.float32).eps * variance.mean(), least)
        variance = torch.maximum(variance, floor)
        error = (Y - mean).square().mean(1) + some.scatter / (some.weight * Y.shape[1])

        def losses(log_scale: float, power: float) -> Float[Tensor, " s"]:
            scale, factor = math.exp(log_scale), local_factor(surprise, power)
            total = scale * variance * factor + known
            return 0.5 * weight * (error / total + (2 * math.pi * total).log())

        if not (self.free and scaled):
            return Scaled(theta, 1.0, -float(losses(0.0, 0.0).mean()))
        room = (problem.kernel.bounds - theta.cpu()[:, None])[self._moved.cpu().bool()]
        low, high = max(float(room[:, 0].max()), -_MOST_SCALE), float(room[:, 1].min())
        limits = min(low, 0.0), max(min(high, _MOST_SCALE), 0.0)

        told = bool((known > _NEGLIGIBLE * variance).any())
        doubt = 1.0 / Y.numel() if told else 0.0
        observations = float(problem.rows.weight.sum())

        def log_prior(log_scale: float) -> float:
            """For one observation of one target."""
            moved = theta + self._moved * log_scale
            return problem.log_prior(moved.cpu().numpy())[0] / (observations * Y.shape[1])

        best_of = {}
        for power in (0.0, *_POWERS) if local else (0.0,):
            best = minimize_scalar(
                lambda at, power=power: (
                    float(losses(at, power).mean()) - log_prior(at) + 0.5 * doubt * at**2
                ),
                bounds=limits,
                method="bounded",
            )
            best_of[power] = float(best.x), losses(float(best.x), power)
        power = min(best_of, key=lambda power: float(best_of[power][1].mean()))
        gains = best_of[0.0][1] - best_of[power][1]
        if float(gains.mean()) <= _DOUBT * float(gains.std(correction=0)) / len(gains) ** 0.5:
            power = 0.0
        log_scale, loss = best_of[power]
        moved = theta + self._moved * log_scale
        return Scaled(moved, math.exp(log_scale), -float(loss.mean()), power)
