"""What estimators over estimators share: fitting a regressor inside a fit."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from ..core import FitRun, GPPredictionBase
from ..kernels import with_column_numbers

# Of a regressor of this package: what a fit inside another one is given for that fit only.
_OF_THE_FIT = ("callbacks", "max_seconds", "verbose")


def opened(estimator: Any, outer: Any, run: FitRun, names: Any = None) -> Any:
    """A copy of the regressor below with seeds, and what it leaves open as `outer` has it.

    With the `names` of columns, those that its kernel mentions become numbers: it will see arrays.

    Raises
    ------
    ValueError
        For settings of the two that contradict each other.
    """
    inner = clone(estimator)
    for name, value in sorted(inner.get_params().items()):
        if name.rpartition("__")[2] == "random_state" and value is None:
            inner.set_params(**{name: int(run.random_state.randint(2**31 - 1))})
    if isinstance(inner, GPPredictionBase):
        for name in ("memory_budget", "device", "dtype"):
            mine, theirs = getattr(outer, name), getattr(inner, name)
            if theirs == "auto":
                inner.set_params(**{name: mine})
            elif name != "memory_budget" and mine not in ("auto", theirs):
                raise ValueError(
                    f"{name}={mine!r} contradicts {name}={theirs!r} of the estimator: give one."
                )
        if names is not None and getattr(inner, "kernel", None) is not None:
            kernel = with_column_numbers(clone(inner.kernel), len(names), names)
            inner.set_params(kernel=kernel)
    return inner


def fit_below(
    inner: Any,
    run: FitRun,
    X: Any,
    y: Any,
    preview: Callable[[Any, Any], None] | None = None,
    share: float = 1.0,
    **params: Any,
) -> tuple[str, str]:
    """Fit a regressor under the budget and the callbacks of the fit around it.

    Parameters
    ----------
    inner : regressor
        Of this package, or any other, which then is a stage without steps.
    run : FitRun
        Of the fit around.
    X, y : array-like
    preview : callable, optional
        ``preview(model, below)`` makes `model` the one around a regressor at one of its steps.
    share : float, default=1.0
        Of the time that is left.
    **params
        Further arguments of its ``fit``.

    Returns
    -------
    status, because : str
        How it ended; a reason only where there is a status.
    """
    if not isinstance(inner, GPPredictionBase):
        with run.stage(type(inner).__name__):
            inner.fit(X, y, **params)
        return "completed", ""
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
    left = run.monitor.seconds_left
    mine = None if left is None else share * left
    budgets = [seconds for seconds in (own["max_seconds"], mine) if seconds is not None]
    inner.set_params(
        callbacks=[*listed, hear],
        max_seconds=max(min(budgets), 1e-9) if budgets else None,
        verbose=max(int(own["verbose"]), int(run.monitor.verbose)),
    )
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            inner.fit(X, y, **params)
    finally:
        inner.set_params(**own)
    report = inner.fit_report_
    if report.status == "interrupted" or (report.status == "max_seconds" and left is not None):
        run.monitor.end(report.status)
    for warning in caught:
        if not issubclass(warning.category, ConvergenceWarning):
            warnings.warn_explicit(
                warning.message, warning.category, warning.filename, warning.lineno
            )
        elif not run.stopped:
            run.warn(str(warning.message))
    return report.status, report.stop_reason
