"""What a fit has computed so far, from which an equal fit continues after this one was killed.

Training is deterministic but for its clock: the same data, parameters and seed lead to the same
calls of both drivers. A fit that is started again makes all of these calls, and each takes from
the journal what the earlier fit has recorded. An optimiser gets the recorded values and gradients
and continues as if they had just been computed; a stepper gets its recorded state.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from torch import Generator

from ..._clock import ahead, now
from ..._end import End
from ...linalg.solvers import SolveSummary
from ...storage import ModelFileError
from ._monitor import Evaluated
from ._moving import captured, restored

# Seconds between two writes, and between those at the ends of stages. Writes take at most about
# this share of the time.
_EVERY, _AT_ENDS, _SHARE = 10.0, 1.0, 0.05
# Largest difference of log hyperparameters that rounding explains, for example on other threads.
_ROUNDING = 1e-8

_PRESENT: ContextVar[tuple[Journal, str] | None] = ContextVar("journal of the fit", default=None)


class Journal:
    """The records of a fit and of the fits inside it.

    Parameters
    ----------
    found : dict of str to dict
        The records of an earlier fit; empty for a new one.
    seed : int
        Seed of the fits whose `random_state` is None.
    write : callable
        Writes a dictionary of records.
    """

    def __init__(self, found: dict[str, Any], seed: int, write: Callable[[dict[str, Any]], None]):
        self._packed, self._write = found, write
        self._seeds = np.random.RandomState(seed)
        self._open: dict[str, Record] = {}
        self._counts: Counter[str] = Counter()
        self._begun = self._written = now()
        self._skipped = self._cost = 0.0
        self._news = False

    @contextmanager
    def kept(self, name: str) -> Iterator[None]:
        """Drivers inside the context keep records here, under the name of their fit."""
        token = _PRESENT.set((self, name))
        try:
            with ahead(lambda: self._skipped):
                yield
        finally:
            _PRESENT.reset(token)

    @contextmanager
    def inside(self, name: str) -> Iterator[None]:
        """The same for a fit inside the present one."""
        _, outer = present() or (self, "")
        token = _PRESENT.set((self, f"{outer}/{name}"))
        try:
            yield
        finally:
            _PRESENT.reset(token)

    def random_state(self) -> np.random.RandomState:
        """Random numbers of the next fit that has no seed."""
        return np.random.RandomState(self._seeds.randint(2**31 - 1))

    @property
    def seconds(self) -> float:
        """Seconds since the fit began, with those of the earlier fit up to the last record read."""
        return now() - self._begun

    def skip_to(self, seconds: float) -> None:
        """Set the clock of the fit forward to that of a record."""
        self._skipped += max(0.0, seconds - self.seconds)

    def open(self, name: str, record: Record) -> dict[str, Any] | None:
        """Keep the record of the next call with this name; returns what the earlier fit has.

        The record says itself when it changes.
        """
        self._counts[name] += 1
        key = f"{name}/{self._counts[name]}"
        self._open[key] = record
        return self._packed.pop(key, None)

    # ------------------------------------------------------------------ writing

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return now() - self._written > max(_EVERY, self._cost / _SHARE)

    def changed(self) -> None:
        """Note that a record has changed, and write if it is time."""
        self._news = True
        if self.due:
            self.write()

    def ended(self) -> None:
        """Write at the end of a stage, unless that was done just now."""
        if now() - self._written > max(_AT_ENDS, self._cost / _SHARE):
            self.write()

    def write(self) -> None:
        """Write all records, if there is something new."""
        if not self._news:
            return
        begun = now()
        self._news = False
        packed = {key: record.packed() for key, record in self._open.items()}
        # Records that this fit has not reached yet stay in the file.
        self._write(self._packed | {key: record for key, record in packed.items() if record})
        self._written = now()
        self._cost = self._written - begun


@contextmanager
def reading() -> Iterator[None]:
    """Errors inside the context are those of a record with another form than this fit has."""
    try:
        yield
    except ModelFileError:
        raise
    except (AttributeError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise ModelFileError(
            f"a record has another form than this fit: {type(error).__name__}: {error}"
        ) from error


def present() -> tuple[Journal, str] | None:
    """The journal of the fit under way and the name of the fit inside it; None without one."""
    return _PRESENT.get()


class Record(ABC):
    """What one call of a driver has computed.

    Parameters
    ----------
    name : str
        Of the call: its stage and its settings.
    """

    def __init__(self, name: str):
        self._journal: Journal | None
        self._journal, fit = present() or (None, "")
        self.found: dict[str, Any] | None = None
        if self._journal is not None:
            self.found = self._journal.open(f"{fit}/{name}", self)

    @abstractmethod
    def packed(self) -> dict[str, Any]:
        """The record as numbers, text, containers and arrays; empty if there is nothing."""

    @property
    def kept(self) -> bool:
        """Whether there is a journal to keep the record."""
        return self._journal is not None

    @property
    def due(self) -> bool:
        """Whether the journal is about to be written."""
        return self._journal is not None and self._journal.due

    @property
    def seconds(self) -> float:
        return 0.0 if self._journal is None else self._journal.seconds

    def skip_to(self, seconds: float) -> None:
        """Set the clock of the fit forward to the time of the record."""
        if self._journal is not None:
            self._journal.skip_to(seconds)

    def changed(self) -> None:
        """Say that there is something new."""
        if self._journal is not None:
            self._journal.changed()

    def ended(self) -> None:
        """Say that the call has ended."""
        if self._journal is not None:
            self._journal.ended()


# Numbers of an evaluation in addition to its value and gradient.
_NUMBERS = ("value", "residual", "probe_residual", "epochs", "seconds", "failed")


class Evaluations(Record):
    """The evaluations of an optimiser, in their order.

    Parameters
    ----------
    name : str
    generator : torch.Generator
        Of the random numbers of the evaluations.
    """

    def __init__(self, name: str, generator: Generator):
        super().__init__(name)
        self._generator = generator
        self._thetas: list[np.ndarray] = []
        self._grads: list[np.ndarray] = []
        self._numbers: list[tuple[float, ...]] = []
        self._solves: list[list[Any] | None] = []
        # The state of the generator after an evaluation, if that has changed it.
        self._draws: dict[int, np.ndarray] = {}
        self._state: Callable[[], Any] = dict
        self._best: tuple[float, np.ndarray] | None = None
        found = self.found or {}
        with reading():
            self._earlier = [*_unpacked(found)]

    def next(self, theta: np.ndarray) -> tuple[Evaluated | None, Any] | None:
        """What the earlier fit has evaluated here, and the state after its last evaluation.

        The result is None if there is no such evaluation. The evaluation is None if there was no
        factor of the matrix. The state is None for all evaluations but the last.
        """
        k, found = len(self._thetas), self.found
        if found is None or k >= len(self._earlier):
            return None
        at, evaluated, seconds = self._earlier[k]
        if at.shape != theta.shape or np.abs(at - theta).max(initial=0.0) > _ROUNDING:
            # The clock or another version of the software has led to other points.
            del self._earlier[k:]
            self.found = None
            return None
        with reading():
            if (draws := found["draws"].get(k)) is not None:
                restored(self._generator, draws)
        self.skip_to(seconds)
        self._append(theta, evaluated, seconds)
        if k < len(self._earlier) - 1:
            return evaluated, None
        self.found, self._state = None, lambda: found["state"]
        return evaluated, found["state"]

    def add(self, theta: np.ndarray, evaluated: Evaluated | None, state: Callable[[], Any]) -> None:
        """Record an evaluation, or with None a matrix without a factor.

        `state` gives what later evaluations need beside the generator, if it is asked before them.
        """
        if not self.kept:
            return
        self._append(theta, evaluated, self.seconds)
        self._state = state
        self.changed()

    def _append(self, theta: np.ndarray, evaluated: Evaluated | None, seconds: float) -> None:
        k, draws = len(self._thetas), captured(self._generator)
        before = self._draws[max(self._draws)] if self._draws else None
        if before is None or not np.array_equal(before, draws):
            self._draws[k] = draws
        found = Evaluated(np.nan, np.zeros_like(theta)) if evaluated is None else evaluated
        self._thetas.append(theta.copy())
        self._grads.append(found.grad)
        numbers = found.value, found.residual, found.probe_residual, found.epochs
        self._numbers.append((*numbers, seconds, float(evaluated is None)))
        self._solves.append(None if found.solve is None else _of_solve(found.solve))
        if evaluated is not None and not (self._best and found.value <= self._best[0]):
            self._best = found.value, theta.copy()

    def packed(self) -> dict[str, Any]:
        best = self._best
        if self.found is not None or not self._thetas:
            # The record of an earlier fit is longer than that of this one.
            return self.found or {}
        return {
            # For readers of the file: the highest value, or without values the last evaluation.
            "best": None if best is None else {"value": float(best[0]), "theta": best[1]},
            "seconds": self._numbers[-1][-2],
            "theta": np.array(self._thetas),
            "grad": np.array(self._grads),
            "numbers": np.array(self._numbers),
            "solves": list(self._solves),
            "draws": dict(self._draws),
            "state": self._state(),
        }


def _of_solve(solve: SolveSummary) -> list[Any]:
    return [solve.status.value, float(solve.residual), float(solve.epochs), solve.own_remedy]


def _unpacked(found: dict[str, Any]) -> Iterator[tuple[np.ndarray, Evaluated | None, float]]:
    """The evaluations of a record, which a file may have in any form."""
    if not found:
        return
    thetas, grads, numbers = found["theta"], found["grad"], found["numbers"]
    if not {"draws", "state"} <= set(found) or thetas.shape != grads.shape or thetas.ndim != 2:
        raise ModelFileError("a record of evaluations has gradients that do not fit")
    if numbers.shape != (len(thetas), len(_NUMBERS)) or len(found["solves"]) != len(thetas):
        raise ModelFileError("a record of evaluations is incomplete")
    # Gradients that are estimated have no values, and neither has a matrix without a factor.
    values = numbers[numbers[:, -1] == 0, 0]
    values = values[:0] if np.isnan(values).all() else values
    if not all(np.isfinite(found).all() for found in (thetas, grads, values)):
        raise ModelFileError("a record of evaluations is not finite")
    # A first evaluation without a factor ends its fit, so that no record begins with one.
    if len(numbers) and numbers[0, -1]:
        raise ModelFileError("a record of evaluations begins with one that failed")
    for theta, grad, row, solve in zip(thetas, grads, numbers, found["solves"], strict=True):
        value, residual, probe_residual, epochs, seconds, failed = row.tolist()
        summary = None if solve is None else SolveSummary(End(solve[0]), *solve[1:])
        evaluated = Evaluated(value, grad, residual, probe_residual, epochs, summary)
        yield theta, None if failed else evaluated, seconds


class LastState(Record):
    """The latest state of something that changes in place, such as a stepper and its scores."""

    def __init__(self, name: str):
        super().__init__(name)
        self._values = self.found or {}

    def put(self, values: dict[str, Any]) -> None:
        """Replace the state."""
        self._values = values | {"seconds": self.seconds}
        self.changed()

    def packed(self) -> dict[str, Any]:
        return self._values
