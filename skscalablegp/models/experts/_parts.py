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
from ...linalg.gradients import ExactGradient, exact_marginal_likelihood
from ...workers import run
from ._gradient import Experts, ExpertTable
from ._posterior import ExpertPosterior

# Rows on which the two centres of a split are trained.
_KMEANS_ROWS = 10_000


def random_parts(n: int, size: int, random_state: np.random.RandomState) -> list[np.ndarray]:
    """Random parts of at most `size` rows, whose sizes differ by one at most."""
    parts = np.array_split(random_state.permutation(n), max(-(-n // size), 1))
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
    X: np.ndarray, size: int, partition: str, random_state: np.random.RandomState
) -> list[np.ndarray]:
    """A random part, which all experts will share, and then parts of the remaining rows."""
    if len(X) <= size:
        return [np.arange(len(X))]
    order = random_state.permutation(len(X))
    rest = np.sort(order[size:])
    if partition == "random":
        parts = random_parts(len(rest), size, random_state)
    else:
        parts = kmeans_parts(X[rest], size, random_state)
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
    table: ExpertTable,
    theta: np.ndarray,
    settings: StageSettings,
    budget: Budget,
    seed: int,
    callbacks: Sequence[Callable[[TrainingStep], bool]] = (),
) -> TrainedExpert:
    """Train the hyperparameters of one part, from a starting point."""
    problem = table.problem()
    monitor = Monitor(callbacks, budget)
    run = Run(monitor, torch.Generator().manual_seed(seed), np.random.RandomState(seed))
    exact, plan = ExactGradient(), plan_training(settings, True, len(problem.X))
    result = fit_hyperparameters(problem, exact, theta, plan, run, compare_starts=False)
    value = result.value - problem.kernel.log_prior(result.theta)[0]
    return TrainedExpert(result.theta, value, result.n_iter, result.stop_reason, monitor.steps)


def untrained(table: ExpertTable, theta: np.ndarray, reason: End) -> TrainedExpert:
    """The result for an expert that was not trained."""
    return TrainedExpert(theta, likelihood(table, theta), 0, reason, [])


def likelihood(table: ExpertTable, theta: np.ndarray) -> float:
    """The log marginal likelihood of one expert; O(b^3) for b rows."""
    look_up()
    return exact_marginal_likelihood(table.problem(), torch.as_tensor(theta), False).value


def train_separately(
    tables: Sequence[ExpertTable],
    theta: np.ndarray,
    settings: StageSettings,
    monitor: Monitor,
    random_state: np.random.RandomState,
    n_jobs: Any,
) -> list[TrainedExpert]:
    """Train every expert from a common starting point; each has an equal share of the time left.

    Callbacks are called after every step, or after the end if experts are trained in parallel.
    """
    seeds = [int(seed) for seed in random_state.randint(2**31 - 1, size=len(tables))]
    workers = min(joblib.effective_n_jobs(n_jobs), len(tables))
    monitor.begin("experts")
    if workers > 1:
        return _train_in_parallel(tables, theta, settings, monitor, seeds, workers)
    trained: list[TrainedExpert] = []
    for k, (table, seed) in enumerate(zip(tables, seeds, strict=True)):
        if not monitor.budget.allows(0.0):
            monitor.budget.end(End.MAX_SECONDS)
        if monitor.budget.ended is not None:
            trained.append(untrained(table, theta, monitor.budget.ended))
            continue

        def hear(step: TrainingStep, stage: str = f"expert {k + 1}") -> bool:
            return monitor.hear(replace(step, stage=stage, seconds=monitor.budget.seconds))

        # Time that an expert does not use is left to the later ones.
        share = monitor.budget.share(1 / (len(tables) - k))
        with monitor.budget.may_end() as ending:
            trained.append(train_expert(table, theta, settings, share, seed, [hear]))
        if ending.reason is not None:
            trained.append(untrained(table, theta, ending.reason))
    for expert in trained:
        monitor.budget.end(expert.stop_reason)
    return trained


def _train_in_parallel(
    tables: Sequence[ExpertTable],
    theta: np.ndarray,
    settings: StageSettings,
    monitor: Monitor,
    seeds: list[int],
    workers: int,
) -> list[TrainedExpert]:
    """Train every expert in a worker, which calls no callbacks."""
    share, begun = monitor.budget.share(workers / len(tables)).limit, monitor.budget.seconds
    job = joblib.delayed(_train_in_worker)
    with monitor.budget.may_end() as ending:
        trained = joblib.Parallel(n_jobs=workers)(
            job(table, theta, settings, share, seed)
            for table, seed in zip(tables, seeds, strict=True)
        )
        steps = [
            replace(step, stage=f"expert {k + 1}", seconds=begun + step.seconds)
            for k, expert in enumerate(trained)
            for step in expert.steps
        ]
    if ending.reason is not None:
        trained, steps = [untrained(table, theta, ending.reason) for table in tables], []
    for expert in trained:
        monitor.budget.end(expert.stop_reason)
    with monitor.budget.may_end():
        for step in sorted(steps, key=lambda step: step.seconds):
            monitor.hear(step)
    return trained


def _train_in_worker(
    table: ExpertTable,
    theta: np.ndarray,
    settings: StageSettings,
    seconds: float | None,
    seed: int,
) -> TrainedExpert:
    """Train an expert whose time begins when a worker takes it."""
    return train_expert(table, theta, settings, Budget(seconds), seed)


def build_experts(
    tables: Sequence[ExpertTable], thetas: Sequence[np.ndarray], n_jobs: Any, single: bool
) -> tuple[list[ExpertPosterior], float, float]:
    """The posterior of each part, the sum of their log likelihoods, and the largest jitter.

    With `single`, variances are computed in single precision if that is accurate.
    """
    found = Experts(tables, n_jobs).each(_factor, thetas)

    experts = []
    for table, theta, (factor, weights, *_) in zip(tables, thetas, found, strict=True):
        operator = table.problem().operator(torch.as_tensor(theta))
        tensors = [torch.as_tensor(a, device=table.device) for a in (weights, factor)]
        experts.append(ExpertPosterior(operator, *tensors))
    if single:
        run([expert.invert for expert in experts], experts[0].device)
    return experts, sum(value for *_, value, _ in found), max(jitter for *_, jitter in found)


def _factor(table: ExpertTable, theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, float, float]:
    look_up()
    result = exact_marginal_likelihood(table.problem(), torch.as_tensor(theta), False)
    factor, weights = result.factor.cpu().numpy(), result.weights.cpu().numpy()
    return factor, weights, result.value, result.jitter
