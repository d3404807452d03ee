"""Initialise on a subset, refine on all rows: the stages every iterative estimator trains in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ..gradients import ExactGradient, GradientEstimator, GradientState
from ..objectives import GPProblem
from ..training import (
    Monitor,
    TrainingResult,
    centroid_subsets,
    random_subset,
    resolve_optimizer,
    restart_points,
    train,
)

# Optimiser steps: plenty where a step is cheap and ends by itself, few where a good start is known.
_EXACT_STEPS = 100
_SUBSET_STEPS = 60
_REFINING_EXACT_STEPS = 12
_REFINING_STEPS = 20
_COLD_STEPS = 100
# Large tables take smaller steps from the subset's start (Lin et al. 2024, appendix B).
_LARGE_ROWS = 50_000


@dataclass(frozen=True)
class StageSettings:
    """What the user may set about training; "auto" is resolved here, by stage.

    Attributes
    ----------
    optimizer : "auto", str, object or callable
    learning_rate : "auto" or float
    max_iter : "auto" or int
        Steps on all rows.
    n_restarts : int
    n_iter_no_change : int or None
    tol : float
        Movement of the log hyperparameters below which training has converged.
    """

    optimizer: Any
    learning_rate: Any
    max_iter: Any
    n_restarts: int
    n_iter_no_change: int | None
    tol: float


def fit_hyperparameters(
    problem: GPProblem,
    estimator: GradientEstimator,
    theta: np.ndarray,
    bounds: np.ndarray,
    settings: StageSettings,
    *,
    subset_size: int | None,
    n_subsets: int,
    monitor: Monitor,
    generator: torch.Generator,
    random_state: np.random.RandomState,
) -> TrainingResult:
    """Subset stage (exact, float64), then all rows with `estimator`, then restarts.

    Returns
    -------
    result : TrainingResult
        The best of all starts where values are exact; else the first's.
    """
    n_iter, initialised = 0, False
    if subset_size is not None:
        start = _initialise(
            problem, theta, bounds, settings, subset_size, n_subsets, monitor, generator
        )
        theta, n_iter, initialised = start.theta, start.n_iter, True
        if start.stop_reason not in ("converged", "max_iter"):
            return start
    starts = [theta, *restart_points(bounds, settings.n_restarts, random_state)]
    best: TrainingResult | None = None
    for first, point in enumerate(starts):
        result = _train_all_rows(
            problem,
            estimator,
            point,
            bounds,
            settings,
            monitor,
            generator,
            initialised=initialised and first == 0,
        )
        n_iter += result.n_iter
        if best is None or (estimator.exact and result.value > best.value):
            best = result
        if result.stop_reason not in ("converged", "max_iter") or not estimator.exact:
            break
    return TrainingResult(best.theta, best.value, best.state, n_iter, best.stop_reason)


def _train_all_rows(
    problem: GPProblem,
    estimator: GradientEstimator,
    theta: np.ndarray,
    bounds: np.ndarray,
    settings: StageSettings,
    monitor: Monitor,
    generator: torch.Generator,
    *,
    initialised: bool,
) -> TrainingResult:
    optimizer, average = _optimizer(settings, estimator.exact, len(problem.X), initialised)
    steps = settings.max_iter
    if steps == "auto":
        if getattr(optimizer, "exact_only", False):
            steps = _REFINING_EXACT_STEPS if initialised else _EXACT_STEPS
        else:
            steps = _REFINING_STEPS if initialised else _COLD_STEPS
    monitor.begin("full", steps)
    return train(
        problem,
        estimator,
        optimizer,
        theta,
        bounds,
        max_iter=steps,
        monitor=monitor,
        generator=generator,
        state=GradientState(),
        n_iter_no_change=settings.n_iter_no_change,
        tol=settings.tol,
        average=average,
    )


def _optimizer(settings: StageSettings, exact: bool, n: int, initialised: bool) -> tuple[Any, int]:
    """The optimiser of the full stage, and how many last iterates to average."""
    choice = settings.optimizer
    if choice == "auto":
        choice = "lbfgs" if exact else "adam"
    rate = settings.learning_rate
    if rate == "auto":
        rate = 0.1 if n <= _LARGE_ROWS else 0.03
    optimizer = resolve_optimizer(choice, rate)
    if optimizer.exact_only and not exact:
        raise ValueError(
            f"optimizer={settings.optimizer!r} needs exact values and gradients, which this "
            "solver does not give: use optimizer='adam', or solver='cholesky'."
        )
    return optimizer, 1 if exact else 5


def _initialise(
    problem: GPProblem,
    theta: np.ndarray,
    bounds: np.ndarray,
    settings: StageSettings,
    size: int,
    n_subsets: int,
    monitor: Monitor,
    generator: torch.Generator,
) -> TrainingResult:
    """Exact maximum likelihood on one random subset, or averaged over neighbourhoods."""
    if n_subsets == 1:
        subsets = [random_subset(len(problem.X), size, generator)]
    else:
        subsets = centroid_subsets(problem.X, n_subsets, size, generator)
    results = []
    optimizer = resolve_optimizer("lbfgs")
    for idx in subsets:
        monitor.begin("subset", _SUBSET_STEPS)
        part = problem.subset(idx.to(problem.X.device)).to(torch.float64)
        result = train(
            part,
            ExactGradient(),
            optimizer,
            theta,
            bounds,
            max_iter=_SUBSET_STEPS,
            monitor=monitor,
            generator=generator,
        )
        results.append(result)
        if result.stop_reason not in ("converged", "max_iter"):
            break
    mean = np.mean([r.theta for r in results], axis=0)
    n_iter = sum(r.n_iter for r in results)
    return TrainingResult(mean, float("nan"), GradientState(), n_iter, results[-1].stop_reason)
