"""Common parts of estimators over estimators: reading a table, and fitting an inner regressor."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import numpy as np
from sklearn.base import MetaEstimatorMixin, clone
from sklearn.utils.validation import has_fit_parameter
from threadpoolctl import threadpool_limits

from .._end import End
from .._validation import check_noise_variance, validated
from ..core import SMALL_TABLE, FitRun, GPModel, GPPredictionBase, is_auto, reporting_only
from ..core.training import Budget
from ..kernels import with_column_numbers
from ..models.iterative import IterativeGPRegressor

# Settings of an inner regressor that are replaced during its fit, and restored after it.
_OF_THE_FIT = ("callbacks", "max_seconds", "verbose")
# Settings that the exact process takes over from a method which it replaces.
_OF_THE_PROCESS = ("alpha", "normalize_y", "random_state", "memory_budget", "device", "dtype")
_OF_THE_PROCESS += _OF_THE_FIT
# The weight of a row is the inverse of its noise variance plus this share of the mean variance.
_EVEN = 0.1
# Fitted attributes of the inner regressor that the outer estimator shows as its own.
_SHARED = (
    "kernel_",
    "log_marginal_likelihood_value_",
    "log_marginal_likelihood_std_error_",
    "lower_bound_",
)


class MetaRegressorBase(MetaEstimatorMixin, GPPredictionBase):
    """An estimator over another regressor; for a single target, unless the class documents more."""

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = False
        return tags

    def _read_rows(
        self, X: Any, y: Any, noise_variance: Any, run: FitRun, **checks: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Validated rows and targets, and the known noise variance of each row, or None."""
        X, y = validated(self, X, y, y_numeric=True, dtype=np.float64, **checks)
        y = np.asarray(y, np.float64)
        known = check_noise_variance(noise_variance, len(X), 1)
        self._noise_given = known is not None
        run.begin(X, y)
        self.dtype_ = run.chose("dtype", "float64", "predictions; the regressor has its own")
        return X, y, None if known is None else known[:, 0]

    def _opened(self, estimator: Any, run: FitRun) -> Any:
        """`opened` with the names of the columns."""
        return opened(estimator, self, run, getattr(self, "feature_names_in_", None))

    def _kernel_sees_rows(self) -> bool:
        # The kernel is that of the regressor below, which may have a network.
        below = getattr(self, "estimator_", None)
        return not isinstance(below, GPModel) or below._kernel_sees_rows()

    def _share(self, inner: Any) -> None:
        """Show the fitted attributes of the inner regressor, and delete those of an earlier fit."""
        for name in _SHARED:
            vars(self).pop(name, None)
            if name in vars(inner):
                setattr(self, name, getattr(inner, name))


def opened(estimator: Any, outer: GPModel, run: FitRun, names: Any = None) -> Any:
    """A copy of an inner estimator with its open settings filled in.

    Where it has no seeds, it receives them; where its device, precision or memory budget is "auto",
    it receives those of the outer estimator. The same holds for estimators of this package inside a
    pipeline. Column names in its kernel become numbers, because it is fitted to an array.

    Raises
    ------
    ValueError
        If settings of the inner and the outer estimator contradict each other.
    """
    inner = clone(estimator)
    settings = inner.get_params()
    for name, value in sorted(settings.items()):
        of, _, last = name.rpartition("__")
        if last == "random_state" and value is None and not _named_by_a_string(of, settings):
            inner.set_params(**{name: int(run.random_state.randint(2**31 - 1))})
    for part in (inner, *settings.values()):
        if isinstance(part, GPModel):
            _fill_in(part, outer)
    part = inner
    while names is not None and isinstance(part, GPModel):
        if getattr(part, "kernel", None) is not None:
            part.set_params(kernel=with_column_numbers(clone(part.kernel), len(names), names))
        part = getattr(part, "estimator", None)
    return inner


def _named_by_a_string(name: str, settings: dict[str, Any]) -> bool:
    """Whether a string stands for this object, or for one that it is a part of.

    It has the seed of its estimator. A seed of its own would replace the string by an object, which
    may contradict other settings: ``preconditioner="auto"`` is that of ``solver="cg"``.
    """
    parts = name.split("__")
    return any(isinstance(settings.get("__".join(parts[: k + 1])), str) for k in range(len(parts)))


def with_kernel(fresh: Any, fitted: Any) -> Any:
    """The estimator with the trained kernel of a fit, where it has one, and without training.

    The same holds for the regressor inside a pipeline or another estimator.
    """
    settings = fresh.get_params(deep=False)
    if "steps" in settings:
        *before, (name, last) = fresh.steps
        return clone(fresh).set_params(steps=[*before, (name, with_kernel(last, fitted[-1]))])
    if "estimator" in settings and hasattr(fitted, "estimator_"):
        below = with_kernel(settings["estimator"] or clone(fitted.estimator_), fitted.estimator_)
        fixed = clone(fresh).set_params(estimator=below)
        return fixed.set_params(weight=fitted.weight_) if "weight" in settings else fixed
    kernel, process = getattr(fitted, "kernel_", None), getattr(fitted, "_exact", None)
    if kernel is None or "optimizer" not in settings:
        return fresh
    # A network would be untrained, standardised rows have units of their own, and experts may have
    # kernels of their own.
    of_rows = process is None or process.kernel == kernel
    of_rows &= all(each == kernel for each in getattr(fitted, "kernels_", []))
    if isinstance(fitted, GPModel) and not (of_rows and fitted._kernel_sees_rows()):
        return fresh
    if process is not None and len(process.table.X) <= SMALL_TABLE:
        # Some methods cannot use the kernel of the exact process that has taken their place.
        common = {name: settings[name] for name in _OF_THE_PROCESS if name in settings}
        fresh = IterativeGPRegressor(**common)
    fixed = clone(fresh).set_params(kernel=kernel, optimizer=None)
    if is_auto(settings.get("normalize_y")):
        # The fitted kernel has the units of the targets that it was fitted to, and then `alpha`.
        chosen = fitted.fit_report_.choices.get("normalize_y")
        fixed.set_params(normalize_y=chosen is None or chosen.value)
        if "alpha" in settings:
            alpha = np.asarray(fitted.alpha, float) / fitted._own_unit(fitted._y_train_std)
            fixed.set_params(alpha=alpha[()])
    return fixed


def noise_weights(noise: np.ndarray) -> np.ndarray:
    """Weights of rows from their noise variances, with a mean of one."""
    if not noise.any():
        return np.ones(len(noise))
    weights = 1 / (noise / noise.mean() + _EVEN)
    return weights / weights.mean()


def told_noise(fresh: Any, noise: np.ndarray | None) -> dict[str, np.ndarray]:
    """Arguments that pass known noise to the ``fit`` of a regressor, if it accepts any."""
    if noise is None:
        return {}
    if has_fit_parameter(fresh, "noise_variance"):
        return {"noise_variance": noise}
    weighted = has_fit_parameter(fresh, "sample_weight")
    return {"sample_weight": noise_weights(noise)} if weighted else {}


def mean_square(errors: np.ndarray, known: np.ndarray | None = None) -> float:
    """Mean square of errors beyond their known noise variances; always positive.

    The variance of a squared error grows with the square of its noise variance, so that the weights
    are squared, too.
    """
    weights = None if known is None else noise_weights(known) ** 2
    squares = np.square(errors) - (0 if known is None else known)
    return max(float(np.average(squares, weights=weights)), np.finfo(float).tiny)


def _fill_in(inner: GPModel, outer: Any) -> None:
    for name in ("memory_budget", "device", "dtype"):
        mine, theirs = getattr(outer, name), getattr(inner, name)
        if theirs == "auto":
            inner.set_params(**{name: outer._device_of(inner) if name == "device" else mine})
        elif name != "memory_budget" and mine not in ("auto", theirs):
            raise ValueError(
                f"{name}={mine!r} of {type(outer).__name__} contradicts {name}={theirs!r} of its "
                f"{type(inner).__name__}: set one of them only."
            )


class _OneThread:
    """A limit of the whole process, which the last of the threads inside it lifts."""

    def __init__(self) -> None:
        self._lock, self._inside, self._limits = threading.Lock(), 0, ExitStack()

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1:
                self._limits.enter_context(threadpool_limits(1, user_api="openmp"))

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._limits.close()


_ONE_THREAD = _OneThread()


@contextmanager
def few_threads(n: int) -> Iterator[None]:
    """One thread of OpenMP for n rows, if they are few.

    Threads that wait for one another in a busy loop cost more there than they save: where other
    processes have the cores, boosted trees of 450 rows took 13 seconds with two threads, and 2
    with one.
    """
    if n > SMALL_TABLE:
        yield
        return
    with _ONE_THREAD:
        yield


def fit_below(  # noqa: C901 (one branch for each kind of parameter)
    inner: Any,
    run: FitRun,
    X: Any,
    y: Any,
    preview: Callable[[Any, Any], None] | None = None,
    share: Budget | None = None,
    advised: bool = True,
    quiet: bool = False,
    **params: Any,
) -> tuple[End, str]:
    """Fit an inner regressor under the time budget and the callbacks of the outer fit.

    Parameters
    ----------
    inner : regressor
        A regressor of another package is fitted in one stage without steps; its ``fit`` receives
        `max_seconds` if it takes that.
    run : FitRun
        The outer fit.
    X, y : array-like
    preview : callable, optional
        ``preview(model, below)`` sets the fitted attributes of `model`, a copy of the outer
        estimator, as they would be if training ended at the step at which `below`, a copy of the
        inner regressor, was taken.
    share : Budget, optional
        The time that this fit may take; all that is left by default. If it is used up, the outer
        fit continues as long as it has time.
    advised : bool, default=True
        Whether to pass on a warning that another model suits the table better.
    quiet : bool, default=False
        Whether to pass on no warning at all, because held-out rows evaluate the fit.
    **params
        Further arguments of its ``fit``.

    Returns
    -------
    status, because : End, str
        The end and the reason in the report of the inner fit.
    """
    if not isinstance(inner, GPModel):
        if run.budget.limit is not None and has_fit_parameter(inner, "max_seconds"):
            params["max_seconds"] = (share or run.budget).left
        # A stage of the outer fit that is under way has this time, too.
        with nullcontext() if run.monitor.in_stage else run.stage(type(inner).__name__):
            inner.fit(X, y, **params)
        return End.COMPLETED, f"{type(inner).__name__} has no steps to report"
    own = {name: getattr(inner, name) for name in _OF_THE_FIT}

    def hear(step: Any) -> bool:
        run.preview = None
        if step.preview is not None and preview is not None:

            def show(model: Any, at: Any) -> None:
                below = step.preview(step)
                preview(model, below.set_params(**own))

            run.preview = show
        return run.monitor.relay(step)

    listed = own["callbacks"] if own["callbacks"] is not None else []
    listed = [listed] if callable(listed) else list(listed)
    mine, seconds = (share or run.budget).left, own["max_seconds"]
    # Whether the outer fit's budget is the one that may end this fit.
    shared = mine is not None and (seconds is None or mine <= seconds)
    if shared:
        seconds = max(mine, 1e-9)
    inner.set_params(
        callbacks=[*listed, hear],
        max_seconds=seconds,
        verbose=max(int(own["verbose"]), int(run.monitor.verbose)),
    )
    try:
        with reporting_only(evaluated=quiet):
            inner.fit(X, y, **params)
    finally:
        inner.set_params(**own)
    report = inner.fit_report_
    status, because = End(report.status), report.stop_reason
    cut = status is End.MAX_SECONDS and shared
    if status is End.INTERRUPTED or (cut and (share is None or run.budget.left == 0)):
        run.budget.end(status)
    elif cut:
        because = (
            f"{type(inner).__name__} has used its share of max_seconds="
            f"{run.budget.limit:g}, the best state so far is kept: raise max_seconds"
        )
        if not quiet:
            run.warn(f"{because}.")
    if not (run.stopped or cut or quiet):
        for text in report.warnings:
            run.warn(text)
        if advised and report.remark:
            run.advise_other_model(f"{type(inner).__name__}: {report.remark}")
    return status, because
