"""Training of hyperparameters in stages: first on subsets, then on all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import torch

from .._end import End
from ..linalg.blocks import watched
from ..linalg.gradients import ExactGradient, GPProblem, GradientEstimator
from ._fast_columns import StartRows
from ._plan import Plan
from ._run import FitRun
from ._starts import choose_start
from ._training_plan import (
    EXACT_STEPS,
    REFINING_STEPS,
    StageSettings,
    Subsets,
    TrainingPlan,
    plan_stages,
)
from ._training_run import Run
from .data import centroid_subsets, problem_square
from .training import (
    ROUNDING,
    Optimizer,
    QuasiNewton,
    TrainingResult,
    restart_points,
    train,
)

# Training continues after a stage that ended for one of these reasons.
_DONE = (End.CONVERGED, End.MAX_ITER, End.MAX_EPOCHS, End.STAGNATED)
# Relative tolerance on a subset, whose optimum is only a start. Fits with looser tolerances ended
# on plateaus from which the likelihood could still rise by two hundred nats; tighter ones take
# steps that gain nothing. The loose one is for starts of exact training on all rows.
_SUBSET_TOL = {True: 3e-5, False: 1e-5}
# Ratio of the sizes of successive random subsets.
_GROWTH = 3
# Added to the curvature of a subset before steps with noisy gradients, in nats.
_FLAT = 1.0
# Above this bound of condition number times unit roundoff, float32 cannot factorise H.
_FLOAT32_LIMIT = 1.0


def train_or_report(
    problem: GPProblem,
    estimator: GradientEstimator,
    settings: StageSettings,
    run: FitRun,
) -> TrainingResult:
    """Report the plan of training, and call `fit_hyperparameters` from the kernel's own values."""
    plan = plan_stages(settings, estimator.exact, len(problem.X), problem.kernel.n_params)
    run.follow(plan)
    return train_planned(problem, estimator, plan, run)


def train_planned(
    problem: GPProblem, estimator: GradientEstimator, plan: Plan, run: FitRun
) -> TrainingResult:
    """Call `fit_hyperparameters` from the kernel's own values, unless nothing is to be trained.

    `plan` is that of `plan_stages`.
    """
    theta = problem.kernel.theta0.numpy()
    if not isinstance(plan, TrainingPlan):
        return TrainingResult.untrained(theta, problem.X.dtype)
    return fit_hyperparameters(problem, estimator, theta, plan, run)


def fit_hyperparameters(
    problem: GPProblem,
    estimator: GradientEstimator,
    theta: np.ndarray,
    plan: TrainingPlan,
    run: Run,
    *,
    name: str = "full",
    compare_starts: bool = True,
) -> TrainingResult:
    """Train with exact fits on growing subsets, then on all rows with `estimator`, then restarts.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    estimator : GradientEstimator
        Of training on all rows.
    theta : ndarray of shape (p,)
        The start.
    plan : TrainingPlan
        That of `plan_training` for these rows.
    run : Run
    name : str, default="full"
        Name of the stage on all rows.
    compare_starts : bool, default=True
        Whether `theta` is compared with other starts, unless the optimiser begins where it is told.

    Returns
    -------
    result : TrainingResult
        The best of all starts if values are exact, otherwise the first one. Restarts that fail are
        listed in the failures of the monitor.
    """
    if tells_nothing(problem):
        return TrainingResult.untrained(theta, problem.X.dtype)
    settings, metric, start = plan.settings, None, None
    subsets = settings.subsets
    compare_starts = compare_starts and plan.methods[0].compare_starts
    if compare_starts and not settings.follows_scikit_learn:
        steps, exact, given = settings.most_steps, estimator.exact, settings.as_scikit_learn
        chosen = choose_start(problem, theta, run, steps, exact, as_given=given)
        problem = replace(problem, tied=chosen.tied)
        run.reports(start=chosen.describe())
        theta = chosen.theta
    if subsets is not None:
        exact = estimator.on_subset() or ExactGradient()
        start = _initialise(problem, exact, theta, settings, subsets, run, estimator.exact)
        theta, metric = start.theta, start.metric
        if metric is not None and not estimator.exact:
            # Noise of the gradient must not become long steps in directions without curvature.
            metric = metric @ np.linalg.inv(np.eye(len(metric)) + _FLAT * metric)
        # These fields describe training on all rows.
        start = replace(start, exact=estimator.exact, dtype=problem.X.dtype)
        if start.stop_reason not in _DONE:
            return start
        if subsets.only:
            planned = start.stop_reason is not End.MAX_ITER or End.MAX_ITER in plan.schedule
            return replace(start, planned=planned)
    elif compare_starts and not settings.follows_scikit_learn:
        theta = _suited(problem, estimator, theta, run)
    starts = [theta]
    if estimator.exact:
        bounds = problem.kernel.bounds.numpy()
        starts += restart_points(bounds, settings.n_restarts, run.restarts)

    ways = range(len(plan.methods))
    train_from = partial(_train_all_rows, name, problem, estimator, plan, run)
    attempts = (
        partial(train_from, point, way, None if k else metric)
        for k, (point, way) in enumerate(product(starts, ways))
    )
    return best_of(attempts, start, run, len(ways))


def tells_nothing(problem: GPProblem) -> bool:
    """Whether the rows are a single one whose target has become zero by its own mean.

    The likelihood of a zero grows as all variances vanish, whatever the target was.
    """
    if not problem.has_rows or problem.rows.merged:
        return False
    return sum(problem.each(_rows_of)) == 1 and problem_square(problem) == 0


def _rows_of(problem: GPProblem) -> int:
    return len(problem.X)


def _suited(
    problem: GPProblem, estimator: GradientEstimator, theta: np.ndarray, run: Run
) -> np.ndarray:
    """The start that suits the estimator, or the given one if time runs out."""
    with run.budget.may_end(), watched(run.budget.check):
        theta = estimator.suited(problem, torch.as_tensor(theta)).numpy()
    return theta


def best_of(
    attempts: Iterable[Callable[[], TrainingResult]],
    best: TrainingResult | None,
    run: Run,
    ways: int = 1,
) -> TrainingResult:
    """The best result of several attempts, with the steps of all.

    An interrupt ends them, and restarts that fail are listed in the failures of the monitor.

    Parameters
    ----------
    attempts : iterable of callable
        Trainings, the first from the given hyperparameters, the others from other starts.
    best : TrainingResult or None
        The result if the first attempt is interrupted, whose steps count. With None the interrupt
        is raised.
    run : Run
    ways : int
        Number of attempts from each start.
    """
    n_iter = 0 if best is None else best.n_iter
    ended = None
    for k, attempt in enumerate(attempts):
        try:
            with run.budget.may_end(best is not None) as ending:
                result = attempt()
        except torch.linalg.LinAlgError:
            if k == 0:
                raise
            failure = "no Cholesky factor at its start"
            run.monitor.failures.append(f"restart {k // ways}: {failure}")
            continue
        if ending.reason is not None:
            ended = ending.reason
            break
        n_iter += result.n_iter
        # Of optima that are equal up to rounding the first one is kept, because its optimiser
        # follows slopes to the end.
        if k == 0 or best is None or result.value > best.value + ROUNDING * abs(best.value):
            best = result
        if result.stop_reason is End.DIVERGED and k > 0:
            run.monitor.failures.append(f"restart {k // ways}: training diverged")
        elif result.stop_reason not in _DONE:
            break
    assert best is not None  # The first attempt has ended, or has raised its error.
    return replace(best, n_iter=n_iter, stop_reason=ended or best.stop_reason)


def _train_all_rows(
    name: str,
    problem: GPProblem,
    estimator: GradientEstimator,
    plan: TrainingPlan,
    run: Run,
    theta: np.ndarray,
    way: int,
    metric: np.ndarray | None,
) -> TrainingResult:
    settings = plan.settings
    if settings.precision != "given":
        problem = well_conditioned(problem, theta)
        if problem.X.dtype == torch.float64 and settings.precision == "factorised":
            # Iterative solvers would need thousands of epochs; a factorisation costs the same.
            estimator, plan = ExactGradient(), plan.factorised()
    optimizer, steps = plan.methods[way], plan.max_iter.value
    patience = {}
    if optimizer.patient:
        patience = {"n_iter_no_change": settings.n_iter_no_change, "average": 5}
    epochs = plan.training_max_epochs.value
    stage = _stage(name, problem, estimator, optimizer, theta, steps, run)
    result = stage(metric=metric, max_epochs=epochs, **patience)
    return replace(result, planned=result.stop_reason in plan.schedule)


def _train_subset(
    name: str,
    problem: GPProblem,
    estimator: GradientEstimator,
    optimizer: QuasiNewton,
    theta: np.ndarray,
    settings: StageSettings,
    run: Run,
    metric: np.ndarray | None = None,
) -> TrainingResult:
    steps = EXACT_STEPS if metric is None else REFINING_STEPS
    if settings.subsets_only and settings.most_steps is not None:
        steps = min(steps, settings.most_steps)
    return _stage(name, problem, estimator, optimizer, theta, steps, run)(metric=metric)


def _stage(
    name: str,
    problem: GPProblem,
    estimator: GradientEstimator,
    optimizer: Optimizer,
    theta: np.ndarray,
    steps: int,
    run: Run,
) -> Callable[..., TrainingResult]:
    """Begin a stage; the result runs it, given the remaining arguments of `train`."""
    run.monitor.begin(name, steps)
    return partial(
        train,
        problem,
        estimator,
        optimizer,
        theta,
        problem.kernel.bounds.numpy(),
        max_iter=steps,
        monitor=run.monitor,
        generator=run.generator,
    )


def _initialise(
    problem: GPProblem,
    exact: GradientEstimator,
    theta: np.ndarray,
    settings: StageSettings,
    subsets: Subsets,
    run: Run,
    all_exact: bool,
) -> TrainingResult:
    """Maximise the exact likelihood of nested random subsets, or average over neighbourhoods.

    `all_exact` is whether the gradients of training on all rows, which follows, are exact.
    """
    n = len(problem.X)
    tol = _SUBSET_TOL[all_exact and not subsets.only]
    if subsets.count > 1:
        return _average_neighbourhoods(problem, exact, theta, settings, subsets, run, tol)
    order = torch.randperm(n, generator=run.generator).to(problem.X.device)
    n_iter, metric, size, result = 0, None, subsets.size, None
    start_rows = StartRows.of(problem, run.fast)
    # A subset of nearly all rows is not worth its time if all rows follow.
    share = 1.0 if subsets.only else 1.5
    while result is None or size * share < n:
        optimizer = QuasiNewton(tol, gain_tol=max(0.5, settings.gain_per_row * size))
        with run.budget.may_end(result is not None) as ending:
            rows = torch.as_tensor(start_rows.chosen(order[:size].cpu().numpy()))
            part = problem.random_part(rows.to(problem.X.device))
            if metric is None:
                part = part.to(torch.float64)
            elif settings.precision != "given":
                part = well_conditioned(part, theta)
            result = _train_subset(f"{size}", part, exact, optimizer, theta, settings, run, metric)
        if ending.reason is not None:
            # There was no evaluation on these rows: the result of fewer rows is kept.
            result = replace(result, n_iter=0, stop_reason=ending.reason)
        theta, metric = result.theta, result.metric
        n_iter += result.n_iter
        if result.stop_reason not in _DONE:
            break
        larger = min(size * _GROWTH, subsets.largest)
        if larger < 1.5 * size:
            break
        if metric is not None:
            metric = metric * (size / min(larger, n))
        size = larger
    if metric is not None:
        metric = metric * (min(size, n) / n)
    return replace(result, n_iter=n_iter, metric=metric, value=float("nan"))


def _average_neighbourhoods(
    problem: GPProblem,
    exact: GradientEstimator,
    theta: np.ndarray,
    settings: StageSettings,
    subsets: Subsets,
    run: Run,
    tol: float,
) -> TrainingResult:
    results: list[TrainingResult] = []
    sets = centroid_subsets(problem.X, subsets.count, subsets.size, run.generator)
    for k, rows in enumerate(sets):
        name = f"neighbourhood {k + 1}"
        with run.budget.may_end(bool(results)) as ending:
            part = problem.subset(rows).to(torch.float64)
            result = _train_subset(name, part, exact, QuasiNewton(tol), theta, settings, run)
        if ending.reason is not None:
            results[-1] = replace(results[-1], stop_reason=ending.reason)
            break
        results.append(result)
        if result.stop_reason not in _DONE:
            break
    mean = np.mean([r.theta for r in results], axis=0)
    n_iter = sum(r.n_iter for r in results)
    return replace(results[-1], theta=mean, value=float("nan"), n_iter=n_iter, metric=None)


def well_conditioned(
    problem: GPProblem, theta: np.ndarray, limit: float = _FLOAT32_LIMIT
) -> GPProblem:
    """Move the problem to float64 if n k(x, x) / noise is too large to factorise in float32.

    `limit` is the accepted bound of the condition number times unit roundoff.
    """
    if problem.X.dtype == torch.float64:
        return problem
    tensor = torch.as_tensor(theta, dtype=torch.float64)
    with torch.no_grad():
        signal = problem.kernel.diag(tensor, problem.X[:1000]).double().mean()
        # One row with little noise is enough, so that all rows are checked.
        noise = problem.noise(tensor).double()
    condition = len(problem.X) * float(signal) / max(float(noise.min()), 1e-300)
    too_much = condition * torch.finfo(torch.float32).eps / 2 > limit
    return problem.to(torch.float64) if too_much else problem
