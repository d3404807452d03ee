"""Work on the rows of an object: in this process, by joblib's jobs, on Dask or at ranks."""

from __future__ import annotations

import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate
from typing import Any
from uuid import uuid4
from weakref import WeakKeyDictionary, WeakValueDictionary

import joblib
import numpy as np
import torch
from torch import Tensor

from ._pickled import pickled, unpickled
from ._ranks import Ranks, gathered, leading, led

# The tensors that a function of a module returns for some rows.
Sums = tuple[Tensor, ...]

# joblib gets so many parts of the work for each job, so that a slow process gets fewer.
_PARTS_A_JOB = 2
# A process keeps the last objects that it has received, with their arrays.
_MOST_KEPT = 3


class Workers:
    """An object of some rows, and who computes with it: here, this process.

    Functions of modules or classes compute, so that other processes can run them as well.

    Attributes
    ----------
    own : object
        What this process has of it.
    """

    def __init__(self, own: Any):
        self.own = own

    def put(self, make: Callable[..., Any], *args: Any) -> Workers:
        """Another object of the same rows, ``make(own, *args)``."""
        return Workers(make(self.own, *args))

    def call(self, work: Callable[..., Any], *args: Any, along: Sequence[Tensor] = ()) -> list[Any]:
        """The answers ``work(own, *along, *args)``, one of each worker, in their order.

        The tensors of `along`, on the CPU, have an entry for each row, of which each worker gets
        its part.
        """
        return [work(self.own, *along, *args)]

    def sum(
        self, work: Callable[..., Sums], *args: Any, rows: Any = None, along: Sequence[Tensor] = ()
    ) -> Sums:
        """``work(own, *args)``, sums over all rows.

        With `rows` the sums are those of some rows by number, ``work(own, rows, *along, *args)``.
        The tensors of `along` have an entry for each of them.
        """
        numbers = () if rows is None else (rows,)
        return work(self.own, *numbers, *along, *args)


def workers(
    thing: Any,
    n: int,
    n_jobs: int | None = None,
    *,
    least: int = 64,
    ranks: bool = True,
    device: torch.device | None = None,
) -> Workers:
    """Who shares the work on n rows of an object, which other processes receive once.

    Inside a shared call of `distribute` these are its ranks, otherwise joblib's jobs.

    Parameters
    ----------
    thing : object
        Does not change any more, and can be pickled. Arrays that a process has already as parts of
        another object are not sent to it.
    n : int
    n_jobs : int or None, default=None
        Number of joblib's jobs.
    least : int, default=64
        Work on fewer rows is not shared. 64 neighbourhoods take some 50 ms; to send them takes ten.
    ranks : bool, default=True
        Whether ranks share the work. They share the products of fits, which are no work for this.
    device : torch.device, optional
        This process does all the work itself if this is not the CPU.
    """
    if n < least or (device is not None and device.type != "cpu"):
        return Workers(thing)
    leads = leading() if ranks else None
    if leads is not None and leads.size > 1 and leads.rows != "own":
        return RankWorkers.of(leads, thing)
    count = joblib.effective_n_jobs(n_jobs)
    return Workers(thing) if count == 1 else JobWorkers(thing, n_jobs, count)


def shares(n: int, count: int) -> list[slice]:
    """Up to `count` consecutive parts of n rows whose sizes differ by one at most."""
    ends = np.linspace(0, n, min(n, count) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


# ---------------------------------------------------------------- objects that travel

# What other processes have of an object for as long as it lives: who has it, under which name, and
# what keeps its arrays there. Those of the last objects stay, because the next one often has them
# too.
_PLACED: WeakKeyDictionary[Any, tuple[Any, Any, list]] = WeakKeyDictionary()
_LAST: deque[tuple[Any, Any, list]] = deque(maxlen=_MOST_KEPT)


def _placed(thing: Any, by: Any, place: Callable[[Any, Any], tuple[Any, list]]) -> tuple[Any, list]:
    """The name and the arrays that ``place(thing, by)`` returns, once for each object."""
    found = _PLACED.get(thing)
    if found is None or found[0] is not by:
        found = _PLACED[thing] = (by, *place(thing, by))
        _LAST.extend([found] if found[2] else [])
    return found[1:]


# ---------------------------------------------------------------- joblib and Dask


class JobWorkers(Workers):
    """Jobs of joblib, to which each call hands out parts of its rows."""

    def __init__(self, own: Any, n_jobs: int | None, count: int):
        super().__init__(own)
        self._n_jobs, self._count = n_jobs, count

    def call(self, work, *args, along=()):
        backend, _ = joblib.parallel.get_active_backend()
        place, by = _PLACES.get(type(backend).__name__), getattr(backend, "client", None)
        do, *given = (work, self.own)
        if place is not None:
            do, *given = (_answer, *_placed(self.own, by, place), work)
        # Arrays that processes of one machine share are copied where they are written to.
        parallel = joblib.Parallel(
            n_jobs=self._n_jobs, batch_size=1, pre_dispatch="all", mmap_mode="c"
        )
        # A pickled slice would have all rows with it.
        parts = (
            [rows[some].clone() for rows in along]
            for some in shares(len(along[0]), _PARTS_A_JOB * self._count)
        )
        return parallel(joblib.delayed(do)(*given, *part, *args) for part in parts)


def _in_file(thing: Any, _: None) -> tuple[str, list]:
    """The name of a file, whose arrays the processes of this machine share.

    joblib would write arrays for each call anew, and send tensors with each task.
    """
    folder = os.environ.get("JOBLIB_TEMP_FOLDER")
    with tempfile.NamedTemporaryFile(prefix="skscalablegp-", dir=folder, delete=False) as file:
        data, tensors = pickled(thing, anywhere=True)
        joblib.dump([data, *(tensor.numpy() for tensor in tensors)], file)
    weakref.finalize(thing, _remove, file.name, os.getpid())
    return file.name, []


def _remove(path: str, process: int) -> None:
    if os.getpid() == process:
        with suppress(OSError):
            os.remove(path)


# What workers of Dask have, by client and hash. With hashes of its own, Dask sends the same data
# again, and cancels data that comes back soon after it was released.
_SCATTERED: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()


def _on_dask(thing: Any, client: Any) -> tuple[str, list]:
    """A new name, and what all workers of Dask have; tasks would bring it to some, one by one."""
    data, tensors = pickled(thing, anywhere=True)
    futures = []
    for part in (data, *(tensor.numpy() for tensor in tensors)):
        place = client.id, joblib.hash(part)
        future = _SCATTERED.get(place)
        if future is None:
            _SCATTERED[place] = future = client.scatter(part, broadcast=True, hash=False)
        futures.append(future)
    return uuid4().hex, futures


# Where the processes of a backend find an object; other backends use the threads of this process.
_PLACES: dict[str, Callable[[Any, Any], tuple[str, list]]] = {
    "DaskDistributedBackend": _on_dask,
    "LokyBackend": _in_file,
    "MultiprocessingBackend": _in_file,
}


@dataclass(frozen=True)
class _Sent:
    """An object that a process has received: a file, or a name and arrays."""

    name: str
    arrays: tuple[np.ndarray, ...] = field(compare=False)


def _answer(name: str, arrays: list[np.ndarray], work: Callable[..., Any], *given: Any) -> Any:
    return work(_received(_Sent(name, tuple(arrays))), *given)


@lru_cache(_MOST_KEPT)
def _received(sent: _Sent) -> Any:
    data, *arrays = sent.arrays or joblib.load(sent.name, mmap_mode="c")
    parts = (np.require(array, None, "W") for array in arrays)
    return unpickled(data, lambda *_: torch.from_numpy(next(parts)))


# ---------------------------------------------------------------- ranks


class RankWorkers(Workers):
    """An object at each rank: the same, or one of the rows that this rank alone has.

    Answers and sums travel to rank 0, and rows only where they are asked for by number. Rows of
    rank 0 have the first numbers. `own` is the object of rank 0.

    Attributes
    ----------
    ranks : Ranks
    sizes : list of int
        The numbers of rows of the ranks, where these have different ones.
    """

    def __init__(self, ranks: Ranks, own: Any = None, number: int | None = None):
        super().__init__(own)
        self.ranks, self.sizes = ranks, list[int]()
        self._number = ranks.number_for(self) if number is None else number

    @classmethod
    def of(cls, ranks: Ranks, own: Any) -> RankWorkers:
        """A copy of `own` at each rank, once for each object."""
        return cls(ranks, own, _placed(own, ranks, lambda own, ranks: ranks.place(own))[0])

    @classmethod
    def read(cls, ranks: Ranks, make: Callable[..., Any], *args: Any) -> RankWorkers:
        """Objects made by ``make(call, *args)`` from the arguments of the call under way.

        Raises
        ------
        ValueError
            If one rank refuses its arguments, which the message names.
        """
        read = cls(ranks)
        read.own, found = ranks.together(_read, read._number, make, args)
        for rank, size in enumerate(found):
            if isinstance(size, str):
                raise ValueError(f"The rows of rank {rank}: {size}")
        read.sizes = found
        return read

    def put(self, make, *args, rows: Any = None) -> RankWorkers:
        """As in the base class; of some rows by ascending number, ``make(own, rows, *args)``."""
        made = RankWorkers(self.ranks)
        end = partial(_kept, number=made._number)
        made.own, made.sizes = self._run(end, make, args, rows), self.sizes
        if rows is not None:
            made.sizes = np.diff(np.searchsorted(rows, self._ends)).tolist()
        return made

    def call(self, work, *args, rows=None, along=()):
        """As in the base class; of some rows by number, ``work(own, rows, *along, *args)``."""
        found = self._run(_gathered, work, args, rows, along)
        for answer in found:
            if isinstance(answer, Exception):
                raise answer
        return found

    def sum(self, work, *args, rows=None, along=()):
        return self._run(_summed, work, args, rows, along)

    def gather(
        self,
        work: Callable[..., Sequence[np.ndarray]],
        rows: Tensor | np.ndarray,
        *args: Any,
    ) -> tuple[np.ndarray, ...]:
        """The arrays ``work(own, rows, *args)`` with an entry for each of some rows.

        The rows are given by number, and `work` gets numbers within its object, of which there may
        be none.
        """
        found = self.call(work, *args, rows=rows)
        of = np.searchsorted(self._ends, torch.as_tensor(rows).cpu().numpy(), side="right")
        order = np.argsort(np.argsort(of, kind="stable"))
        return tuple(np.concatenate(arrays)[order] for arrays in zip(*found, strict=True))

    @property
    def _ends(self) -> list[int]:
        return [0, *accumulate(self.sizes)]

    def _run(self, end, work, args, rows=None, along=()) -> Any:
        self.ranks.objects[self._number] = self
        some = None if rows is None else (torch.as_tensor(rows).cpu(), self._ends)
        return self.ranks.together(_run, self._number, end, (work, args), some, along)


# ---------------------------------------------------------------- on all ranks


def _read(ranks: Ranks, number: int, make: Callable, args: tuple) -> tuple[Any, list[int | str]]:
    """What this rank has read, and at rank 0 for each rank the number of its rows or an error."""
    made: Any = None
    said: int | str
    try:
        made = make(ranks.arguments, *args)
        said = len(made)
    except (ValueError, TypeError) as error:
        # The rank waits for the error of rank 0, which is that of all.
        said = str(error)
    return ranks.keep(number, made), gathered(ranks, said)


def _run(ranks: Ranks, number: int, end: Any, task: tuple, some: Any, along: Any) -> Any:
    """``end(ranks, answer)`` for the function that answers for the rows of this rank."""
    (work, args), kept, numbers, own = task, ranks.objects[number], [], slice(None)
    if some is not None:
        wanted, ends = some
        begin, stop = ends[ranks.rank : ranks.rank + 2]
        own = (wanted >= begin) & (wanted < stop)
        numbers = [wanted[own].numpy() - begin]
    elif along:
        n = len(along[0])
        own = [*shares(n, ranks.size), slice(0, 0)][min(ranks.rank, n)]
    given = (*numbers, *(rows[own] for rows in along), *args)
    return end(ranks, lambda: work(kept if ranks.rank else kept.own, *given))


def _kept(ranks: Ranks, make: Callable[[], Any], number: int) -> Any:
    return ranks.keep(number, make())


def _summed(ranks: Ranks, answer: Callable[[], Sums]) -> Sums:
    found = answer()
    flat = ranks.total(torch.cat([part.reshape(-1) for part in found]))
    pieces = flat.split([part.numel() for part in found])
    return tuple(piece.view_as(part) for piece, part in zip(pieces, found, strict=True))


def _gathered(ranks: Ranks, answer: Callable[[], Any]) -> list[Any]:
    found: Any
    with led(None):
        try:
            found = answer()
        except Exception as error:
            # All ranks go on; rank 0 raises it.
            found = error
    return gathered(ranks, found)
