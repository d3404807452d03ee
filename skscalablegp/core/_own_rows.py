"""Reading a table of which each rank passes rows of its own to a fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

from .._calls import Call
from .._validation import check_n_targets, check_noise_variance, validated
from ..linalg.parallel import RankWorkers
from ..ranks import Ranks, leading
from .data import Moments, ShardedTable, Table, limit_rows, target_scales


def own_rows() -> Ranks | None:
    """The ranks of the fit under way if each has rows of its own; otherwise None."""
    ranks = leading()
    return None if ranks is None or ranks.rows != "own" else ranks


def check_own_rows(model: Any) -> None:
    """Refuse a fit to rows of several ranks, unless the estimator needs them through sums only.

    Raises
    ------
    ValueError
        With the remedy.
    """
    ranks = own_rows()
    if ranks is None:
        return
    name, remedy = type(model).__name__, 'use distribute(rows="replicated")'
    if not model._sums_rows:
        raise ValueError(f"{name} needs all rows in one process: {remedy}.")
    if ranks.arguments is not None and ranks.arguments.method.__name__ != "fit":
        raise ValueError(f"partial_fit needs all rows in one process: {remedy}.")
    if model.get_params(deep=False).get("checkpoint") is not None:
        raise ValueError(f"checkpoint needs all rows in one process: leave it out, or {remedy}.")


def read_own_rows(model: Any, run: Any, ranks: Ranks) -> ShardedTable:
    """The validated table of all ranks; equal rows are not merged.

    Parameters
    ----------
    model : TableRegressorBase
        The estimator at rank 0, which gets the attributes of `validate_data`, and `_noise_given`.
    run : FitRun
    ranks : Ranks

    Raises
    ------
    ValueError
        At all ranks, for arguments that one of them refuses, with its number, and for weights.
    """
    raw = read_parts(ranks, _read)
    known = raw.own.noise_variance
    model._noise_given = known is not None
    n = sum(raw.sizes)
    # The same rows as in `ShardedTable.sample`.
    (some,) = raw.gather(_targets, np.arange(n)[limit_rows(n)])
    normalize = run.normalizes(some)
    moments = reduce(add, raw.call(_target_moments)) if normalize else None
    scales = target_scales(moments, targets_of(raw.own.y), model._shares_scale(known))
    return ShardedTable.of(raw.put(_scaled, *scales))


def read_parts(ranks: Ranks, read: Callable[[Call], RawRows]) -> RankWorkers:
    """The arguments of all ranks, which are of the same kind.

    Raises
    ------
    ValueError
        At all ranks, with the number of the rank whose arguments are refused.
    """
    raw = RankWorkers.read(ranks, read)
    for rank, kind in enumerate(raw.call(_kind)):
        if kind != (first := _kind(raw.own)):
            raise ValueError(f"The rows of rank {rank} have {kind}, and those of rank 0 {first}.")
    if not any(raw.sizes):
        raise ValueError("No rank has rows: pass each rank its part of the table.")
    return raw


@dataclass(frozen=True, eq=False)
class RawRows:
    """The validated arguments of one rank."""

    model: Any
    X: np.ndarray
    y: np.ndarray
    noise_variance: np.ndarray | None

    def __len__(self) -> int:
        return len(self.X)

    def some(self, rows: np.ndarray) -> RawRows:
        """Some of them, by number."""
        known = None if self.noise_variance is None else self.noise_variance[rows]
        return RawRows(self.model, self.X[rows], self.y[rows], known)


def given_rows(call: Call) -> dict[str, Any]:
    """The arguments of a fit by name; raises a ValueError for weights."""
    given = inspect.signature(call.method).bind(call.estimator, *call.args, **call.kwargs).arguments
    if given.get("sample_weight") is not None:
        raise ValueError("sample_weight needs all rows in one process: use rows='replicated'.")
    return dict(given)


def raw_rows(call: Call, read: Callable[[Any, Any, Any], tuple[np.ndarray, np.ndarray]]) -> RawRows:
    """The rows of one rank, validated by ``read(model, X, y)``; there may be none."""
    given, model = given_rows(call), call.estimator
    X, y, known = given["X"], given["y"], given.get("noise_variance")
    n = getattr(X, "shape", [len(X)])[0]
    if n:
        X, y = read(model, X, y)
        return RawRows(model, X, y, check_noise_variance(known, n, targets_of(y)))
    # A row of zeros stands for the columns.
    zeros = np.zeros((1, *np.shape(X)[1:]))
    if hasattr(X, "columns"):
        zeros = type(X)(zeros, columns=X.columns)
    X, y = read(model, zeros, np.zeros((1, *np.shape(y)[1:])))
    return RawRows(model, X[:0], y[:0], None if known is None else np.zeros((0, targets_of(y))))


def targets_of(y: np.ndarray) -> int:
    """The number of targets of a row."""
    return int(np.prod(y.shape[1:]))


def _read(call: Call) -> RawRows:
    return raw_rows(call, _validated)


def _validated(model: Any, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    accepted = model._accepted_rows(model.kernel)
    X, y = validated(model, X, y, multi_output=True, y_numeric=True, **accepted)
    check_n_targets(model.n_targets, y)
    return X, y.astype(np.float64)


def _kind(raw: RawRows) -> str:
    known = "no noise_variance" if raw.noise_variance is None else "a noise_variance"
    return f"{raw.X.shape[1]} columns, targets of shape (n, {targets_of(raw.y)}) and {known}"


def _targets(raw: RawRows, rows: np.ndarray) -> tuple[np.ndarray]:
    return (raw.y[rows],)


def _target_moments(raw: RawRows) -> Moments:
    return Moments.of(raw.y.reshape(len(raw.y), targets_of(raw.y)))


def _scaled(raw: RawRows, y_mean: np.ndarray, y_std: np.ndarray) -> Table:
    def alpha(std: np.ndarray) -> np.ndarray:
        return raw.model._own_noise(len(raw.X), np.ones(1)) / raw.model._own_unit(std)

    return Table.scaled(raw.X, raw.y, y_mean, y_std, alpha, raw.noise_variance)
