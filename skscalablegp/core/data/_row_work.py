"""What a method computes of rows: in this process, or at each rank for the rows that it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...linalg.blocks import watched
from ...ranks import Parts

# The tensors that a function of a module returns for some rows.
Sums = tuple[Tensor, ...]


@dataclass(frozen=True, eq=False)
class RowWork:
    """An object made of all rows, in this process.

    Functions of modules answer for it, so that ranks can run them as well (`SharedWork`).

    Attributes
    ----------
    own : object
    """

    own: Any

    def held(self, make: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()) -> RowWork:
        """Another object of the same rows, ``make(own, *args, *tensors)``."""
        return RowWork(make(self.own, *args, *tensors))

    def total(self, work: Callable[..., Sums], *args: Any, tensors: Sequence[Tensor] = ()) -> Sums:
        """``work(own, *args, *tensors)``, sums over all rows."""
        return work(self.own, *args, *tensors)

    def total_of(
        self,
        rows: Any,
        work: Callable[..., Sums],
        *args: Any,
        along: Sequence[Tensor] = (),
        tensors: Sequence[Tensor] = (),
    ) -> Sums:
        """``work(own, rows, *args, *along, *tensors)``, sums over some rows by number.

        The tensors of `along` have an entry for each of the rows.
        """
        return work(self.own, rows, *args, *along, *tensors)

    def each(
        self, work: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> list[Any]:
        """``work(own, *args, *tensors)``, a small answer for each part of the rows."""
        return [work(self.own, *args, *tensors)]


@dataclass(frozen=True, eq=False)
class SharedWork(RowWork):
    """An object at each rank, made of the rows that it holds.

    `own` is that of rank 0. Rank 0 draws batches from the rows of all ranks; each rank computes
    the rows of a batch that it holds, of which there may be none, and the sums travel.

    Attributes
    ----------
    parts : Parts
    """

    parts: Parts

    @classmethod
    def of(cls, parts: Parts) -> SharedWork:
        return cls(parts.own, parts)

    def held(self, make, *args, tensors=()):
        # The time budget must not end a step that all ranks take.
        with watched(None):
            return self.of(self.parts.derived(make, *args, tensors=tensors))

    def total(self, work, *args, tensors=()):
        with watched(None):
            return self.parts.total(work, *args, tensors=tensors)

    def total_of(self, rows, work, *args, along=(), tensors=()):
        with watched(None):
            return self.parts.total_of(rows, work, *args, along=along, tensors=tensors)

    def each(self, work, *args, tensors=()):
        with watched(None):
            return self.parts.each(work, *args, tensors=tensors)

    def picked(
        self, rows: Any, work: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> tuple[np.ndarray, ...]:
        """The arrays that ``work(own, numbers, *args, *tensors)`` has for some rows by number.

        They have an entry for each row, and come in the order of `rows`.
        """
        wanted = rows.cpu().numpy() if isinstance(rows, Tensor) else np.asarray(rows)
        if not len(wanted):
            return tuple(work(self.own, np.empty(0, dtype=np.int64), *args, *tensors))
        with watched(None):
            places, found = self.parts.picked(work, wanted, *args, tensors=tensors)
        order = np.argsort(np.concatenate(places))
        return tuple(np.concatenate(arrays)[order] for arrays in zip(*found, strict=True))
