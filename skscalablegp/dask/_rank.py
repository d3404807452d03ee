"""What one rank of a fit does on its worker."""

from __future__ import annotations

import json
import pickle
import warnings
from typing import Any

import numpy as np
import torch
from distributed import get_worker

from .._validation import check_memory
from ..ranks import Ranks
from ._session import Session, joined

_KINDS = "biufc"
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
            model = estimator.fit(**_below(numbered), **settings)
            # All ranks have the same model.
            return (None, []) if rank else (model, [warning.message for warning in said])
        tables = _collected(ranks, numbered)
        model = ranks.lead(lambda: estimator.fit(**tables, **settings))
        return model, [warning.message for warning in said]


def n_rows(part: dict[str, Any]) -> int:
    """The number of rows of a partition."""
    return len(next(iter(part.values())))


def _below(own: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """The partitions of this rank in order, one below the other."""
    parts = [own[k] for k in sorted(own)]
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
    about = {number: _described(part) for number, part in own.items()}
    found = [json.loads(text) for text in ranks.exchange("partitions", json.dumps(about))]
    owner = {int(k): rank for rank, texts in enumerate(found) for k in texts}
    known = {int(k): text for texts in found for k, text in texts.items()}
    order = [k for k in sorted(known) if known[k]["rows"]]
    if not order:
        raise ValueError(NO_ROWS)
    if ranks.rank:
        for k in order:
            for name in own.get(k, ()):
                ranks.send(_as_bytes(own[k][name], known[k]["kinds"][name]), 0)
        return {}
    _check_memory(sum(known[k]["bytes"] for k in order))
    kinds = {name: [known[k]["kinds"][name] for k in order] for name in known[order[0]]["kinds"]}
    columns = {name: _Column([known[k]["rows"] for k in order], kinds[name]) for name in kinds}
    for place, k in enumerate(order):
        for name, column in columns.items():
            if owner[k] == 0:
                column.put(place, own[k][name])
            else:
                ranks.receive(column.room(place), owner[k])
    return {name: column.whole() for name, column in columns.items()}


def _check_memory(need: float) -> None:
    limit = get_worker().memory_manager.memory_limit
    check_memory(
        need,
        "The table at rank 0",
        "use fewer rows, float32, or workers with more memory",
        limit,
    )


def _described(part: dict[str, Any]) -> dict[str, Any]:
    """The rows and bytes of a partition, and how each of its collections travels."""
    kinds = {name: _kind(value) for name, value in part.items()}
    return {
        "rows": n_rows(part),
        "bytes": sum(kind["bytes"] for kind in kinds.values()),
        "kinds": kinds,
    }


def _kind(value: Any) -> dict[str, Any]:
    """An array of numbers travels as it is, everything else as a pickle."""
    if isinstance(value, np.ndarray) and value.dtype.kind in _KINDS:
        kind = {"dtype": value.dtype.str, "shape": value.shape[1:]}
        return kind | {"bytes": value.nbytes}
    return {"dtype": "", "shape": (), "bytes": len(pickle.dumps(value))}


def _as_bytes(value: Any, kind: dict[str, Any]) -> torch.Tensor:
    data: Any = value if kind["dtype"] else np.frombuffer(pickle.dumps(value), np.uint8)
    return torch.from_numpy(np.array(data, order="C").reshape(-1).view(np.uint8))


class _Column:
    """One collection at rank 0, whose partitions arrive one after the other.

    Arrays of one type are received into their place in the whole array, so that there is no second
    copy of it.
    """

    def __init__(self, rows: list[int], kinds: list[dict[str, Any]]):
        self._kinds, self._ends = kinds, np.cumsum([0, *rows])
        alike = all(kind["dtype"] == kinds[0]["dtype"] for kind in kinds) and kinds[0]["dtype"]
        shape = (sum(rows), *kinds[0]["shape"])
        self._array = np.empty(shape, np.dtype(kinds[0]["dtype"])) if alike else None
        self._parts: list[Any] = [None] * len(rows)

    def _slice(self, place: int) -> np.ndarray:
        assert self._array is not None
        return self._array[self._ends[place] : self._ends[place + 1]]

    def put(self, place: int, value: Any) -> None:
        """Set a partition of this rank."""
        if self._array is None:
            self._parts[place] = value
        else:
            self._slice(place)[...] = value

    def room(self, place: int) -> torch.Tensor:
        """Memory for the bytes of a partition of another rank."""
        if self._array is not None:
            return torch.from_numpy(self._slice(place).reshape(-1).view(np.uint8))
        self._parts[place] = torch.empty(self._kinds[place]["bytes"], dtype=torch.uint8)
        return self._parts[place]

    def whole(self) -> Any:
        if self._array is not None:
            return self._array
        return _concatenated([self._read(k, part) for k, part in enumerate(self._parts)])

    def _read(self, place: int, part: Any) -> Any:
        """A partition, whose bytes have arrived if it is one of another rank."""
        if not isinstance(part, torch.Tensor):
            return part
        kind, data = self._kinds[place], part.numpy()
        if not kind["dtype"]:
            return pickle.loads(data.tobytes())
        return data.view(np.dtype(kind["dtype"])).reshape(-1, *kind["shape"])
