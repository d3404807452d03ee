"""What the workers of a cluster do for a fit: where its ranks meet, and what each of them does."""

from __future__ import annotations

import json
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
from ..workers import Life, RankError, Ranks, differing, met_at, threads, versions

# In a worker: the key-value stores that it keeps for the ranks of fits, by port.
_STORES: dict[int, TCPStore] = {}


class Session(NamedTuple):
    """One group of ranks.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers, by rank.
    port : int
        Of torch's key-value store, which the worker of rank 0 keeps.
    versions : dict of str to list
        Those of the client.
    timeout, patience : float
        Seconds, as in `distribute`.
    rows : {"replicated", "own"}
        As in `distribute`.
    """

    workers: tuple[str, ...]
    port: int
    versions: dict[str, list[str]]
    timeout: float
    patience: float
    rows: str

    def named(self, rank: int) -> str:
        """A rank in messages."""
        return f"rank {rank} on the worker {self.workers[rank]}"


# ---------------------------------------------------------------- called on workers by the client


def opened(address: str) -> int:
    """Open the store of a session on this worker, and return its port."""
    store = TCPStore(get_address_host(address), 0, None, True, wait_for_workers=False)
    _STORES[store.port] = store
    return int(store.port)


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
    worker, models = get_worker(), []

    def fit() -> None:
        models.append(estimator.fit(**_below(parts), **settings))

    with (
        threads(worker.state.nthreads),
        met_at(_life(session, rank), session.rows, get_address_host(worker.address)) as ranks,
        warnings.catch_warnings(record=True) as said,
    ):
        _check_workers(session, ranks)
        warnings.simplefilter("always")
        fit() if session.rows == "own" else ranks.lead(fit)
        # All ranks with rows have the same model.
        return (None, []) if rank else (models[0], [warning.message for warning in said])


def _life(session: Session, rank: int) -> Life:
    names = [session.named(number) for number in range(len(session.workers))]
    host, limit = get_address_host(session.workers[0]), timedelta(seconds=session.timeout)
    try:
        store = TCPStore(host, session.port, None, False, limit)
    except RuntimeError as error:
        raise RankError(f"{names[0]} cannot be reached at {host}") from error
    return Life(store, rank, names, session.timeout, session.patience)


def _check_workers(session: Session, ranks: Ranks) -> None:
    """Raise unless all workers have the client's versions, in processes of their own."""
    own = json.dumps([f"{socket.gethostname()} {os.getpid()}", versions()])
    found = [json.loads(text) for text in ranks.exchange("worker", own)]
    places = {f"at {worker}": its for worker, (_, its) in zip(session.workers, found, strict=True)}
    if said := differing({"here": session.versions} | places):
        raise RankError(f"{said}: install the same versions on all machines.")
    if len({process for process, _ in found}) < len(found):
        raise ValueError(
            f"Some of the workers {', '.join(session.workers)} share a process, but every rank "
            "needs its own: use LocalCluster(processes=True), or one worker."
        )


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
