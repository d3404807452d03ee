"""What one rank of a fit does on its worker."""

from __future__ import annotations

import json
import warnings
from typing import Any

import numpy as np
from dask.sizeof import sizeof
from distributed import get_worker

from .._validation import check_memory
from ..ranks import Ranks
from ._session import Session, joined

NO_ROWS = "X has no rows: all of its partitions are empty."


def fitted_at(
    session: Session,
    rank: int,
    numbers: tuple[int, ...],
    parts: list[dict[str, Any]],
    estimator: Any,
    settings: dict[str, Any],
) -> Any:
    """Take part in a fit with the partitions of these numbers.

    Rank 0 returns the model, and the warnings of the fit, which the caller repeats.
    """
    numbered = dict(zip(numbers, parts, strict=True))
    with joined(session, rank) as ranks, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        if session.rows == "own":
            model = estimator.fit(**_below([numbered[k] for k in sorted(numbered)]), **settings)
            # All ranks have the same model.
            return (None, []) if rank else (model, [warning.message for warning in said])
        tables = _collected(ranks, numbered)
        model = ranks.lead(lambda: estimator.fit(**tables, **settings))
        return model, [warning.message for warning in said]


def n_rows(part: dict[str, Any]) -> int:
    """The number of rows of a partition."""
    return len(next(iter(part.values())))


def _below(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Partitions in order, one below the other."""
    return {name: _concatenated([part[name] for part in parts]) for name in parts[0]}


def _concatenated(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts)
    from dask.dataframe.dispatch import concat

    return concat(parts)


def _collected(ranks: Ranks, own: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """All partitions in order, one below the other, at rank 0; the others send theirs."""
    about = {number: (n_rows(part), sizeof(part)) for number, part in own.items()}
    found = [json.loads(text) for text in ranks.exchange("partitions", json.dumps(about))]
    # The owner, the rows and the bytes of each partition that has rows.
    known = {
        int(k): (rank, *sizes)
        for rank, texts in enumerate(found)
        for k, sizes in texts.items()
        if sizes[0]
    }
    if not known:
        raise ValueError(NO_ROWS)
    if not ranks.rank:
        limit = get_worker().memory_manager.memory_limit
        remedy = "use fewer rows, float32, or workers with more memory"
        need = sum(size for *_, size in known.values())
        check_memory(need, "The table at rank 0", remedy, limit)
    parts = [ranks.passed(own.get(k), known[k][0]) for k in sorted(known)]
    return {} if ranks.rank else _below(parts)
