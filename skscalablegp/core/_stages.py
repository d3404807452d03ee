"""Training of hyperparameters in stages: first on subsets, then on all rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch

from ..linalg.gradients import ExactGradient, GPProblem, GradientEstimator
from ._run import FitRun, Run
from ._starts import choose_start
from .data import centroid_subsets
from .training import (
    LBFGS,
    ROUNDING,
    NaturalGradient,
    Optimizer,
    QuasiNewton,
    TrainingResult,
    resolve_optimizer,
    restart_points,
    train,
)

# Maximum number of steps of an exact fit, which usually converges earlier.
_EXACT_STEPS = 100
# Maximum number of steps from the optimum of a subset, whose curvature is known.
_REFINING_STEPS = 25
# Budget of solver epochs for these steps: if systems are hard to solve, there are fewer steps.
_REFINING_EPOCHS = 600
# Training continues after a stage that ended for one of these reasons.
_DONE = ("converged", "max_iter", "max_epochs", "stagnated")
# Maximum number of natural steps without an initialisation, and after one.
_NATURAL_STEPS = {False: 200, True: 50}
# Number of Adam steps without an initialisation (Lin et al. 2024), and after one.
_ADAM_STEPS = 100
_REFINING_ADAM_STEPS = 30
# Adam steps are smaller above this number of rows (Lin et al. 2024, appendix B).
_LARGE_ROWS = 50_000
# Relative tolerance on a subset, whose optimum is only a start. Fits with looser tolerances ended
# on plateaus from which the likelihood could still rise by two hundred nats; tighter ones take
# steps that gain nothing. The loose one is for starts of exact training on all rows.
_SUBSET_TOL = {True: 3e-5, False: 1e-5}
# Relative tolerance on all rows. On small tables steps are cheap, so that the optimum under a given
# kernel is found as precisely as by scikit-learn, with which users compare it.
_TOL, _SMALL_TOL, _SMALL_ROWS = 1e-6, 1e-11, 1_000
# Up to this number of rows finding the best of many local optima matters more than time.
_TWICE_ROWS, _SCIPYS_TOL = 500, 2.2e-9
# A predicted gain below this, in nats per row, is not worth another step.
GAIN_PER_ROW = 1e-4
# Ratio of the sizes of successive random subsets.
_GROWTH = 3
# Added to the curvature of a subset before steps with noisy gradients, in nats.
_FLAT = 1.0
# Above this bound of condition number times unit roundoff, float32 cannot factorise H.
_FLOAT32_LIMIT = 1.0


@dataclass(frozen=True)
class StageSettings:
    """The settings of training; "auto" is resolved for each stage.

    Attributes
    ----------
    optimizer : "auto", str, object or callable
    max_iter : "auto" or int
        Maximum number of steps on all rows.
    learning_rate : "auto" or float
    n_restarts : int
    n_iter_no_change : int or None
    tol : float
        Adam has converged if the log hyperparameters change by less than this.
    max_epochs : "auto", float or None
        Budget of solver epochs for training on all rows. "auto" is 600 if a subset gives the
        curvature and `max_iter` is also "auto". None sets no limit.
    subset_size : int or None
        Number of rows in the first initialising fit; None begins with all rows.
    n_subsets : int
        1 for nested random subsets, more for neighbourhoods whose results are averaged.
    exact_rows : int
        Largest size of a subset.
    adapt_dtype : bool
        Whether an ill-conditioned problem may be moved from float32 to float64.
    factor_if_ill_conditioned : bool
        Whether such a problem is then trained with Cholesky factorisations.
    name : str
        Name of the stage on all rows.
    as_scikit_learn : bool
        Whether a small table is also trained with scikit-learn's steps from every start.
    exact_steps : int
        The meaning of `max_iter="auto"` for quasi-Newton steps without an initialisation.
    all_rows : bool
        Whether training goes on with all rows after the subsets.
    gain_per_row : float
        A predicted gain below this, in nats per row, is not worth another step.
    natural : bool
        Whether the Fisher information of random rows is available. Without exact values or a
        curvature, "auto" then chooses natural steps instead of Adam.
    compares_starts : bool
        Whether the given hyperparameters are compared with other starts.
    """

    optimizer: Any
    max_iter: Any = "auto"
    learning_rate: Any = "auto"
    n_restarts: int = 0
    n_iter_no_change: int | None = 5
    tol: float = 1e-3
    max_epochs: Any = "auto"
    subset_size: int | None = None
    n_subsets: int = 1
    exact_rows: int = 0
    adapt_dtype: bool = False
    factor_if_ill_conditioned: bool = False
    name: str = "full"
    as_scikit_learn: bool = False
    exact_steps: int = _EXACT_STEPS
    all_rows: bool = True
    gain_per_row: float = GAIN_PER_ROW
    natural: bool = False
    compares_starts: bool = True

    def twice(self, n: int) -> bool:
        """Whether two optimisers run from every start, of which the better result counts."""
        named = isinstance(self.optimizer, str) and self.optimizer in ("auto", "fmin_l_bfgs_b")
        return named and self.as_scikit_learn and n <= _TWICE_ROWS

    @property
    def follows_scikit_learn(self) -> bool:
        """Whether the optimiser is the user's callable, or scikit-learn's on the user's kernel."""
        named = isinstance(self.optimizer, str) and self.optimizer == "fmin_l_bfgs_b"
        return callable(self.optimizer) or (named and self.as_scikit_learn)

    @classmethod
    def of(cls, estimator: Any, n_restarts: int = 0, **more: Any) -> StageSettings:
        """The settings that the parameters of an estimator give."""
        return cls(
            optimizer=estimator.optimizer,
            max_iter=estimator.max_iter,
            learning_rate=estimator.learning_rate,
            n_restarts=n_restarts,
            n_iter_no_change=estimator.n_iter_no_change,
            **more,
        )


def fit_hyperparameters(
    problem: GPProblem,
    estimator: GradientEstimator,
    theta: np.ndarray,
    settings: StageSettings,
    run: Run,
) -> TrainingResult:
    """Train with exact fits on growing subsets, then on all rows with `estimator`, then restarts.

    Returns
    -------
    result : TrainingResult
        The best of all starts if values are exact, otherwise the first one. Restarts that fail are
        listed in the failures of the monitor.

    Raises
    ------
    ValueError
        For an unknown optimiser, or one that needs exact values if `estimator` has none; before
        any work is done.
    """
    _optimizer(settings, estimator.exact, len(problem.X), has_metric=True)
    metric, start = None, None
    if settings.compares_starts and not settings.follows_scikit_learn:
        limit = None if settings.max_iter == "auto" else settings.max_iter
        chosen = choose_start(problem, theta, run, limit, estimator.exact)
        run.reports(start=chosen.describe())
        theta = chosen.theta
    if settings.subset_size is not None:
        exact = estimator.on_subset() or ExactGradient()
        tol = _SUBSET_TOL[estimator.exact and settings.all_rows]
        start = _initialise(problem, exact, theta, settings, run, tol)
        theta, metric = start.theta, start.metric
        if metric is not None and not estimator.exact:
            # Noise of the gradient must not become long steps in directions without curvature.
            metric = metric @ np.linalg.inv(np.eye(len(metric)) + _FLAT * metric)
        # These fields describe training on all rows.
        start = replace(start, exact=estimator.exact, dtype=problem.X.dtype)
        if start.stop_reason not in _DONE:
            return start
        if not settings.all_rows:
            return replace(start, planned=True)
    starts = [theta]
    if estimator.exact:
        bounds = problem.kernel.bounds.numpy()
        starts += restart_points(bounds, settings.n_restarts, run.restarts)
    ways = [settings]
    if estimator.exact and settings.twice(len(problem.X)):
        ways.append(
            replace(settings, optimizer=LBFGS(_SCIPYS_TOL, scaled=False), learning_rate="auto")
        )
    attempts = (
        partial(_train_all_rows, problem, estimator, point, way, run, None if k else metric)
        for k, (point, way) in enumerate(product(starts, ways))
    )
    return best_of(attempts, start, run, len(ways))


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
            return replace(best, n_iter=n_iter, stop_reason=ending.reason)
        n_iter += result.n_iter
        # Of equals up to rounding the first one counts, whose optimiser follows slopes to the end.
        if k == 0 or result.value > best.value + ROUNDING * abs(best.value):
            best = result
        if result.stop_reason == "diverged" and k > 0:
            run.monitor.failures.append(f"restart {k // ways}: training diverged")
        elif result.stop_reason not in _DONE:
            break
    return replace(best, n_iter=n_iter)


def _train_all_rows(
    problem: GPProblem,
    estimator: GradientEstimator,
    theta: np.ndarray,
    settings: StageSettings,
    run: Run,
    metric: np.ndarray | None,
) -> TrainingResult:
    initialised = settings.subset_size is not None
    if settings.adapt_dtype:
        problem = well_conditioned(problem, theta)
        if problem.X.dtype == torch.float64 and settings.factor_if_ill_conditioned:
            # Iterative solvers would need thousands of epochs; a factorisation costs the same.
            estimator = ExactGradient()
    optimizer = _optimizer(settings, estimator.exact, len(problem.X), metric is not None)
    enough = _default_steps(optimizer, settings)
    steps = enough if settings.max_iter == "auto" else settings.max_iter
    result = _stage(
        settings.name, problem, estimator, optimizer, theta, settings, run, steps, metric
    )
    planned = {
        "max_iter": steps >= enough
        and (initialised or optimizer.patient)
        and not optimizer.redraws,
        "max_epochs": settings.max_epochs == "auto",
    }
    return replace(result, planned=planned.get(result.stop_reason, False))


def _stage(
    name: str,
    problem: GPProblem,
    estimator: GradientEstimator,
    optimizer: Optimizer,
    theta: np.ndarray,
    settings: StageSettings,
    run: Run,
    steps: int,
    metric: np.ndarray | None,
) -> TrainingResult:
    run.monitor.begin(name, steps)
    epochs = _epoch_limit(settings, metric is not None) if name == settings.name else None
    return train(
        problem,
        estimator,
        optimizer,
        theta,
        problem.kernel.bounds.numpy(),
        max_iter=steps,
        monitor=run.monitor,
        generator=run.generator,
        n_iter_no_change=settings.n_iter_no_change if optimizer.patient else None,
        tol=settings.tol,
        average=5 if optimizer.patient else 1,
        metric=metric,
        max_epochs=epochs,
    )


def _optimizer(settings: StageSettings, exact: bool, n: int, has_metric: bool) -> Optimizer:
    """The optimiser of the stage on all rows."""
    choice = settings.optimizer
    if isinstance(choice, str) and choice == "auto":
        # Without values BFGS needs an initial curvature; natural steps compute their own.
        choice = "bfgs" if exact or has_metric else "natural" if settings.natural else "adam"
        if choice == "bfgs":
            if settings.as_scikit_learn and n <= _SMALL_ROWS:
                # The Fisher information has fewer digits than such a comparison.
                return QuasiNewton(_SMALL_TOL, information_rows=0)
            return QuasiNewton(_TOL, gain_tol=_worthwhile(settings, n))
    if settings.natural and isinstance(choice, str) and choice == "natural":
        return NaturalGradient(_worthwhile(settings, n))
    rate = adam_rate(n) if settings.learning_rate == "auto" else settings.learning_rate
    optimizer = resolve_optimizer(choice, rate, ("auto",), informed=settings.natural)
    own = getattr(optimizer, "learning_rate", settings.learning_rate)
    if settings.learning_rate not in ("auto", own):
        raise ValueError(
            f"learning_rate={settings.learning_rate!r} contradicts optimizer={choice!r}, which has "
            f"learning_rate={own!r}: use learning_rate='auto', or optimizer='adam'."
        )
    if optimizer.exact_only and not exact:
        raise ValueError(
            f"optimizer={settings.optimizer!r} needs exact values and gradients, which this fit "
            "does not have: use optimizer='adam'."
        )
    return optimizer


def adam_rate(n: int) -> float:
    """The learning rate of "auto" for n rows."""
    return 0.1 if n <= _LARGE_ROWS else 0.03


def train_or_report(
    problem: GPProblem,
    estimator: GradientEstimator,
    settings: StageSettings,
    run: FitRun,
    unused: tuple[str, ...] = (),
) -> TrainingResult:
    """Call `fit_hyperparameters` from the kernel's own values, and report all choices.

    Parameters
    ----------
    unused : tuple of str
        Further parameters that have no effect if there is nothing to train.
    """
    theta, n_params = problem.kernel.theta0.numpy(), problem.kernel.n_params
    if settings.optimizer is None or n_params == 0:
        report_untrained(run, n_params, unused)
        return TrainingResult.untrained(theta, problem.X.dtype)
    report_training(settings, estimator.exact, len(problem.X), run)
    return fit_hyperparameters(problem, estimator, theta, settings, run)


def report_untrained(run: FitRun, n_params: int = 1, unused: tuple[str, ...] = ()) -> None:
    """Report that the settings of training have no effect, since nothing is trained."""
    why = "optimizer=None keeps the hyperparameters"
    if n_params == 0:
        why = "all hyperparameters are fixed"
        run.ignores("optimizer", why)
    settings = ("learning_rate", "max_iter", "n_iter_no_change", "n_restarts_optimizer")
    run.ignores((*settings, *unused), why)


def report_training(settings: StageSettings, exact: bool, n: int, run: FitRun) -> None:
    """Report the choices of `fit_hyperparameters`, and the parameters without effect there.

    Parameters
    ----------
    settings : StageSettings
    exact : bool
        Whether the gradients on all rows are exact.
    n : int
        Number of rows.
    run : FitRun
    """
    initialised = settings.subset_size is not None
    has_metric = initialised and settings.n_subsets == 1
    optimizer = _optimizer(settings, exact, n, has_metric)
    patient = optimizer.patient
    why = "no subset gives a curvature, and gradients are estimates"
    if exact or has_metric:
        why = "values and gradients are exact" if exact else "a subset gives the curvature"
    if exact and settings.twice(n):
        why += (
            "; few rows are also trained with scikit-learn's steps, and the better optimum counts"
        )
    name = "adam" if patient else "natural" if optimizer.redraws else "bfgs"
    run.chose("optimizer", name, why)
    steps = _default_steps(optimizer, settings)
    start = "a subset gives the start" if initialised else "there is no start from a subset"
    if not settings.all_rows:
        steps, start = 0, "subsets give the hyperparameters, and rows left out their scale"
    run.chose("max_iter", steps, start)
    if initialised:
        around = "" if settings.n_subsets == 1 else f" of {settings.n_subsets} neighbourhoods"
        why = f"{n:,} rows: an exact start{around} saves time"
        run.chose("subset_size", settings.subset_size, why)
    else:
        run.chose("subset_size", None, f"{n:,} rows: a start on a subset would save no time")
    if isinstance(settings.optimizer, str) and patient:
        run.chose("learning_rate", adam_rate(n), f"{n:,} rows")
    elif patient:
        run.ignores("learning_rate", "the optimizer object has its own")
    else:
        run.ignores("learning_rate", "only Adam has a learning rate")
        run.ignores("n_iter_no_change", "only Adam stops when the iterates hardly move")
    if callable(settings.optimizer):
        run.ignores("max_iter", "a callable decides when to stop")
    if exact or not settings.all_rows:
        run.ignores("training_max_epochs", "exact gradients need no solver epochs")
    else:
        run.ignores("n_restarts_optimizer", "values are not exact: starts cannot be compared")
        limit = _epoch_limit(settings, has_metric)
        why = "hard systems get fewer steps" if limit else "max_iter limits training"
        run.chose("training_max_epochs", limit, why)


def _epoch_limit(settings: StageSettings, has_metric: bool) -> float | None:
    """Budget of solver epochs for training on all rows."""
    if settings.max_epochs != "auto":
        return settings.max_epochs
    return _REFINING_EPOCHS if has_metric and settings.max_iter == "auto" else None


def _worthwhile(settings: StageSettings, n: int) -> float:
    return max(0.5, settings.gain_per_row * n)


def _default_steps(optimizer: Optimizer, settings: StageSettings) -> int:
    initialised = settings.subset_size is not None
    if optimizer.patient:
        return _REFINING_ADAM_STEPS if initialised else _ADAM_STEPS
    if optimizer.redraws:
        return _NATURAL_STEPS[initialised]
    return _REFINING_STEPS if initialised else settings.exact_steps


def _initialise(
    problem: GPProblem,
    exact: GradientEstimator,
    theta: np.ndarray,
    settings: StageSettings,
    run: Run,
    tol: float,
) -> TrainingResult:
    """Maximise the exact likelihood of nested random subsets, or average over neighbourhoods."""
    n = len(problem.X)
    if settings.n_subsets > 1:
        return _average_neighbourhoods(problem, exact, theta, settings, run, tol)
    order = torch.randperm(n, generator=run.generator).to(problem.X.device)
    n_iter, metric, size, result = 0, None, settings.subset_size, None
    # A subset of nearly all rows is not worth its time if all rows follow.
    share = 1.5 if settings.all_rows else 1.0
    while result is None or size * share < n:
        steps = _EXACT_STEPS if metric is None else _REFINING_STEPS
        optimizer = QuasiNewton(tol, gain_tol=_worthwhile(settings, size))
        with run.budget.may_end(result is not None) as ending:
            part = problem.subset(order[:size].sort().values)
            if metric is None:
                part = part.to(torch.float64)
            elif settings.adapt_dtype:
                part = well_conditioned(part, theta)
            result = _stage(f"{size}", part, exact, optimizer, theta, settings, run, steps, metric)
        if ending.reason is not None:
            # There was no evaluation on these rows: the result of fewer rows stands.
            result = replace(result, n_iter=0, stop_reason=ending.reason)
        theta, metric = result.theta, result.metric
        n_iter += result.n_iter
        if result.stop_reason not in _DONE:
            break
        larger = min(size * _GROWTH, settings.exact_rows)
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
    run: Run,
    tol: float,
) -> TrainingResult:
    subsets = centroid_subsets(problem.X, settings.n_subsets, settings.subset_size, run.generator)
    results = []
    for k, idx in enumerate(subsets):
        name = f"neighbourhood {k + 1}"
        with run.budget.may_end(bool(results)) as ending:
            part = problem.subset(idx).to(torch.float64)
            result = _stage(
                name, part, exact, QuasiNewton(tol), theta, settings, run, _EXACT_STEPS, None
            )
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
        noise = problem.kernel.noise(tensor, problem.X).double()
        if problem.extra_noise is not None:
            noise = noise + problem.extra_noise.double()
    condition = len(problem.X) * float(signal) / max(float(noise.min()), 1e-300)
    too_much = condition * torch.finfo(torch.float32).eps / 2 > limit
    return problem.to(torch.float64) if too_much else problem
