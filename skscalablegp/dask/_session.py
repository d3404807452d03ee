"""Ranks on the workers of a cluster: where they meet, and how long they wait for one another."""

from __future__ import annotations

import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import psutil
import torch.distributed as dist
from distributed import get_worker
from distributed.comm import get_address_host
from torch.distributed import PrefixStore, TCPStore

from .._clock import now
from ..workers import RankError, Ranks, met_at, threads, versions

_INTERFACE = "GLOO_SOCKET_IFNAME"

# In a worker: the stores that it keeps for other workers, and a lock, since a process has one
# process group at a time.
_STORES: dict[str, TCPStore] = {}
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Session:
    """One group of ranks.

    Attributes
    ----------
    workers : tuple of str
        The addresses of the workers, by rank.
    timeout : float
        Seconds, as in `distribute`.
    rows : {"replicated", "own"}
        As in `distribute`.
    patience : float
        Seconds that ranks wait for one whose worker is alive but busy with other tasks.
    port : int
        Of torch's key-value store, which the worker of rank 0 keeps.
    key : str
        Distinguishes the session from others.
    """

    workers: tuple[str, ...]
    timeout: float
    rows: str = "replicated"
    patience: float = 1800.0
    port: int = 0
    key: str = field(default_factory=lambda: uuid.uuid4().hex)

    def named(self, rank: int) -> str:
        """A rank in messages."""
        return f"rank {rank} on the worker {self.workers[rank]}"


# ---------------------------------------------------------------- called on workers by the client


def described() -> dict[str, Any]:
    """The process of a worker, and the versions that it runs."""
    return {"process": f"{socket.gethostname()} {os.getpid()}", "versions": versions()}


def opened(key: str, address: str) -> int:
    """Open the store of a session on this worker, and return its port."""
    host = get_address_host(address)
    _STORES[key] = store = TCPStore(host, 0, None, True, wait_for_workers=False)
    return int(store.port)


def closed(key: str, why: str = "") -> None:
    """Close the store, after telling ranks that wait for others why these will not come."""
    store = _STORES.get(key) if why else _STORES.pop(key, None)
    if store is not None and why:
        PrefixStore(key, store).set("failed", why)


# ---------------------------------------------------------------- ranks


@contextmanager
def joined(session: Session, rank: int) -> Iterator[Ranks]:
    """Meet the other ranks of a session, from a task of its worker."""
    worker = get_worker()
    host = get_address_host(session.workers[0])
    wait = timedelta(seconds=session.timeout)
    with _ONE_AT_A_TIME, _interface(worker.address), threads(worker.state.nthreads):
        try:
            store = PrefixStore(session.key, TCPStore(host, session.port, None, False, wait))
        except RuntimeError as error:
            raise RankError(f"{session.named(0)} cannot be reached at {host}") from error
        _wait_for_all(session, rank, store)
        size = len(session.workers)
        dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)
        try:
            given = session.timeout, session.rows, session.patience
            with met_at(PrefixStore("context", store), *given) as ranks:
                yield ranks
        finally:
            dist.destroy_process_group()


def _wait_for_all(session: Session, rank: int, store: Any) -> None:
    """Wait until all ranks run, which may be busy with other tasks before."""
    keys = [f"here {k}" for k in range(len(session.workers))]
    begun, pause, waiting = now(), 0.005, threading.Event()
    try:
        store.set(keys[rank], "")
        while not store.check(keys):
            if store.check(["failed"]):
                raise RankError(store.get("failed").decode())
            if now() - begun > session.patience:
                missing = [k for k, key in enumerate(keys) if not store.check([key])]
                raise RankError(
                    f"{session.named(missing[0])} has not started within {session.patience:g} s: "
                    "other tasks keep its threads busy."
                )
            waiting.wait(pause)
            pause = min(2 * pause, 0.5)
    except RankError:
        raise
    except RuntimeError as error:
        raise RankError(f"{session.named(0)} has ended or cannot be reached") from error


@contextmanager
def _interface(address: str) -> Iterator[None]:
    """Let gloo talk over the interface by which Dask reaches this worker.

    By itself it takes that of the machine's host name, which is often a loopback address.
    """
    if _INTERFACE in os.environ:
        yield
        return
    host = get_address_host(address)
    names = [
        name
        for name, addresses in psutil.net_if_addrs().items()
        if any(known.address == host for known in addresses)
    ]
    if not names:
        yield
        return
    os.environ[_INTERFACE] = names[0]
    try:
        yield
    finally:
        del os.environ[_INTERFACE]
