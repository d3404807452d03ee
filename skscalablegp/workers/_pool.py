"""The library's own pool of worker threads, each of which runs single-threaded operations.

When torch splits one operation over several threads, the operation ends with the slowest of them:
if another program occupies one core, every operation waits for it. Here each task runs in one
thread instead, and tasks wait for one another only at the end. Python threads are enough, because
torch releases the interpreter's lock while it computes. Results do not depend on the number of
workers: a single-threaded operation always adds in the same order, and results are returned in the
order of the tasks.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import copy_context
from functools import cache
from itertools import islice
from operator import length_hint
from typing import Any, TypeVar

import joblib
import torch

T = TypeVar("T")

# How many tasks per worker may be under way or finished before the caller takes their results.
# The limit bounds the memory that waiting results take.
_AHEAD = 4

_LOCK = threading.Lock()
_THIS_THREAD = threading.local()


def _forget() -> None:
    """Start afresh in a forked child, where the threads of the pool do not exist.

    The lock is replaced because a thread that no longer exists may hold it. OpenMP's threads do not
    exist in the child either, and torch would wait for them forever. A child therefore computes in
    one thread until it calls ``torch.set_num_threads``.
    """
    global _LOCK
    _LOCK = threading.Lock()
    _pool.cache_clear()
    _cores.cache_clear()
    torch.set_num_threads(1)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@cache
def _cores() -> int:
    """Cores that affinity, container quotas and LOKY_MAX_CPU_COUNT allow; read once."""
    return joblib.cpu_count()


def n_workers() -> int:
    """How many tasks of the calling thread may run at the same time.

    The smaller of two numbers: torch's number of threads in the calling thread (set by
    ``torch.set_num_threads``, ``OMP_NUM_THREADS`` or joblib's limits on its processes), and the
    number of cores that affinity, a container's quota and ``LOKY_MAX_CPU_COUNT`` allow. Inside a
    task the answer is 1, because nested tasks run in the worker that asks for them.
    """
    return min(getattr(_THIS_THREAD, "threads", None) or torch.get_num_threads(), _cores())


def run(tasks: Iterable[Callable[[], T]], device: torch.device | None = None) -> list[T]:
    """Run tasks in parallel and return their results in order. See `map_in_order`."""
    return list(map_in_order(lambda task: task(), tasks, device))


def map_in_order(
    function: Callable[[Any], T], items: Iterable[Any], device: torch.device | None = None
) -> Iterator[T]:
    """Like ``map(function, items)``, with several items at once on single-threaded workers.

    Parameters
    ----------
    function : callable
        Runs under the caller's gradient mode, inference mode and context variables. It may write
        only to memory that belongs to its item.
    items : iterable
        Taken by the caller, at most four per worker ahead of the results that it has taken. The
        work for an item should take at least a tenth of a millisecond, to be worth handing over,
        and less than a second, because an interrupt waits for the items under way.
    device : torch.device, optional
        Device of the tensors. The caller does all the work itself if this is not the CPU, if the
        caller is limited to one thread, or if the caller is itself a task.

    Yields
    ------
    result : object
        In the order of the items, whichever was ready first, so that sums are reproducible.

    Raises
    ------
    Exception
        The error of the first item that fails, raised in the caller after the results of all items
        before it.
    """
    alone = torch.get_num_threads() == n_workers() == 1
    if alone or (device is not None and device.type != "cpu"):
        yield from map(function, items)
        return
    yield from _Work(function, items).results()


class _Work:
    """One call of `map_in_order`: which items have been handed out, and who works on them."""

    def __init__(self, function: Callable[[Any], Any], items: Iterable[Any]):
        workers = n_workers()
        self._workers = min(workers, max(1, length_hint(items, workers)))
        self._function, self._items = function, iter(items)
        self._modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        self._todo: deque[tuple[Future, Any]] = deque()
        self._active, self._over = 0, False
        # Only the caller waits. A worker without an item leaves and is called again later.
        self._changed = threading.Condition()

    def results(self) -> Iterator[Any]:
        waiting: deque[Future] = deque()
        ahead, handed_out = _AHEAD * self._workers, self._handed_out()
        try:
            while True:
                if len(waiting) <= ahead // 2:
                    waiting.extend(islice(handed_out, ahead - len(waiting)))
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            # Hand out no further items, and wait for the current ones, which may write to results.
            with self._changed:
                self._over = True
                # An interrupt between handing over and counting leaves the count one too small.
                while self._active > 0:
                    self._changed.wait()

    def _handed_out(self) -> Iterator[Future]:
        """Hand out one item after the other; the last one may be the error of their iterator."""
        while True:
            future: Future = Future()
            try:
                item = next(self._items)
            except StopIteration:
                return
            except Exception as error:
                future.set_exception(error)
                yield future
                return
            with self._changed:
                self._todo.append((future, item))
                if self._active < self._workers and not self._over:
                    _pool().submit(copy_context().run, self._serve)
                    self._active += 1
            yield future

    def _serve(self) -> None:
        """Work on one item after the other, in a thread of the pool."""
        inference, grad = self._modes
        with torch.inference_mode(inference), torch.set_grad_enabled(grad):
            while True:
                with self._changed:
                    if self._over or not self._todo:
                        self._active -= 1
                        self._changed.notify()
                        return
                    future, item = self._todo.popleft()
                try:
                    future.set_result(self._function(item))
                except BaseException as error:
                    self._over = True
                    future.set_exception(error)
                    del future  # The error refers to this frame: a cycle would keep both alive.


@cache
def _pool() -> ThreadPoolExecutor:
    """The pool, which all calling threads share so that together they do not exceed the cores."""
    return ThreadPoolExecutor(_cores(), "skscalablegp", _begin_to_work)


def _begin_to_work() -> None:
    _THIS_THREAD.threads = 1
    _set_threads_here(1)


@contextmanager
def one_thread(wanted: bool = True) -> Iterator[None]:
    """Run the operations of the calling thread single-threaded: small ones gain nothing from more.

    Tasks still go to as many workers as before. The setting concerns the calling thread only, and
    threads that start meanwhile get the number that they would have had.

    Parameters
    ----------
    wanted : bool, default=True
        Whether to do anything at all.
    """
    before = torch.get_num_threads()
    if not wanted or before == 1:
        yield
        return
    _THIS_THREAD.threads = before
    try:
        with threads(1):
            yield
    finally:
        _THIS_THREAD.threads = None


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let the calling thread, and tasks that it hands over, use so many threads."""
    before = torch.get_num_threads()
    _set_threads_here(count)
    try:
        yield
    finally:
        _set_threads_here(before)


def _set_threads_here(count: int) -> None:
    """Set torch's number of threads for the calling thread only.

    ``torch.set_num_threads`` also changes the number that threads get which start later. A helper
    thread therefore reads that number first, and sets it again at once. Only a thread whose first
    call of torch falls in between gets the wrong number.
    """
    read, changed = threading.Event(), threading.Event()

    def restore() -> None:
        theirs = torch.get_num_threads()
        read.set()
        changed.wait()
        torch.set_num_threads(theirs)

    with _LOCK:
        helper = threading.Thread(target=restore)
        helper.start()
        try:
            read.wait()
            # The first call in a thread adopts the shared number; from then on it has its own.
            torch.get_num_threads()
            torch.set_num_threads(count)
        finally:
            changed.set()
            helper.join()
