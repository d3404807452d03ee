"""The driver of optimisers: from starting hyperparameters to trained ones."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Generator

from ..._end import End
from ...linalg.blocks import watched
from ...linalg.gradients import (
    GPProblem,
    GradientEstimate,
    GradientEstimator,
    GradientState,
    fisher_information,
)
from ._budget import StopTraining
from ._journal import Evaluations, reading
from ._monitor import Evaluated, Monitor
from ._optimizers import Optimizer, Optimum
from ._quasi_newton import ROUNDING

# Step in a log hyperparameter for finite differences of the slope of its prior.
_PRIOR_STEP = 1e-4


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training run.

    Attributes
    ----------
    theta : ndarray of shape (p,)
        The best hyperparameters. If values are exact, they have the highest value. Otherwise they
        are the mean of the last `average` iterates, since noise hides which iterate is best.
    value : float
        Their log marginal likelihood plus the log prior; NaN if unknown.
    state : GradientState
        Probe vectors and last solutions.
    n_iter : int
        Number of evaluations.
    stop_reason : End
    metric : ndarray of shape (p, p) or None
        Inverse Hessian of the negative objective, if the optimiser has one.
    exact : bool
        Whether values and gradients were exact.
    dtype : torch.dtype
        Precision of the matrix products.
    planned : bool
        Whether the steps or epochs that ran out were a schedule that was planned to run out.
    tied : ndarray of shape (p,) or None
        Groups of hyperparameters that were moved together; see `GPProblem`.
    """

    theta: np.ndarray
    value: float
    state: GradientState
    n_iter: int
    stop_reason: End
    metric: np.ndarray | None = None
    exact: bool = False
    dtype: torch.dtype = torch.float64
    planned: bool = False
    tied: np.ndarray | None = None

    @classmethod
    def untrained(
        cls,
        theta: np.ndarray,
        dtype: torch.dtype = torch.float64,
        tied: np.ndarray | None = None,
    ) -> TrainingResult:
        """The result if there is nothing to train."""
        return cls(theta, float("nan"), GradientState(), 0, End.CONVERGED, dtype=dtype, tied=tied)


class _Run:
    """The objective of one run of an optimiser; keeps the best and the latest state."""

    def __init__(self, problem, estimator, state, monitor, log, patience, tol, max_epochs=None):
        self.problem, self.estimator, self.log = problem, estimator, log
        self.state, self.monitor = state, monitor
        self.patience, self.tol = patience, tol
        self.max_epochs, self.epochs = max_epochs, 0.0
        self.best_theta: np.ndarray | None = None
        self.best_value = -np.inf
        self.chosen: np.ndarray | None = None
        self.iterates: list[np.ndarray] = []
        self.values: list[float] = []

    def redraw(self) -> None:
        """Make the next evaluation draw new random numbers instead of the frozen ones.

        The targets' solution is dropped, too: the new probes' solves take as many steps from zero,
        and a solve that begins elsewhere needs one more product.
        """
        self.state = replace(self.state, probes=None, samples=None, previous=None)

    @property
    def informed(self) -> bool:
        """Whether values are known, and rows whose Fisher information `information` can compute."""
        return self.estimator.exact and self.problem.has_rows

    def information(
        self,
        theta: np.ndarray,
        n_rows: int,
        generator: Generator | None = None,
        directions: np.ndarray | None = None,
    ) -> np.ndarray:
        """The Fisher information of random rows, and the curvature of the log prior.

        Parameters
        ----------
        theta : ndarray of shape (p,)
        n_rows : int
        generator : torch.Generator, optional
            Draws the rows; that of the run by default.
        directions : ndarray of shape (q, p), optional
            As in `fisher_information`.

        Raises
        ------
        numpy.linalg.LinAlgError
            If the covariance matrix of these rows has no Cholesky factor.
        """
        at, log_prior = torch.as_tensor(theta, dtype=torch.float64), self.problem.log_prior
        try:
            with watched(self.monitor.budget.check):
                generator = self.state.generator if generator is None else generator
                along = None if directions is None else torch.as_tensor(directions)
                found = fisher_information(self.problem, at, n_rows, generator, along)
        except torch.linalg.LinAlgError as error:
            raise np.linalg.LinAlgError(str(error)) from error
        information = found.numpy()
        if self.problem.kernel.log_prior:
            # The hyperparameters are independent under the prior: its curvature is diagonal.
            fall = log_prior(theta - _PRIOR_STEP)[1] - log_prior(theta + _PRIOR_STEP)[1]
            curvature = np.diag(np.maximum(fall / (2 * _PRIOR_STEP), 0.0))
            if directions is not None:
                curvature = directions @ curvature @ directions.T
            information += curvature
        return information

    def __call__(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        known = self.log.next(theta)
        found = self._computed(theta) if known is None else self._recorded(*known)
        if found is None:
            return self._retreat(theta)
        self.iterates.append(theta.copy())
        self.values.append(found.value)
        if found.value > self.best_value:
            self.best_value, self.best_theta = found.value, theta.copy()
        self.monitor.record(theta, found)
        if _cut(found):
            raise StopTraining(End.MAX_SECONDS)
        self.epochs += found.epochs
        self._check_progress()
        return found.value, found.grad

    def _recorded(self, evaluated: Evaluated | None, state: Any) -> Evaluated | None:
        """An evaluation of an earlier fit; the last one comes with the state for the next."""
        if state is not None:
            with reading():
                self.state = self.estimator.resumed(self.problem, self.state, state)
        return evaluated

    def _computed(self, theta: np.ndarray) -> Evaluated | None:
        """Evaluate the objective, and record that; None if the matrix has no factor."""
        tensor = torch.as_tensor(theta, dtype=torch.float64)
        self.state = replace(self.state, seconds_left=self.monitor.budget.left)
        try:
            with watched(self.monitor.budget.check):
                estimate, state = self.estimator.estimate(self.problem, tensor, self.state)
        except torch.linalg.LinAlgError:
            if not self.iterates:
                raise
            self.log.add(theta, None, partial(self.estimator.kept, self.state))
            return None
        if self.problem.kernel.log_prior:
            estimate = _with_prior(estimate, *self.problem.log_prior(theta))
        found = Evaluated.of(estimate)
        broken = found.solve is not None and found.solve.status is End.BREAKDOWN
        if broken or not (_cut(found) or np.isfinite(found.grad).all()):
            self.monitor.note(found)
            raise StopTraining(End.DIVERGED)
        self.state = state
        self.log.add(theta, found, partial(self.estimator.kept, state))
        return found

    def _retreat(self, theta: np.ndarray) -> tuple[float, np.ndarray]:
        """A finite value and slope in place of those without a factor of H.

        They make a line search step back to the last iterate.
        """
        if np.isnan(self.values[-1]):
            raise StopTraining(End.DIVERGED)
        back = self.iterates[-1] - theta
        drop = abs(self.values[-1]) + len(self.problem.X)
        return self.values[-1] - drop, 2 * drop * back / max(float(back @ back), 1e-300)

    def _check_progress(self) -> None:
        """Check the budget of epochs, and stop if the iterates stay within `tol` of each other."""
        if self.max_epochs is not None and self.epochs > self.max_epochs:
            raise StopTraining(End.MAX_EPOCHS)
        if self.patience is None or len(self.iterates) <= self.patience:
            return
        recent = np.array(self.iterates[-self.patience :])
        if np.ptp(recent, axis=0).max(initial=0.0) < self.tol:
            raise StopTraining(End.CONVERGED)

    def _value_of(self, theta: np.ndarray) -> float:
        """The value at an iterate; minus infinity for other points."""
        pairs = zip(self.iterates, self.values, strict=True)
        return next((value for at, value in pairs if np.array_equal(at, theta)), -np.inf)

    def result(
        self, start: np.ndarray, reason: End, average: int, metric: np.ndarray | None
    ) -> TrainingResult:
        value = float("nan")
        if self.best_theta is not None:
            theta, value = self.best_theta, self.best_value
            # If values differ only by rounding, the slopes seen by the optimiser are more
            # informative.
            last = -np.inf if self.chosen is None else self._value_of(self.chosen)
            if self.chosen is not None and last >= value - ROUNDING * abs(value):
                theta, value = self.chosen, last
        elif self.chosen is not None:
            theta = self.chosen
        elif self.iterates:
            theta = np.mean(self.iterates[-average:], axis=0)
        else:
            theta = start
        return TrainingResult(
            theta,
            value,
            self.state,
            len(self.iterates),
            reason,
            metric,
            self.estimator.exact,
            self.problem.X.dtype,
            tied=self.problem.tied,
        )


def _cut(found: Evaluated) -> bool:
    """Whether time has ended the linear solve, so that there is no gradient for a step."""
    return found.solve is not None and found.solve.status is End.MAX_SECONDS


def _with_prior(estimate: GradientEstimate, value: float, grad: np.ndarray) -> GradientEstimate:
    """Add the log prior and its gradient to an estimate."""
    return replace(
        estimate,
        value=None if estimate.value is None else estimate.value + value,
        grad=estimate.grad + torch.as_tensor(grad).to(estimate.grad),
    )


def train(  # noqa: PLR0913 (the settings of one training)
    problem: GPProblem,
    estimator: GradientEstimator,
    optimizer: Optimizer,
    theta: np.ndarray,
    bounds: np.ndarray,
    *,
    max_iter: int,
    monitor: Monitor,
    generator: Generator,
    n_iter_no_change: int | None = None,
    tol: float = 1e-3,
    average: int = 1,
    metric: np.ndarray | None = None,
    max_epochs: float | None = None,
) -> TrainingResult:
    """Maximise the log marginal likelihood, plus the log prior, from one starting point.

    Parameters
    ----------
    problem : GPProblem
        The data and the kernel.
    estimator : GradientEstimator
        Computes or estimates the gradients.
    optimizer : Optimizer
        Chooses the points of evaluation.
    theta, bounds : ndarray of shape (p,), (p, 2)
        Starting point and bounds, as logarithms.
    max_iter : int
        Maximum number of steps of the optimiser.
    monitor : Monitor
        Keeps history, progress, callbacks and time.
    generator : torch.Generator
        Generator of the estimator's random numbers.
    n_iter_no_change : int, optional
        Training stops if the log hyperparameters moved by less than `tol` in this many steps.
    tol : float, default=1e-3
        See `n_iter_no_change`.
    average : int, default=1
        Number of iterates in the final mean if values are unknown.
    metric : ndarray of shape (p, p), optional
        Initial inverse Hessian, for optimisers that take one.
    max_epochs : float, optional
        Number of solver epochs after which no further step begins.

    Returns
    -------
    result : TrainingResult
        A KeyboardInterrupt, a callback or a time budget ends the run with the best state so far.
    """
    state, log = GradientState(generator), _log(problem, estimator, optimizer, monitor, generator)
    run = _Run(problem, estimator, state, monitor, log, n_iter_no_change, tol, max_epochs)
    if problem.kernel.log_prior:
        monitor.adds("log prior")
    start = np.clip(theta, bounds[:, 0], bounds[:, 1])
    if monitor.budget.ended is not None:
        return run.result(start, monitor.budget.ended, average, metric)
    reason = End.CONVERGED
    with monitor.budget.may_end(
        lambda reason: run.iterates or reason is not End.INTERRUPTED
    ) as ending:
        if optimizer.deviations or problem.tied is not None:
            transformed = _Transformed(run, start, bounds, optimizer.deviations)
            optimum = transformed.maximize(optimizer, start, max_iter, metric)
        else:
            optimum = optimizer.maximize(run, start, bounds, max_iter, metric)
        metric = optimum.metric
        # Only optimisers with a metric know which of their iterates is best.
        run.chosen = None if metric is None else optimum.theta
        if optimizer.exact_only and not any(np.array_equal(optimum.theta, t) for t in run.iterates):
            # A callable may return a point at which it has not evaluated the objective.
            run(np.clip(optimum.theta, bounds[:, 0], bounds[:, 1]))
        ended = End.CONVERGED if len(run.iterates) < max_iter else End.MAX_ITER
        reason = End(optimum.reason or ended)
    log.ended()
    return run.result(start, ending.reason or reason, average, metric)


def _log(
    problem: GPProblem,
    estimator: GradientEstimator,
    optimizer: Optimizer,
    monitor: Monitor,
    generator: Generator,
) -> Evaluations:
    """The record of one run of an optimiser."""
    names = monitor.stage, type(estimator).__name__, type(optimizer).__name__
    return Evaluations("/".join([*names, f"{len(problem.X)}"]), generator)


class _Transformed:
    """The objective of a run in other variables: of tied groups, or of standard deviations.

    theta = offset + (z / units)[groups]. The optimisers see z, its slopes and its information.
    """

    def __init__(self, run: _Run, theta: np.ndarray, bounds: np.ndarray, deviations: bool):
        self._run = run
        # Half the logarithm of a variance is that of a standard deviation.
        variances, tied = run.problem.kernel.variances, run.problem.tied
        self._units = np.ones_like(theta)
        if deviations:
            self._units[: len(variances)][variances] = 0.5
        self._groups = np.arange(len(theta))
        if tied is not None:
            # Inducing points that are trained follow the hyperparameters.
            self._groups += tied.max() + 1 - len(tied)
            self._groups[: len(tied)] = tied
        self._first = np.unique(self._groups, return_index=True)[1]
        self._offset = theta - theta[self._first][self._groups]
        shifted = (bounds - self._offset[:, None]) * self._units[:, None]
        low, high = np.full((2, len(self._first)), [[-np.inf], [np.inf]])
        np.maximum.at(low, self._groups, shifted[:, 0])
        np.minimum.at(high, self._groups, shifted[:, 1])
        self.bounds = np.stack([low, high], 1)

    @property
    def informed(self) -> bool:
        return self._run.informed

    def redraw(self) -> None:
        self._run.redraw()

    def variables(self, theta: np.ndarray) -> np.ndarray:
        return (theta * self._units)[self._first]

    def theta(self, z: np.ndarray) -> np.ndarray:
        return self._offset + z[self._groups] / self._units

    def information(
        self, z: np.ndarray, n_rows: int, generator: Generator | None = None
    ) -> np.ndarray:
        members = self._groups == np.arange(len(z))[:, None]
        return self._run.information(self.theta(z), n_rows, generator, members / self._units)

    def __call__(self, z: np.ndarray) -> tuple[float, np.ndarray]:
        value, grad = self._run(self.theta(z))
        return value, np.bincount(self._groups, grad / self._units, len(z))

    def maximize(
        self, optimizer: Optimizer, start: np.ndarray, max_iter: int, metric: np.ndarray | None
    ) -> Optimum:
        if metric is not None:
            metric = metric[np.ix_(self._first, self._first)]
        z = np.clip(self.variables(start), *self.bounds.T)
        found = optimizer.maximize(self, z, self.bounds, max_iter, metric)
        metric = found.metric
        if metric is not None:
            metric = metric[np.ix_(self._groups, self._groups)]
        return found._replace(theta=self.theta(found.theta), metric=metric)


def restart_points(
    bounds: np.ndarray, n_restarts: int, generator: np.random.RandomState
) -> list[np.ndarray]:
    """Draw starting points uniformly within the bounds of theta, as scikit-learn does."""
    if n_restarts and not np.isfinite(bounds).all():
        raise ValueError(
            "Multiple optimizer restarts (n_restarts_optimizer>0) requires that all bounds are "
            "finite."
        )
    return [generator.uniform(bounds[:, 0], bounds[:, 1]) for _ in range(n_restarts)]
