"""Interrupts wait while ranks exchange messages, which must not end half-way."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def interrupts_wait(dropped: int = 0) -> Iterator[None]:
    """SIGINT is handled at the end of the block.

    Parameters
    ----------
    dropped : int, default=0
        The first so many interrupts have no effect at all: launchers send them to all ranks, and
        rank 0 decides how a fit ends. Further ones are handled at once.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    seen: list[tuple[int, Any]] = []

    def note(number: int, frame: Any) -> None:
        seen.append((number, frame))
        if dropped and len(seen) > dropped and callable(before):
            before(number, frame)

    before = signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if seen and not dropped and callable(before):
        before(*seen[-1])
