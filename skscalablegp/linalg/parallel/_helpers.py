"""Work on the rows of one object that several processes share; each receives the object once."""

from __future__ import annotations

import io
import pickle
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any
from uuid import uuid4
from weakref import WeakValueDictionary

import joblib
import numpy as np
import torch
from torch import Tensor

from ...ranks import Ranks, alone, gathered, leading

try:
    # Kernels that are defined in a script can then be sent to joblib's processes.
    from cloudpickle import Pickler
except ImportError:
    from pickle import Pickler

# joblib gets so many parts of the work for each job, so that a slow process gets fewer.
_PARTS_A_JOB = 2
# A process keeps the last objects that it has received, with their arrays.
_MOST_KEPT = 3
# Arrays of fewer bytes travel within their object.
_LEAST_BYTES = 2**12


class Helpers:
    """Processes that do parts of the work on the rows of one object.

    Inside a shared call of `distribute` these are its ranks, otherwise joblib's jobs. Each of them
    receives the object once, and arrays that it has already as parts of another object not at all.

    Parameters
    ----------
    n_jobs : int or None, default=None
        Number of joblib's jobs.
    wanted : bool, default=True
        Whether other processes do anything at all.
    ranks : bool, default=True
        Whether ranks share the work. They share the products of fits, which are no work for this.
    least : int, default=64
        Work on fewer rows is not shared. 64 neighbourhoods take some 50 ms; to send them takes ten.
    """

    def __init__(
        self,
        n_jobs: int | None = None,
        wanted: bool = True,
        ranks: bool = True,
        least: int = 64,
    ):
        self._n_jobs, self._wanted, self._least = n_jobs, wanted, least
        self._by = _ranks if ranks else _nobody
        self._key = uuid4().hex
        self._packed: Packed | None = None
        # The ranks that have the object and their number for it, or the client of Dask whose
        # workers have it, and what keeps its arrays there.
        self._ranks: Ranks | None = None
        self._client: Any = None
        self._number, self._order = -1, [""]
        self._held: list[Any] = []
        self._before: Helpers | None = None

    def __reduce__(self) -> tuple:
        """In another process nobody helps."""
        return Helpers, (None, False)

    def follow(self, before: Helpers) -> None:
        """The processes keep what they have of an earlier object until they receive this one."""
        self._before = before

    def count(self) -> int:
        """How many processes share the work, this one included."""
        if not self._wanted:
            return 1
        ranks = self._by()
        return joblib.effective_n_jobs(self._n_jobs) if ranks is None else ranks.size

    def each(
        self, thing: Any, work: Callable[..., Any], rows: Sequence[Tensor], *args: Any
    ) -> list[Any]:
        """The answers ``work(thing, *own rows, *args)`` of all processes, in the order of the rows.

        Parameters
        ----------
        thing : object
            The same in all calls; it can be pickled.
        work : callable
            A function of a module or of a class.
        rows : sequence of Tensor
            Arguments of the same length on the CPU, of which each process gets its part.
        *args : object
            Small arguments that can be pickled.
        """
        n = len(rows[0])
        count = 1 if n < self._least else self.count()
        if count == 1:
            return [work(thing, *rows, *args)]
        ranks = self._by()
        if ranks is not None:
            return self._by_ranks(ranks, thing, work, rows, args)
        # A pickled slice would have all rows with it.
        parts = [[a[some].clone() for a in rows] for some in shares(n, _PARTS_A_JOB * count)]
        return self._by_jobs(thing, [(work, *part, *args) for part in parts])

    def _by_ranks(
        self,
        ranks: Ranks,
        thing: Any,
        work: Callable[..., Any],
        rows: Sequence[Tensor],
        args: tuple,
    ) -> list[Any]:
        if self._ranks is not ranks:
            packed = Packed.of(thing)
            held = {k: ranks.held(_as_tensor(a)) for k, a in packed.arrays.items()}
            numbers = {k: one.number for k, one in held.items()}
            self._number, self._held = ranks.number_for(self), list(held.values())
            ranks.together(_unpack, self._number, packed.data, packed.order, numbers)
            ranks.keep(self._number, thing)
            self._ranks, self._before = ranks, None
        found = ranks.together(_answer, self._number, work, args, tensors=rows)
        for answer in found:
            if isinstance(answer, _Failed):
                raise answer.error
        return found

    def _by_jobs(self, thing: Any, tasks: list[tuple]) -> list[Any]:
        # Arrays that processes of one machine share are copied where they are written to.
        settings: dict[str, Any] = {"batch_size": 1, "pre_dispatch": "all", "mmap_mode": "c"}
        parallel = joblib.Parallel(n_jobs=self._n_jobs, **settings)
        backend, _ = joblib.parallel.get_active_backend()
        if getattr(backend, "supports_sharedmem", False):
            return parallel(joblib.delayed(work)(thing, *rest) for work, *rest in tasks)
        if type(backend).__name__ == "DaskDistributedBackend":
            self._scatter(thing, backend.client)
            given = self._key, self._order, self._held
            return parallel(joblib.delayed(_answer_on_dask)(*given, *task) for task in tasks)
        found: dict[int, Any] = {}
        for sent in self._attempts(thing):
            missing = [k for k in range(len(tasks)) if k not in found]
            job = joblib.delayed(_answer_as_job)
            answers = parallel(job(self._key, sent, *tasks[k]) for k in missing)
            found |= {
                k: answer
                for k, answer in zip(missing, answers, strict=True)
                if not isinstance(answer, _Absent)
            }
            if len(found) == len(tasks):
                break
        return [found[k] for k in range(len(tasks))]

    def _scatter(self, thing: Any, client: Any) -> None:
        """Send the object to all workers of Dask.

        They would otherwise receive it with their tasks, which Dask gives to those that have it.
        """
        if self._client is client:
            return
        packed = Packed.of(thing)
        arrays = {"": np.frombuffer(packed.data, np.uint8), **packed.arrays}
        self._client, self._order, self._held = client, packed.order, []
        for digest, array in arrays.items():
            place = client.id, digest or self._key
            future = _SCATTERED.get(place)
            if future is None:
                future = client.scatter(array, broadcast=True, hash=False)
                _SCATTERED[place] = future
            self._held.append(future)
        self._before = None

    def _attempts(self, thing: Any) -> Any:
        """What accompanies a task, until the process that gets it has the object."""
        if self._packed is not None:
            yield None
        else:
            self._packed = Packed.of(thing)
        new = {k: a for k, a in self._packed.arrays.items() if k not in _SENT}
        _SENT.extend(new)
        yield Packed(self._packed.data, self._packed.order, new)
        yield self._packed


def shares(n: int, count: int) -> list[slice]:
    """Up to `count` consecutive parts of n rows whose sizes differ by one at most."""
    ends = np.linspace(0, n, min(n, count) + 1).astype(int).tolist()
    return [slice(a, b) for a, b in zip(ends, ends[1:], strict=False)]


def _ranks() -> Ranks | None:
    ranks = leading()
    return None if ranks is None or ranks.size == 1 or ranks.rows == "own" else ranks


def _nobody() -> None:
    return None


# ---------------------------------------------------------------- objects that travel


@dataclass(frozen=True)
class Packed:
    """A pickled object, and apart from it the arrays and tensors in it.

    Attributes
    ----------
    data : bytes
    order : list of str
        The digests of the arrays in the order in which the object has them.
    arrays : dict of ndarray
        Bytes of arrays by digest: all of them, or those that are new to the receiver.
    """

    data: bytes
    order: list[str]
    arrays: dict[str, np.ndarray]

    @classmethod
    def of(cls, thing: Any) -> Packed:
        """Pack an object."""
        into, buffers = io.BytesIO(), []

        def keep(buffer: pickle.PickleBuffer) -> bool:
            raw = buffer.raw()
            if raw.nbytes < _LEAST_BYTES:
                return True
            buffers.append(np.frombuffer(raw, np.uint8))
            return False

        _Pickler(into, protocol=5, buffer_callback=keep).dump(thing)
        order = [blake2b(a.data, digest_size=16).hexdigest() for a in buffers]
        return cls(into.getvalue(), order, dict(zip(order, buffers, strict=True)))

    def __sizeof__(self) -> int:
        """Dask sends large arguments to its workers before the tasks, once each."""
        return len(self.data) + sum(a.nbytes for a in self.arrays.values())

    def opened(self) -> Any:
        """The object."""
        return pickle.loads(self.data, buffers=[self.arrays[k] for k in self.order])


class _Pickler(Pickler):
    """Tensors are pickled as arrays."""

    def reducer_override(self, obj: Any) -> Any:
        if type(obj) is Tensor and obj.is_cpu and not obj.requires_grad:
            return _as_tensor, (obj.contiguous().numpy(),)
        otherwise = getattr(super(), "reducer_override", None)
        return NotImplemented if otherwise is None else otherwise(obj)


def _as_tensor(array: np.ndarray) -> Tensor:
    return torch.from_numpy(array if array.flags.writeable else array.copy())


# ---------------------------------------------------------------- in joblib's processes

# What this process has sent lately, by digest; what workers of Dask have; and the objects that
# this process has received, by key.
_SENT: deque[str] = deque(maxlen=256)
_SCATTERED: WeakValueDictionary[tuple[str, str], Any] = WeakValueDictionary()
_KEPT: OrderedDict[str, tuple[Any, dict[str, np.ndarray]]] = OrderedDict()
_LOCK = threading.Lock()


class _Absent:
    """The answer of a process that does not have the object."""


def _answer_as_job(key: str, sent: Packed | None, work: Callable[..., Any], *args: Any) -> Any:
    thing = _received(key, sent)
    return thing if isinstance(thing, _Absent) else work(thing, *args)


def _answer_on_dask(
    key: str, order: list[str], arrays: list[np.ndarray], work: Callable[..., Any], *args: Any
) -> Any:
    data, *rest = arrays
    known = dict(zip(dict.fromkeys(order), rest, strict=True))
    return _answer_as_job(key, Packed(data.tobytes(), order, known), work, *args)


def _received(key: str, sent: Packed | None) -> Any:
    """The object with this key, which is made if all of its arrays are here."""
    with _LOCK:
        if key in _KEPT:
            _KEPT.move_to_end(key)
            return _KEPT[key][0]
        if sent is None:
            return _Absent()
        known = {k: a for _, arrays in _KEPT.values() for k, a in arrays.items()} | sent.arrays
        if not all(k in known for k in sent.order):
            return _Absent()
        arrays = {k: known[k] for k in sent.order}
        thing = Packed(sent.data, sent.order, arrays).opened()
        _KEPT[key] = thing, arrays
        while len(_KEPT) > _MOST_KEPT:
            _KEPT.popitem(last=False)
        return thing


# ---------------------------------------------------------------- on all ranks


@dataclass(frozen=True)
class _Failed:
    """The answer of a rank whose work has failed."""

    error: Exception


def _unpack(
    ranks: Ranks, number: int, data: bytes, order: list[str], numbers: dict[str, int]
) -> None:
    if ranks.rank:
        arrays = {k: ranks.kept(numbers[k]).numpy() for k in order}
        ranks.keep(number, Packed(data, order, arrays).opened())


def _answer(
    ranks: Ranks, number: int, work: Callable[..., Any], args: tuple, *rows: Tensor
) -> list[Any]:
    own = [*shares(len(rows[0]), ranks.size), slice(0, 0)][min(ranks.rank, len(rows[0]))]
    answer: Any
    with alone():
        try:
            answer = work(ranks.kept(number), *(a[own] for a in rows), *args)
        except Exception as error:
            # All ranks go on; rank 0 raises it.
            answer = _Failed(error)
    return gathered(ranks, answer)
