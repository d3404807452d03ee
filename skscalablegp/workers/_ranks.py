"""Tasks that rank 0 gives to all ranks, and methods of estimators that run in this way."""

from __future__ import annotations

import itertools
import pickle
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from copy import copy
from typing import Any, TypeVar

import joblib
import numpy as np
import torch
from torch import Tensor

from .._calls import Call, called
from .._clock import watched
from ._fingerprint import check_same, fingerprint
from ._group import Group
from ._life import Life, RankError
from ._pickled import pickled, unpickled

# The methods whose arguments are rows of a table.
_FITS = ("fit", "partial_fit")

T = TypeVar("T")

# The ranks of the shared call under way: at rank 0 those that wait for tasks, at another one those
# whose tasks it serves.
_PRESENT: ContextVar[Ranks | None] = ContextVar("ranks of a shared call", default=None)


def leading() -> Ranks | None:
    """The ranks that wait for tasks of this process; None outside a shared call and on others."""
    ranks = _PRESENT.get()
    return None if ranks is None or ranks.rank else ranks


def _served() -> Ranks | None:
    return _PRESENT.get()


@contextmanager
def led(ranks: Ranks | None) -> Iterator[None]:
    """A shared call of the ranks inside the context; if None, no tasks are given to others."""
    token = _PRESENT.set(ranks)
    try:
        yield
    finally:
        _PRESENT.reset(token)


class Held:
    """A tensor that the other ranks keep for as long as this object lives at rank 0."""

    number: int


class Ranks(Group):
    """The processes that share fits and predictions.

    Rank 0 runs the methods of estimators. During a call the others wait for its tasks, and at the
    end they get what has changed in the estimator, and the result. All decisions are those of rank
    0, so that ranks on unequal machines cannot disagree.

    Attributes
    ----------
    rank, size : int
        The number of this process, from 0, and the number of processes.
    rows : {"replicated", "own"}
        Whether each rank passes all rows to a fit, or different ones.
    objects : mapping of int to object
        What this rank keeps of objects of rank 0, by number.
    tasks : int
        How many tasks rank 0 has given to all ranks.
    bytes_sent : int
        What this rank has sent so far. A broadcast counts once for each other rank, at rank 0; a
        sum counts once at each other rank.
    """

    def __init__(self, life: Life, rows: str, host: str = ""):
        super().__init__(life, host)
        self.rows = rows
        # The arguments that this rank has passed to the fit under way.
        self.arguments: Call | None = None
        # The others keep what rank 0 has; there it ends with its last use.
        self.objects: Any = {} if self.rank else weakref.WeakValueDictionary()
        self._held: weakref.WeakValueDictionary[str, Held] = weakref.WeakValueDictionary()
        self._numbers = itertools.count()
        self._dropped: list[int] = []
        self._lock = threading.RLock()
        self.tasks = 0

    def __reduce__(self) -> tuple:
        """At another rank, the ranks as it has them."""
        return _served, ()

    # ------------------------------------------------------------------ methods of estimators

    def call(self, method: Callable, estimator: Any, args: tuple, kwargs: dict) -> Any:
        """Run a method of an estimator at rank 0 with the help of the others."""
        own = self.rows == "own"
        # No call is made after a rank was lost.
        self.life.check()
        with called(None):
            if own and method.__name__ not in _FITS:
                # Predictions of a rank's own rows concern no other rank.
                return method(estimator, *args, **kwargs)
            call = Call(method, estimator, args, kwargs)
            check_same(self.life.gather("call", fingerprint(call, own)))

            def run() -> tuple[dict[str, Any], list]:
                before = dict(vars(estimator))
                result = method(estimator, *args, **kwargs)
                return _changes(estimator, before), [] if result is estimator else [result]

            # A fit that fails leaves the estimators of all ranks as they were.
            self.arguments = call._replace(estimator=copy(estimator)) if self.rank else call
            try:
                changes, results = self.lead(run)
            finally:
                self.arguments = None
            if self.rank:
                _apply(estimator, changes)
            return results[0] if results else estimator

    def lead(self, work: Callable[[], T]) -> T:
        """Run a function at rank 0, for whose fits and predictions the others compute.

        All ranks return its result, or raise its error.
        """
        with called(None):
            if self.rank:
                with led(self), interrupts_wait(dropped=1):
                    error, result = self._serve()
                if error is not None:
                    raise error
                return result
            try:
                with led(self):
                    result = work()
            except BaseException as error:
                if not isinstance(error, RankError):
                    self.together(_ended, _portable(error), None)
                raise
            self.together(_ended, None, result)
            return result

    # ------------------------------------------------------------------ tasks

    def together(self, work: Callable, *args: Any) -> Any:
        """Run ``work(ranks, *args)`` on all ranks; returns the result of rank 0.

        Parameters
        ----------
        work : callable
            A function of a module, the same on all ranks.
        *args : object
            They can be pickled. The other ranks receive tensors on devices of the same type.
        """
        self.tasks += 1
        # Neither does a time budget end a step that all ranks take.
        with self._lock, interrupts_wait(), watched(None):
            self.life.check()
            dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
            data, tensors = pickled((work, args, dropped))
            self.broadcast(torch.tensor([len(data)]))
            for tensor in (torch.frombuffer(bytearray(data), dtype=torch.uint8), *tensors):
                self.broadcast(tensor)
            return self._own_part(work, args)

    def keep(self, number: int, thing: Any) -> Any:
        """Keep an object of a number, unless this is rank 0; returns it."""
        if self.rank:
            self.objects[number] = thing
        return thing

    def number_for(self, owner: Any) -> int:
        """A new number; the other ranks drop its object when `owner` ends at rank 0."""
        number = next(self._numbers)
        weakref.finalize(owner, self._dropped.append, number).atexit = False
        return number

    def place(self, thing: Any) -> tuple[int, list[Held]]:
        """The number under which the others have an object while it lives here, and its tensors."""
        data, tensors = pickled(thing)
        held, number = [self.held(tensor) for tensor in tensors], self.number_for(thing)
        self.together(_place, number, data, [tensor.number for tensor in held])
        return number, held

    def held(self, tensor: Tensor) -> Held:
        """A tensor that the others keep; one with the same entries is not sent again."""
        digest = f"{joblib.hash(tensor.detach().cpu().numpy())} {tensor.device.type}"
        found = self._held.get(digest)
        if found is None:
            self._held[digest] = found = Held()
            found.number = self.number_for(found)
            self.together(Ranks.keep, found.number, tensor)
        return found

    def _own_part(self, work: Callable, args: tuple) -> Any:
        try:
            return work(self, *args)
        except RankError:
            raise
        except BaseException as error:
            kind = type(error).__name__
            said = self.life.fail(f"rank {self.rank} failed with {kind}: {error}")
            raise RankError(said) from error

    def _serve(self) -> tuple:
        """Serve the tasks of a call of rank 0; returns its error and its result."""
        while True:
            (size,) = self._received((1,), torch.int64).tolist()
            data = self._received((size,), torch.uint8).numpy()
            work, args, dropped = unpickled(data, self._received)
            for number in dropped:
                self.objects.pop(number, None)
            if work is _ended:
                return args
            self._own_part(work, args)

    def _received(self, shape: tuple[int, ...], dtype: torch.dtype, kind: str = "cpu") -> Tensor:
        return self.broadcast(torch.empty(shape, dtype=dtype, device=self.device(kind)))


def gathered(ranks: Ranks, answer: Any) -> list[Any]:
    """The answers of all ranks, at rank 0; an empty list at the others."""
    data = torch.frombuffer(bytearray(pickle.dumps(answer)), dtype=torch.uint8)
    sizes = list(map(int, ranks.life.gather("sizes", str(len(data)))))
    padded = torch.nn.functional.pad(data, (0, max(sizes) - len(data)))
    parts = zip(ranks.gather(padded), sizes, strict=False)
    return [pickle.loads(part[:size].numpy().tobytes()) for part, size in parts]


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


def _ended(ranks: Ranks, error: BaseException | None, result: Any) -> None:
    """Mark the end of a call of rank 0: its error, or its result, which the others return."""


def _place(ranks: Ranks, number: int, data: bytes, tensors: list[int]) -> None:
    if ranks.rank:
        held = (ranks.objects[tensor] for tensor in tensors)
        ranks.keep(number, unpickled(data, lambda *_: next(held)))


def _changes(estimator: Any, before: dict[str, Any]) -> dict[str, Any]:
    """The attributes that a call has set and removed, and the state of a random generator."""
    parameters = estimator.get_params(deep=False)
    after = {k: v for k, v in vars(estimator).items() if k not in parameters}
    changed = {k: v for k, v in after.items() if k not in before or before[k] is not v}
    removed = [k for k in before if k not in after and k not in parameters]
    state = parameters.get("random_state")
    draws = state.get_state() if isinstance(state, np.random.RandomState) else None
    return {"changed": changed, "removed": removed, "draws": draws}


def _apply(estimator: Any, changes: dict[str, Any]) -> None:
    for name in changes["removed"]:
        vars(estimator).pop(name, None)
    if changes["changed"]:
        vars(estimator).update(changes["changed"])
        estimator._remember(None)
    if changes["draws"] is not None:
        estimator.random_state.set_state(changes["draws"])


def _portable(error: BaseException) -> BaseException:
    """The error, or its text if it cannot be sent."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__} at rank 0: {error}")
    return error
