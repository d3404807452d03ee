"""A pool of threads of the library's own, each of which computes alone.

An operation that is split over threads ends when the last of them does: one that another program
keeps from its core holds up all. Tasks side by side, each in one thread, wait for one another only
at the end, and torch releases the interpreter's lock while it computes. What they compute does not
depend on how many work: an operation in one thread always adds in the same order, and results come
back in the order of the tasks.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from operator import length_hint
from typing import Any, TypeVar

import joblib
import torch

T = TypeVar("T")

# Finished and unfinished tasks a worker may be ahead of what the caller has taken: bounds memory.
_AHEAD = 4

_NONE = object()
_POOL: ThreadPoolExecutor | None = None
_LOCK = threading.Lock()
_THIS_THREAD = threading.local()


def _forget() -> None:
    """After a fork no thread of the pool lives, and a lock may have been held by one.

    Those of OpenMP do not live either, and torch would wait for them: a child computes in one
    thread unless it asks for more.
    """
    global _POOL, _LOCK
    _POOL, _LOCK = None, threading.Lock()
    _cores.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@cache
def _cores() -> int:
    """What the machine allows: affinity, quotas of containers and LOKY_MAX_CPU_COUNT."""
    return joblib.cpu_count()


def n_workers() -> int:
    """How many tasks of this thread may run side by side.

    The least of torch's number of threads here (``torch.set_num_threads``, ``OMP_NUM_THREADS``, the
    limits that joblib gives its processes) and of the cores that affinity, a container's quota and
    ``LOKY_MAX_CPU_COUNT`` leave. A task that asks is alone: its own tasks run inside it.
    """
    return min(getattr(_THIS_THREAD, "threads", None) or torch.get_num_threads(), _cores())


def run(tasks: Iterable[Callable[[], T]], device: torch.device | None = None) -> list[T]:
    """Run tasks side by side; their results in their order. See `map_in_order`."""
    return list(map_in_order(lambda task: task(), tasks, device))


def map_in_order(
    function: Callable[[Any], T], items: Iterable[Any], device: torch.device | None = None
) -> Iterator[T]:
    """``map(function, items)``, several items at once, on threads that compute alone.

    Parameters
    ----------
    function : callable
        Sees torch's gradient and inference modes and the context variables of the caller. May write
        to memory that belongs to its item only.
    items : iterable
        Taken one at a time as workers come free; at most four for each worker are ahead of what
        the caller has taken. Each should be worth a tenth of a millisecond, and take less than a
        second, after which an interrupt of the caller ends the work.
    device : torch.device, optional
        Where the tensors are. Off the CPU, in a thread that computes alone already, and inside a
        task, the caller does the work.

    Yields
    ------
    result : object
        In the order of the items, whatever was ready first: sums of them are reproducible.

    Raises
    ------
    Exception
        Of the first item that fails, in the caller, after the results before it.
    """
    alone = torch.get_num_threads() == n_workers() == 1
    if alone or (device is not None and device.type != "cpu"):
        yield from map(function, items)
        return
    work = _Work(function, items)
    try:
        yield from work.results()
    finally:
        work.stop()


class _Work:
    """One call of `map_in_order`: what is handed out, what is finished, what is taken."""

    def __init__(self, function: Callable[[Any], Any], items: Iterable[Any]):
        workers = n_workers()
        self._workers = min(workers, max(1, length_hint(items, workers)))
        self._ahead = _AHEAD * self._workers
        self._function, self._items = function, iter(items)
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self._finished: dict[int, tuple[Any, BaseException | None]] = {}
        self._given = self._taken = self._active = 0
        self._over = False
        # Only the caller waits; workers that are too far ahead go home, and are called again.
        self._changed = threading.Condition()

    def results(self) -> Iterator[Any]:
        while True:
            with self._changed:
                self._call_workers()
                while self._taken not in self._finished and self._active:
                    self._changed.wait()
                if self._taken not in self._finished:
                    return
                value, error = self._finished.pop(self._taken)
                self._taken += 1
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # which holds this frame
            yield value

    def _call_workers(self) -> None:
        if self._given - self._taken > self._ahead // 2:
            return
        while self._active < self._workers and not self._over:
            _pool().submit(copy_context().run, self._serve)
            self._active += 1

    def _serve(self) -> None:
        """What a worker does: one item after the other."""
        inference, grad = self._modes
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                while self._serve_one():
                    pass
        except BaseException as error:
            # Of the items, not of the function: nothing follows.
            self._finish(self._given, None, error)
        finally:
            with self._changed:
                self._active -= 1
                self._changed.notify()

    def _serve_one(self) -> bool:
        with self._changed:
            number = self._given
            if self._over or number >= self._taken + self._ahead:
                return False
            item = next(self._items, _NONE)
            if item is _NONE:
                self._over = True
                return False
            self._given += 1
        value = error = None
        try:
            value = self._function(item)
        except BaseException as failure:
            error = failure
        self._finish(number, value, error)
        return True

    def _finish(self, number: int, value: Any, error: BaseException | None) -> None:
        with self._changed:
            self._finished[number] = value, error
            self._over |= error is not None
            if number == self._taken:
                self._changed.notify()

    def stop(self) -> None:
        """Hand out nothing more, and wait for what is under way: it may write to the results."""
        with self._changed:
            self._over = True
            while self._active:
                self._changed.wait()


def _pool() -> ThreadPoolExecutor:
    """The pool, shared by all threads that call: together they use the cores once."""
    global _POOL
    with _LOCK:
        if _POOL is None:
            _POOL = ThreadPoolExecutor(_cores(), "skscalablegp", _begin_to_work)
        return _POOL


def _begin_to_work() -> None:
    _THIS_THREAD.threads = 1
    _set_threads_here(1)


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Let this thread compute alone, if wanted: operations on little data gain nothing from others.

    Tasks go to as many workers as before. Other threads are left alone, and those that start later
    have as many threads as they would have had.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    _THIS_THREAD.threads = before
    try:
        _set_threads_here(1)
        yield
    finally:
        _THIS_THREAD.threads = None
        _set_threads_here(before)


def _set_threads_here(count: int) -> None:
    """torch's number of threads, of this thread only.

    What one thread sets, those that start later have as well: one that does nothing else puts back
    what it finds.
    """
    with _LOCK:
        theirs = _in_new_thread(torch.get_num_threads)
        # When a thread first asks, it takes over what others have set; from then on it has its own.
        torch.get_num_threads()
        try:
            torch.set_num_threads(count)
        finally:
            _in_new_thread(lambda: torch.set_num_threads(theirs))


def _in_new_thread(function: Callable[[], T]) -> T:
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]
