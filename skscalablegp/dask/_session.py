"""What the workers of a cluster do for a fit: where its ranks meet, and what each of them does."""

from __future__ import annotations

import os
import socket
import warnings
from datetime import timedelta
from typing import Any, NamedTuple

import numpy as np
from dask.sizeof import sizeof
from distributed import get_worker
from distributed.comm import get_address_host
from torch.distributed import TCPStore

from .._validation import check_memory
from ..workers import Life, RankError, met_at, threads, versions

# In a worker: the key-value stores that it keeps for the ranks of fits, by port.
_STORES: dict[int, TCPStore] = {}


class Session(NamedTuple):
    """One group of ranks.

    Attributes
    ----------
    names : list of str
        What messages call the ranks.
    host, port : str and int
        Of torch's key-value store, which the worker of rank 0 keeps.
    timeout, patience : float
        Seconds, as in `distribute`.
    rows : {"replicated", "own"}
        As in `distribute`.
    """

    names: list[str]
    host: str
    port: int
    timeout: float
    patience: float
    rows: str


# ---------------------------------------------------------------- called on workers by the client


def opened(first: str, dask_worker: Any) -> tuple[int, str, dict[str, str]]:
    """Open the store of a session if this is the first worker: its port, process and versions."""
    port = 0
    if dask_worker.address == first:
        store = TCPStore(get_address_host(first), 0, None, True, wait_for_workers=False)
        port = int(store.port)
        _STORES[port] = store
    return port, f"{socket.gethostname()} {os.getpid()}", versions()


def closed(port: int) -> None:
    """Close the store; ranks that still wait for others notice this."""
    _STORES.pop(port, None)


def described(part: dict[str, Any]) -> tuple[int, int]:
    """Return the numbers of rows and of bytes of a partition."""
    return len(next(iter(part.values()))), sizeof(part)


# ---------------------------------------------------------------- ranks


def fitted_at(session: Session, rank: int, parts: list, estimator: Any, settings: dict) -> Any:
    """Take part in a fit with some partitions: all at rank 0, or those that stay at each rank.

    Rank 0 returns the model, and the warnings of the fit, which the caller repeats.
    """
    worker = get_worker()

    def fit() -> None:
        estimator.fit(**_below(parts), **settings)

    with (
        threads(worker.state.nthreads),
        met_at(_life(session, rank), session.rows, get_address_host(worker.address)) as ranks,
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        fit() if session.rows == "own" else ranks.lead(fit)
        # All ranks with rows have the same model.
        return (None, []) if rank else (estimator, [warning.message for warning in said])


def _life(session: Session, rank: int) -> Life:
    names, host, port, timeout, patience, _ = session
    try:
        store = TCPStore(host, port, None, False, timedelta(seconds=timeout))
    except RuntimeError as error:
        raise RankError(f"{names[0]} cannot be reached at {host}") from error
    return Life(store, rank, names, timeout, patience)


def _below(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Partitions in order, one below the other."""
    sizes = [described(part) for part in parts]
    parts = [part for part, (rows, _) in zip(parts, sizes, strict=True) if rows]
    check_memory(
        sum(size for _, size in sizes),
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
