"""The library's own pool of worker threads, each of which runs single-threaded operations.

When torch splits one operation over several threads, the operation ends with the slowest of them:
if another program occupies one core, every operation waits for it. Here each task runs in one
thread instead, and tasks wait for one another only at the end. Python threads are enough, because
torch releases the interpreter's lock while it computes. Results do not depend on the number of
workers: a single-threaded operation always adds in the same order, and results are returned in the
order of the tasks.
"""

from __future__ import annotations

import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import copy_context
from functools import cache
from itertools import islice
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


# Cores that affinity, container quotas and LOKY_MAX_CPU_COUNT allow; read once.
_cores = cache(lambda: joblib.cpu_count())


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
    count = n_workers()
    if count == torch.get_num_threads() == 1 or (device is not None and device.type != "cpu"):
        yield from map(function, items)
        return
    inference, grad = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
    first_failed = math.inf

    def done(number: int, item: Any) -> Any:
        nonlocal first_failed
        if number > first_failed:
            raise CancelledError
        try:
            with torch.inference_mode(inference), torch.set_grad_enabled(grad):
                return function(item)
        except BaseException:
            first_failed = min(first_failed, number)
            raise

    pool, ahead, waiting = _pool(count), _AHEAD * count, deque[Future]()
    handed_out = (pool.submit(copy_context().run, done, *item) for item in enumerate(items))
    try:
        while True:
            if len(waiting) <= ahead // 2:
                try:
                    waiting.extend(islice(handed_out, ahead - len(waiting)))
                except Exception:
                    # The error of the items comes after the results of those before it.
                    yield from (future.result() for future in waiting)
                    raise
            if not waiting:
                return
            # An interrupt during this wait leaves the future among those that wait.
            waiting[0].exception()
            yield waiting.popleft().result()
    finally:
        # Hand out no further items, and wait for the current ones, which may write to results.
        first_failed = -1
        wait([future for future in waiting if not future.cancel()])


@cache
def _pool(count: int) -> ThreadPoolExecutor:
    """The pool of so many threads, which callers share: together they do not exceed them."""
    return ThreadPoolExecutor(count, "skscalablegp", _begin_to_work)


def _begin_to_work() -> None:
    _THIS_THREAD.threads = 1
    _set_threads_here(1)


def one_thread(wanted: bool = True) -> AbstractContextManager[None]:
    """Run the operations of the calling thread single-threaded: small ones gain nothing from more.

    Tasks still go to as many workers as before. The setting concerns the calling thread only, and
    threads that start meanwhile get the number that they would have had.

    Parameters
    ----------
    wanted : bool, default=True
        Whether to do anything at all.
    """
    before = torch.get_num_threads()
    return threads(1, before) if wanted and before > 1 else nullcontext()


@contextmanager
def threads(count: int, tasks: int | None = None) -> Iterator[None]:
    """Let the calling thread use so many threads, and as many tasks that it hands over, or other.

    Tasks have no further threads, so that this is not for them.
    """
    before = torch.get_num_threads()
    _THIS_THREAD.threads = tasks
    _set_threads_here(count)
    try:
        yield
    finally:
        _set_threads_here(before)
        _THIS_THREAD.threads = None


def _set_threads_here(count: int) -> None:
    """Set torch's number of threads for the calling thread only.

    ``torch.set_num_threads`` also changes the number that threads get which start later. A helper
    thread therefore reads that number first, and sets it again at once. Only a thread whose first
    call of torch falls in between gets the wrong number.
    """
    with _LOCK, ThreadPoolExecutor(1) as helper:
        theirs = helper.submit(torch.get_num_threads).result()
        try:
            # The first call in a thread adopts the shared number; from then on it has its own.
            torch.get_num_threads()
            torch.set_num_threads(count)
        finally:
            helper.submit(torch.set_num_threads, theirs).result()
