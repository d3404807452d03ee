"""A check that a fitted model has learned something, where simple models do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

from ._fast_columns import NEAREST, FastColumn, fast_column, local_errors, rows_to_look_at
from ._signal import FEWEST_ROWS, Signal, simple_signals
from .data import column_spread

# Rows of a first check, of a table on which simple models are compared with the model, and largest
# product of squared rows and looked-at rows, since leave-one-out predictions may cost n^2 each.
_LOOK, _ROWS, _FEWEST_LOOKED, _PRODUCT = 200, 2000, 50, 2e9
# The model has learned nothing if it explains no more than this share of the variance, or if its
# predictions correlate with the targets by no more standard errors than this.
_NOTHING, _ERRORS = 0.05, 3.0
# A model has missed a column if its squared errors are so many times those of local processes in
# that column, which is about a tenth of a nat.
_MISSED = 1.25
# Models without a closed form are evaluated at rows that are moved from training rows by this share
# of the distance to the nearest row.
_NEARBY = 0.1
# Number of rows, number of others that they are compared with, and the largest correlation that
# counts as none.
_FEW, _COMPARED, _UNCORRELATED = 20, 20_000, 1e-6
# Fewest rows that are compared.
_FEWEST_COMPARED = 30
# Columns with at most so many different whole numbers may hold codes.
_CODES = 20


def nothing_learned(model: Any, X: Any, y: Any, classes: Any = None) -> str:  # noqa: C901 (one branch for each case)
    """A sentence if a simple model predicts clearly better than one that has learned nothing.

    Parameters
    ----------
    model : estimator
        A fitted model.
    X, y : ndarray of shape (n, d) and (n,) or (n, t)
        Its training table, as `FitRun.begin` has received it.
    classes : ndarray, optional
        The classes of a classifier, whose targets are class numbers, or a column for each class.

    Returns
    -------
    sentence : str
        Empty if the model has learned something, if there is nothing to learn, or for fewer than
        100 rows.

    Notes
    -----
    The first look costs a leave-one-out prediction of at most 200 rows, or a prediction if there is
    no closed form. They are compared with local processes in a fast column (`local_errors`), if
    there is one. Only if the look finds nothing, a linear model and boosted trees are fitted. The
    difference of squared errors decides, by three standard errors.
    """
    n = len(X)
    if n < FEWEST_ROWS or np.ndim(X) != 2 or np.asarray(X[:1]).dtype.kind not in "fiu":
        return ""
    Y = np.asarray(y, dtype=np.float64).reshape(n, -1)
    if classes is not None and Y.shape[1] == 1:
        # Otherwise there already is a column for each class.
        Y = (Y == np.arange(len(classes))).astype(np.float64)
    if not np.isfinite(Y).all() or not np.ptp(Y, axis=0).any():
        return ""
    # Targets count alike, whatever their units.
    units = np.where(np.ptp(Y, axis=0) > 0, Y.std(0), 1.0)

    some = rows_to_look_at(*X.shape)
    X_some, Y_some = np.asarray(X[some], dtype=np.float64), Y[some] / units
    fast = fast_column(X_some, Y_some)

    def predicted_rows(rows: np.ndarray) -> np.ndarray:
        left = model._left_out(X, Y if Y.shape[1] > 1 else Y[:, 0], None, rows)
        if left is not None and left.how == "leave_one_out":
            return left.mean.reshape(len(rows), -1) / units
        return predicted_nearby(model._expected_targets, X[rows], n, fast) / units

    order = np.random.RandomState(0).permutation(n)[:_ROWS]
    first = order[: min(_LOOK, max(_FEWEST_LOOKED, int(_PRODUCT / n**2)))]
    look = np.sort(first)
    predicted = predicted_rows(look)
    if fast is not None:
        # Both orders begin alike.
        errors = local_errors(fast, X_some, Y_some, len(first))[np.argsort(first)]
        if said := _missed(fast, errors, predicted, Y[look] / units):
            return said
    if _has_learned(predicted, Y[look] / units):
        return ""
    signals = simple_signals(np.asarray(X[order], dtype=np.float64), Y[order] / units)
    for signal in signals:
        if not signal.clear:
            continue
        held = order[-len(signal.errors) :]
        rows = np.sort(held)
        predicted, truth = predicted_rows(rows), Y[rows] / units
        if _has_learned(predicted, truth):
            return ""
        own = _errors(predicted, truth, signal)[np.argsort(np.argsort(held))]
        falls = own - signal.errors
        error = float(falls.std()) / math.sqrt(len(falls))
        if falls.mean() > _ERRORS * max(error, 1e-12):
            return (
                f"the model has learned nothing: its leave-one-out predictions explain "
                f"{max(0.0, _explained(predicted, truth)):.0%} of the variance of "
                f"{len(rows)} rows, while those of {signal.model}, fitted to other rows, explain "
                f"{signal.explained:.0%}. Try other length scales in the kernel, more rows, a "
                "larger n_restarts_optimizer, or select or transform the columns"
            )
    return ""


def rows_without_correlation(model: Any, X: Any) -> str:
    """A sentence if no two rows, or points of a grid, are correlated under the kernel of a user.

    This happens if columns are in other units than the kernel's length scales, and bounds or
    ``optimizer=None`` keep the length scales short.

    Parameters
    ----------
    model : estimator
        A fitted model.
    X : ndarray of shape (n, d)
        Its training rows. A few of them are compared with all others, at a cost linear in n.
    """
    kernel = getattr(model, "kernel_", None)
    given = model.get_params(deep=False).get("kernel") is not None
    if not given or kernel is None or not model._kernel_sees_rows() or np.ndim(X) != 2:
        return ""
    rows = np.asarray(X[:_COMPARED])
    # A few rows may be far from each other in any units.
    if rows.dtype.kind not in "fiu" or len(rows) < _FEWEST_COMPARED:
        return ""
    points = model._neighbours()
    if points is None:
        rows = rows / model._column_units()
        few = np.random.RandomState(0).permutation(len(rows))[:_FEW]
        what, follows = "rows", "predictions of new rows are those of the prior"
    else:
        rows, few = points, np.zeros(1, dtype=int)
        what, follows = "neighbouring points of the grid", "the model does not depend on them"
    signal = np.diag(kernel(rows[few], rows[few]))
    others = (rows[few][:, None] != rows[None]).any(-1)
    shares = np.abs(kernel(rows[few], rows)) * others
    if not others.any(1).all() or not (shares < _UNCORRELATED * signal[:, None]).all():
        return ""
    return (
        f"Under the kernel {kernel} no two {what} are correlated: its length scales are much "
        f"shorter than the distances between them, and {follows}. "
        "Scale the columns of X with StandardScaler, or give length scales in the units of X."
    )


def _has_learned(predicted: np.ndarray, Y: np.ndarray) -> bool:
    """Whether predictions explain more than rounding, and correlate with the targets."""
    if not np.isfinite(predicted).all():
        return True
    a, b = predicted - predicted.mean(0), Y - Y.mean(0)
    product = math.sqrt(float(np.square(a).sum()) * float(np.square(b).sum()))
    correlation = float((a * b).sum()) / product if product > 0 else 0.0
    return _explained(predicted, Y) > _NOTHING and correlation * math.sqrt(len(Y)) > _ERRORS


def _missed(fast: FastColumn, errors: np.ndarray, predicted: np.ndarray, truth: np.ndarray) -> str:
    """A sentence if local processes in a fast column, with these errors, predict better."""
    own = (np.square(truth - predicted)[:, fast.targets] / fast.units).sum(1)
    falls = own - errors
    error = max(float(falls.std()) / math.sqrt(len(falls)), 1e-12)
    if own.mean() < _MISSED * errors.mean() or falls.mean() < _ERRORS * error:
        return ""
    return (
        f"the model has missed what varies many times over the range of column {fast.column}: its "
        f"predictions leave {own.mean():.2g} of the variance of {len(own)} rows unexplained, and "
        f"processes of {NEAREST} neighbours in this column leave {errors.mean():.2g}. Try a "
        "shorter length scale of this column in the kernel, or a model that resolves it, such as "
        "IterativeGPRegressor or NNGPRegressor"
    )


def _explained(predicted: np.ndarray, Y: np.ndarray) -> float:
    total = float(np.square(Y - Y.mean(0)).sum())
    return 1 - float(np.square(Y - predicted).sum()) / total if total > 0 else 1.0


def _errors(predicted: np.ndarray, Y: np.ndarray, signal: Signal) -> np.ndarray:
    """Squared errors in the units of the signal's errors."""
    return (np.square(Y - predicted)[:, signal.targets] / signal.units).sum(1)


def predicted_nearby(
    predict: Callable[[np.ndarray], np.ndarray],
    X: np.ndarray,
    n: int,
    fast: FastColumn | None = None,
) -> np.ndarray:
    """Predictions close to training rows X, by a model that was fitted to their targets.

    A model under whose kernel all rows are far apart predicts each row from its own target, and
    something else close to it. What a model has learned changes little over a tenth of the way to
    the nearest row. Columns of a few whole numbers, such as codes of categories, stay.

    Parameters
    ----------
    predict : callable
    X : ndarray of shape (k, d)
        Some of the training rows.
    n : int
        Number of all of them, among which the nearest one is nearer.
    fast : FastColumn, optional
        In this column, rows move no further than a tenth of the distance of neighbours in it: the
        nearest row of several columns may be cycles away.
    """
    if len(X) < 2:
        return predict(X)
    k, d = X.shape
    Z = X / column_spread(X)
    apart = cdist(Z, Z)
    apart[apart == 0] = np.inf
    towards = X[apart.argmin(1)] - X
    codes = [len(np.unique(x)) <= _CODES and (x == np.round(x)).all() for x in X.T]
    moved = np.where(codes, 0.0, _NEARBY * (k / max(n, k)) ** (1 / d) * towards)
    if fast is not None:
        largest = _NEARBY * fast.width / fast.rows
        moved[:, fast.column] = np.clip(moved[:, fast.column], -largest, largest)
    return predict(X + moved)
