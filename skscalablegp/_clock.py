"""The clock that all time budgets read. Tests replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_READ: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.perf_counter)


def now() -> float:
    """Seconds since a fixed moment."""
    return _READ.get()()


@contextmanager
def clock(read: Callable[[], float]) -> Iterator[None]:
    """Read another clock inside the context."""
    token = _READ.set(read)
    try:
        yield
    finally:
        _READ.reset(token)


@contextmanager
def ahead(by: Callable[[], float]) -> Iterator[None]:
    """Inside the context the clock is ahead of the present one by this many seconds."""
    read = _READ.get()
    with clock(lambda: read() + by()):
        yield
