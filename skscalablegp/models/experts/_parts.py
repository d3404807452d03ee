"""Dividing a table into parts; training and building their experts in parallel."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning

from ..._end import End
from ...core import Run, StageSettings, fit_hyperparameters, plan_training
from ...core.data import column_spread, limited
from ...core.training import Budget, Monitor, TrainingStep
from ...linalg.blocks import look_up
from ...linalg.gradients import ExactGradient, GPProblem, exact_marginal_likelihood

# Rows on which the two centres of a split are trained.
_KMEANS_ROWS = 10_000


def random_parts(X: np.ndarray, size: int, random_state: np.random.RandomState) -> list[np.ndarray]:
    """Random parts of at most `size` rows, whose sizes differ by one at most."""
    parts = np.array_split(random_state.permutation(len(X)), max(-(-len(X) // size), 1))
    return [np.sort(part) for part in parts]


def kmeans_parts(X: np.ndarray, size: int, random_state: np.random.RandomState) -> list[np.ndarray]:
    """Neighbourhoods of at most `size` rows, of nearly equal sizes; O(n d log n).

    Bisecting k-means with balanced halves: the rows are repeatedly split in two along the line
    between two centres. Columns are divided by their robust standard deviations, and far entries
    are moved to the range of the others: one of them would have a centre to itself, and all
    other rows would be ordered by its column alone.
    """
    scaled = limited(X) / column_spread(X)

    def split(rows: np.ndarray, k: int) -> list[np.ndarray]:
        if k == 1:
            return [np.sort(rows)]
        some = rows[random_state.permutation(len(rows))[:_KMEANS_ROWS]]
        seed = random_state.randint(2**31 - 1)
        with warnings.catch_warnings():
            # Equal rows have only one centre, and are split in the middle.
            warnings.simplefilter("ignore", ConvergenceWarning)
            a, b = KMeans(2, n_init=1, random_state=seed).fit(scaled[some]).cluster_centers_
        order = rows[np.argsort(scaled[rows] @ (b - a), kind="stable")]
        left = k // 2
        middle = round(len(rows) * left / k)
        return split(order[:middle], left) + split(order[middle:], k - left)

    return split(np.arange(len(X)), max(-(-len(X) // size), 1))


def global_first(
    X: np.ndarray,
    size: int,
    divide: Callable[..., list[np.ndarray]],
    random_state: np.random.RandomState,
) -> list[np.ndarray]:
    """A random part, which all experts will share, and then parts of the remaining rows."""
    if len(X) <= size:
        return [np.arange(len(X))]
    order = random_state.permutation(len(X))
    rest = np.sort(order[size:])
    parts = divide(X[rest], size, random_state)
    return [np.sort(order[:size]), *(rest[part] for part in parts)]


@dataclass(frozen=True)
class TrainedExpert:
    """The result of training one expert separately.

    Attributes
    ----------
    theta : ndarray of shape (p,)
    value : float
        Log marginal likelihood of its part.
    n_iter : int
    stop_reason : End
    steps : list of TrainingStep
    """

    theta: np.ndarray
    value: float
    n_iter: int
    stop_reason: End
    steps: list[TrainingStep]


def train_expert(
    problem: GPProblem,
    theta: np.ndarray,
    settings: StageSettings,
    budget: Budget,
    seed: int,
    callbacks: Sequence[Callable[[TrainingStep], bool]] = (),
) -> TrainedExpert:
    """Train the hyperparameters of one part, from a starting point."""
    monitor = Monitor(callbacks, budget)
    run = Run(monitor, torch.Generator().manual_seed(seed), np.random.RandomState(seed))
    exact, plan = ExactGradient(), plan_training(settings, True, len(problem.X))
    result = fit_hyperparameters(problem, exact, theta, plan, run, compare_starts=False)
    value = result.value - problem.kernel.log_prior(result.theta)[0]
    return TrainedExpert(result.theta, value, result.n_iter, result.stop_reason, monitor.steps)


def untrained(problem: GPProblem, theta: np.ndarray, reason: End) -> TrainedExpert:
    """The result for an expert that was not trained; O(b^3) for b rows."""
    look_up()
    value = exact_marginal_likelihood(problem, torch.as_tensor(theta), False).value
    return TrainedExpert(theta, value, 0, reason, [])


def train_separately(
    experts: Sequence[GPProblem],
    theta: np.ndarray,
    settings: StageSettings,
    monitor: Monitor,
    random_state: np.random.RandomState,
    n_jobs: Any,
) -> list[TrainedExpert]:
    """Train every expert from a common starting point; each has an equal share of the time left.

    Callbacks are called after every step, or after the end if experts are trained in parallel.
    """
    seeds = [int(seed) for seed in random_state.randint(2**31 - 1, size=len(experts))]
    workers = min(joblib.effective_n_jobs(n_jobs), len(experts))
    monitor.begin("experts")
    if workers > 1:
        return _train_in_parallel(experts, theta, settings, monitor, seeds, workers)
    trained: list[TrainedExpert] = []
    for k, (expert, seed) in enumerate(zip(experts, seeds, strict=True)):
        if not monitor.budget.allows(0.0):
            monitor.budget.end(End.MAX_SECONDS)
        if monitor.budget.ended is not None:
            trained.append(untrained(expert, theta, monitor.budget.ended))
            continue

        def hear(step: TrainingStep, stage: str = f"expert {k + 1}") -> bool:
            return monitor.hear(replace(step, stage=stage, seconds=monitor.budget.seconds))

        # Time that an expert does not use is left to the later ones.
        share = monitor.budget.share(1 / (len(experts) - k))
        with monitor.budget.may_end() as ending:
            trained.append(train_expert(expert, theta, settings, share, seed, [hear]))
        if ending.reason is not None:
            trained.append(untrained(expert, theta, ending.reason))
    for found in trained:
        monitor.budget.end(found.stop_reason)
    return trained


def _train_in_parallel(
    experts: Sequence[GPProblem],
    theta: np.ndarray,
    settings: StageSettings,
    monitor: Monitor,
    seeds: list[int],
    workers: int,
) -> list[TrainedExpert]:
    """Train every expert in a worker, which calls no callbacks."""
    share, begun = monitor.budget.share(workers / len(experts)).limit, monitor.budget.seconds
    job = joblib.delayed(_train_in_worker)
    with monitor.budget.may_end() as ending:
        trained = joblib.Parallel(n_jobs=workers)(
            job(expert, theta, settings, share, seed)
            for expert, seed in zip(experts, seeds, strict=True)
        )
        steps = [
            replace(step, stage=f"expert {k + 1}", seconds=begun + step.seconds)
            for k, found in enumerate(trained)
            for step in found.steps
        ]
    if ending.reason is not None:
        trained, steps = [untrained(expert, theta, ending.reason) for expert in experts], []
    for found in trained:
        monitor.budget.end(found.stop_reason)
    with monitor.budget.may_end():
        for step in sorted(steps, key=lambda step: step.seconds):
            monitor.hear(step)
    return trained


def _train_in_worker(
    expert: GPProblem,
    theta: np.ndarray,
    settings: StageSettings,
    seconds: float | None,
    seed: int,
) -> TrainedExpert:
    """Train an expert whose time begins when a worker takes it."""
    return train_expert(expert, theta, settings, Budget(seconds), seed)
