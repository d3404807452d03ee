"""What one rank of a fit does on its worker."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from distributed import get_worker

from .._validation import check_memory
from ._session import Session, joined

NO_ROWS = "X has no rows: all of its partitions are empty."


def fitted_at(
    session: Session,
    rank: int,
    parts: list[dict[str, Any]],
    estimator: Any,
    settings: dict[str, Any],
) -> Any:
    """Take part in a fit with some partitions: all at rank 0, or those that stay at each rank.

    Rank 0 returns the model, and the warnings of the fit, which the caller repeats.
    """
    with joined(session, rank) as ranks, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        models: list[Any] = []

        def fit() -> None:
            models.append(estimator.fit(**_below(parts), **settings))

        fit() if session.rows == "own" else ranks.lead(fit)
        # All ranks with rows have the same model.
        return (None, []) if rank else (models[0], [warning.message for warning in said])


def n_rows(part: dict[str, Any]) -> int:
    """The number of rows of a partition."""
    return len(next(iter(part.values())))


def _below(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Partitions in order, one below the other."""
    parts = [part for part in parts if n_rows(part)]
    if not parts:
        raise ValueError(NO_ROWS)
    check_memory(
        sum(map(sizeof, parts)),
        "The table of a worker",
        "use fewer rows, float32, or workers with more memory",
        get_worker().memory_manager.memory_limit,
    )
    return {name: _concatenated([part[name] for part in parts]) for name in parts[0]}


def _concatenated(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from dask.dataframe.dispatch import concat

    return concat(parts)
