"""Functions that the displays share: axes, one of several targets, names of hyperparameters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from sklearn.base import is_classifier

from .._compat import check_matplotlib_support
from .._predicted import core_of


def chosen_kinds(kind: Any, allowed: Sequence[str]) -> tuple[str, ...]:
    """The requested panels, from one name or several different ones.

    Raises
    ------
    ValueError
        For anything else.
    """
    kinds = (kind,) if isinstance(kind, str) else kind
    kinds = tuple(kinds) if isinstance(kinds, Iterable) else ()
    known = {one for one in kinds if isinstance(one, str) and one in allowed}
    if not kinds or len(known) < len(kinds):
        listed = ", ".join(map(repr, allowed))
        raise ValueError(f"kind must be one or several of {listed}; got {kind!r}.")
    return kinds


def axes_for(
    display: Any, ax: Any, n_panels: int = 1, several: bool = False, one_row: bool = False
) -> list[Any]:
    """The given axes, or those of a new figure, one for each panel; sets `ax_` and `figure_`.

    Parameters
    ----------
    display : object
        The display, whose class is named in the error if matplotlib is missing.
    ax : matplotlib Axes, array-like of them, or None
    n_panels : int, default=1
    several : bool, default=False
        Whether `ax_` is an array of axes.
    one_row : bool, default=False
        Whether new panels stand side by side and share their vertical axis.

    Raises
    ------
    ImportError
        If matplotlib is missing.
    ValueError
        If the number of axes is not the number of panels.
    """
    check_matplotlib_support(f"{type(display).__name__}.plot")
    import matplotlib.pyplot as plt
    from matplotlib.axes import Axes

    if ax is None:
        columns, width = (n_panels, 3.5) if one_row else (min(n_panels, 2), 5.5)
        rows = -(-n_panels // columns)
        figure, grid = plt.subplots(
            rows,
            columns,
            figsize=(width * columns, 4.0 * rows),
            sharey=one_row,
            layout="constrained",
        )
        axes = list(np.ravel(grid))
        for empty in axes[n_panels:]:
            figure.delaxes(empty)
        del axes[n_panels:]
    else:
        axes = [ax] if isinstance(ax, Axes) else list(np.ravel(np.asarray(ax, dtype=object)))
    if len(axes) != n_panels or not all(isinstance(one, Axes) for one in axes):
        raise ValueError(
            f"ax must be {n_panels} matplotlib Axes, one for each panel, got {ax!r}."
            if n_panels > 1
            else f"ax must be a matplotlib Axes, got {ax!r}."
        )
    display.ax_ = np.array(axes, dtype=object) if several else axes[0]
    display.figure_ = axes[0].figure
    return axes


def styled(defaults: dict[str, Any], name: str, given: Any) -> dict[str, Any]:
    """Keywords of a matplotlib call: the display's own, overridden by the user's."""
    if given is not None and not isinstance(given, dict):
        raise ValueError(f"{name} must be a dict of keywords for matplotlib, got {given!r}.")
    return {**defaults, **(given or {})}


def refuse_classifier(display: type, estimator: Any, instead: str) -> None:
    """Raise TypeError for a classifier, with a display for classes, and for other objects."""
    check_predicts(estimator)
    if is_classifier(estimator):
        raise TypeError(
            f"{display.__name__} shows regressors, and {type(core_of(estimator)).__name__} is a "
            f"classifier: use {instead}."
        )


def check_predicts(estimator: Any) -> None:
    """Raise TypeError for an object without ``predict``."""
    if not hasattr(estimator, "predict"):
        raise TypeError(f"estimator must be a fitted estimator, got {estimator!r}.")


def numbers(name: str, values: Any) -> np.ndarray:
    """Values of rows as float64 numbers.

    Raises
    ------
    ValueError
        If they are not an array of numbers. The message names the parameter.
    """
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(())
    if not array.ndim:
        raise ValueError(f"{name} must be an array of numbers, got {values!r}.")
    return array


def chosen_target(values: np.ndarray, target: Any) -> np.ndarray:
    """One target of an array of shape (n,) or (n, t).

    Raises
    ------
    ValueError
        If there are several targets and none is chosen, or if the chosen one does not exist.
    """
    if values.ndim < 2:
        values = values[:, None]
    return values[:, target_number(values.shape[1], target)]


def target_number(t: int, target: Any) -> int:
    """The number of the target; None stands for the only one."""
    if target is None and t == 1:
        return 0
    whole = isinstance(target, Integral) and not isinstance(target, bool)
    if not (whole and 0 <= target < t):
        raise ValueError(
            f"target must be the number of one of the {t} targets, from 0 to {t - 1}; "
            f"got {target!r}."
        )
    return int(target)


def check_count(name: str, value: Any, least: int) -> int:
    """A whole number of at least `least`."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")
    return int(value)


def hyperparameter_names(kernel: Any) -> list[str]:
    """A name for each entry of ``kernel.theta``."""
    names = []
    for one in kernel.hyperparameters:
        if not one.fixed:
            many = one.n_elements > 1
            names += [f"{one.name}[{k}]" if many else one.name for k in range(one.n_elements)]
    return names
