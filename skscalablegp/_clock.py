"""The clock that all time budgets read, and looks at it during long work. Tests replace it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_READ: ContextVar[Callable[[], float]] = ContextVar("clock", default=time.perf_counter)
_LOOK_UP: ContextVar[Callable[[], None] | None] = ContextVar("look_up", default=None)


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


@contextmanager
def watched(look_up: Callable[[], None] | None) -> Iterator[None]:
    """Call `look_up` between blocks, or nothing if it is None; an exception from it ends the work.

    Parameters
    ----------
    look_up : callable or None
        For example a function that raises when the time budget is spent.
    """
    token = _LOOK_UP.set(look_up)
    try:
        yield
    finally:
        _LOOK_UP.reset(token)


def look_up() -> None:
    """Call the function that `watched` was given, if any."""
    check = _LOOK_UP.get()
    if check is not None:
        check()
