"""Partitions of the collections of a call, which belong together row by row."""

from __future__ import annotations

from typing import Any

import dask.array as da
from dask import is_dask_collection
from dask.delayed import Delayed, delayed


def partitions(collections: dict[str, Any]) -> list[Delayed]:
    """One task for each partition, whose result is {name: rows of that collection}.

    Parameters
    ----------
    collections : dict of str to collection
        Dask arrays, data frames or series. The first one decides the partitions.

    Raises
    ------
    TypeError
        For something else than a collection.
    ValueError
        If the numbers of partitions differ. Computing a task raises it if the rows differ.
    """
    names, first = list(collections), next(iter(collections.values()))
    blocks = [_blocks(name, value, first) for name, value in collections.items()]
    for name, own in zip(names, blocks, strict=True):
        if len(own) != len(blocks[0]):
            raise ValueError(
                f"{names[0]} has {len(blocks[0])} partitions and {name} {len(own)}: they need the "
                "same rows in each partition; repartition one like the other."
            )
    check = delayed(_together, pure=False)
    return [check(k, names, *parts) for k, parts in enumerate(zip(*blocks, strict=True))]


def is_collection(value: Any) -> bool:
    """Whether a value is a collection of Dask, whose partitions can be computed."""
    return bool(is_dask_collection(value)) and not isinstance(value, Delayed)


def _blocks(name: str, value: Any, first: Any) -> list[Delayed]:
    if not is_collection(value):
        raise TypeError(
            f"{name} must be a Dask array, data frame or series, got {type(value).__name__}. For "
            "tables in memory, call the estimator itself, or make collections by "
            "dask.array.from_array and dask.dataframe.from_pandas."
        )
    if not isinstance(value, da.Array):
        return list(value.to_delayed())
    chunks: dict[int, Any] = {k: -1 for k in range(1, value.ndim)}
    # Unknown lengths are not equal.
    if isinstance(first, da.Array) and value.shape[0] == first.shape[0]:
        chunks[0] = first.chunks[0]
    return list(value.rechunk(chunks).to_delayed().ravel())


def _together(number: int, names: list[str], *parts: Any) -> dict[str, Any]:
    """The rows of all collections in one partition; runs on the worker that has them."""
    rows = dict(zip(names, map(len, parts), strict=True))
    if len(set(rows.values())) > 1:
        counts = ", ".join(f"{count} of {name}" for name, count in rows.items())
        raise ValueError(
            f"partition {number} has different numbers of rows: {counts}. Repartition the "
            "collections alike."
        )
    return dict(zip(names, parts, strict=True))


def split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options that are collections, and the others."""
    rows = {name: value for name, value in options.items() if is_collection(value)}
    return rows, {name: value for name, value in options.items() if name not in rows}
