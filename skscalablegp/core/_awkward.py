"""Targets that no normal likelihood survives, and the columns that matter to a kernel."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import Kernel

from .._length_scales import OF_DISTANCES, length_scales
from ._model import GPModel
from .data import column_spread
from .likelihoods import shares_covariance

# Far targets are at least so many robust standard deviations from the median, and at least so many
# times as far as the farthest other one. They hold more than half of the sum of squares, and are at
# most this share of all. A Student-t distribution with three degrees of freedom has such targets in
# one table of a few thousand.
_DEVIATIONS, _GAP, _MOST = 30.0, 15.0, 0.05
# With fewer different targets there is no scale to compare with.
_FEWEST = 20
# Normal distributions have this ratio of standard deviation and median absolute deviation.
_OF_MEDIAN = 1.4826
# Number of far targets, and of columns, that are named.
_NAMED = 5
# The mean of the target is unexpected if it is this many standard deviations of the prior away from
# zero. The prior is evaluated at the first few rows.
_UNEXPECTED, _FEW_ROWS = 10.0, 20
# A column does not matter if its length scale is beyond this many spreads, or this many times the
# smallest one if that is more than a spread, times the root of the number of columns. Where even
# the smallest is longer than the last number, the kernel has learned nothing from any column.
_LONG, _NOTHING = 10.0, 1000.0
# Number of rows from which the spread of the columns is computed.
_ROWS = 20_000


def far_targets(y: np.ndarray) -> np.ndarray:
    """Numbers of the targets that are far from all others, and decide a normal likelihood.

    Distances are measured from the median, in units of the median distance of those targets that
    are not equal to it, so that the zeros of counts do not make all others far. There are none in
    normal, exponential, log-normal or Student-t(3) targets, in counts, or in these with many zeros.

    Parameters
    ----------
    y : ndarray of shape (n,)

    Returns
    -------
    rows : ndarray of int
        Empty if there are none, or too few different targets for a decision.
    """
    away = np.abs(y - np.median(y))
    apart = np.sort(away[away > 0])[::-1]
    most = max(1, int(_MOST * len(apart)))
    if len(apart) < _FEWEST:
        return np.empty(0, dtype=int)
    least = _DEVIATIONS * _OF_MEDIAN * np.median(apart)
    gaps = np.flatnonzero((apart[:most] >= _GAP * apart[1 : most + 1]) & (apart[:most] >= least))
    if not len(gaps):
        return np.empty(0, dtype=int)
    # The last gap has all far targets before it. Ratios of squares do not overflow.
    count = gaps[-1] + 1
    squares = np.square(apart / apart[0])
    if squares[:count].sum() <= 0.5 * squares.sum():
        return np.empty(0, dtype=int)
    return np.flatnonzero(away >= apart[count - 1])


def describe_far_targets(y: np.ndarray, rows: np.ndarray, name: str, estimator: Any) -> str:
    """The text of a warning about the far targets of these rows; `name` is that of the targets."""
    named = ", ".join(f"{y[row]:.6g} in row {row}" for row in rows[:_NAMED])
    more = f" and {len(rows) - _NAMED:,} more" if len(rows) > _NAMED else ""
    others = np.delete(y, rows)
    one = len(rows) == 1
    own = estimator._robust_likelihood
    return (
        f"{name} has {len(rows):,} target{'' if one else 's'} far from all others, which lie "
        f"between {others.min():.6g} and {others.max():.6g}: {named}{more}. Under normal noise "
        f"{'it dominates' if one else 'they dominate'} the fit. Drop "
        f"{'this row' if one else 'these rows'} if "
        f"{'it is an error' if one else 'they are errors'}, or "
        f"{f'use likelihood={own!r}, or ' if own else ''}transform the target: "
        "sklearn.compose.TransformedTargetRegressor(model, transformer=QuantileTransformer("
        "output_distribution='normal'))."
    )


def describe_targets(estimator: Any, Y: np.ndarray) -> str:
    """The text of a warning about targets too extreme for a normal likelihood, or nothing.

    Parameters
    ----------
    estimator : estimator
    Y : ndarray of shape (n,) or (n, t)
    """
    if not assumes_normal_noise(estimator):
        return ""
    columns = np.reshape(np.asarray(Y, dtype=float), (len(Y), -1)).T
    names = ["y"] if len(columns) == 1 else [f"Column {k} of y" for k in range(len(columns))]
    return " ".join(
        describe_far_targets(y, rows, name, estimator)
        for name, y in zip(names, columns, strict=True)
        if len(rows := far_targets(y))
    )


def describe_offset(estimator: Any, X: Any, offset: float) -> str:
    """The text of a warning about a mean of the target that is improbable under the prior.

    Parameters
    ----------
    estimator : estimator
        A fitted one, whose target was not normalised.
    X : array-like
        The rows of the fit.
    offset : float
        Absolute mean of the target, the largest one of several.
    """
    rows, kernel = X[:_FEW_ROWS], estimator.kernel_
    network = estimator.get_params(deep=False).get("feature_extractor")
    # `diag` would include white noise. A network's features have other columns than the rows.
    diagonal = np.diag(kernel(rows, rows)) if network is None else kernel.diag(rows)
    prior = float(np.sqrt(np.mean(diagonal)))
    if offset <= _UNEXPECTED * prior:
        return ""
    return (
        f"The mean of y, {offset:.3g}, is far from 0, where the prior of the kernel expects it "
        f"with a standard deviation of {prior:.3g}. Far from the training rows predictions fall "
        "back to 0. Use normalize_y=True."
    )


def assumes_normal_noise(estimator: Any) -> bool:
    """Whether far targets would decide the fit of an estimator, or of a model below it."""
    if is_classifier(estimator):
        return False
    settings = estimator.get_params()
    safe = tuple(
        f"{name}__"
        for name, value in settings.items()
        if isinstance(value, TransformedTargetRegressor)
    )
    below = [
        value
        for name, value in settings.items()
        if isinstance(value, GPModel) and not name.startswith(safe)
    ]
    if below:
        return any(assumes_normal_noise(model) for model in below)
    return not safe and shares_covariance(settings.get("likelihood", "gaussian"))


def columns_that_matter(estimator: Any, X: Any) -> dict[str, float]:
    """The columns with the smallest length scales, in units of the column's spread.

    Parameters
    ----------
    estimator : estimator
        A fitted one.
    X : array-like
        The rows of the fit.

    Returns
    -------
    columns : dict of str to float
        At most five, the smallest first. Empty for kernels without a length scale for each column,
        for kernels of a network's outputs, and for tables of one column or of few rows.
    """
    kernel, model = getattr(estimator, "kernel_", None), estimator
    while "estimator_" in vars(model):
        # Meta-estimators pass the rows on.
        model = model.estimator_
    if not isinstance(kernel, Kernel) or not isinstance(model, GPModel) or np.ndim(X) != 2:
        return {}
    trained = model.get_params(deep=False).get("optimizer", "auto") is not None
    wide = len(X) >= _FEWEST and X.shape[1] > 1
    if not (trained and wide and model._kernel_sees_rows()):
        return {}
    rows = np.asarray(X[:: max(1, len(X) // _ROWS)])
    if rows.dtype.kind not in "fiub":
        return {}
    d = rows.shape[1]
    scales = np.full(d, np.inf)
    for _, part, columns, own in length_scales(kernel, list(range(d))):
        # The length scale of a periodic kernel divides a sine, and a fixed one was not learned.
        if not isinstance(part, OF_DISTANCES) or part.hyperparameter_length_scale.fixed:
            return {}
        if len(own) != len(columns):
            return {}
        scales[columns] = np.minimum(scales[columns], own)
    varies = np.ptp(rows, axis=0) > 0
    scales = np.where(varies, scales * model._column_units() / column_spread(rows), np.inf)
    if scales.min() > _NOTHING:
        return {}
    # Smooth functions have long length scales and a large variance, which may grow together.
    limit = _LONG * np.sqrt(d) * max(1.0, scales.min())
    names = getattr(estimator, "feature_names_in_", [f"x{j}" for j in range(d)])
    order = [j for j in np.argsort(scales, kind="stable") if scales[j] <= limit]
    return {str(names[j]): float(scales[j]) for j in order[:_NAMED]}
