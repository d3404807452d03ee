"""Tables and problems whose rows are at several ranks, each of which has its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from ...kernels import TorchKernel
from ...linalg.gradients import GPProblem, Rows
from ...workers import RankWorkers
from ._columns import limit_rows
from ._table import OF_ROWS, Table

# Attributes of rows that are not in this process.
_OF_SHAPES = {
    getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "is_cpu")
} | {Tensor.size, Tensor.dim, Tensor.numel, Tensor.__len__, Tensor.is_floating_point}


def _refused() -> MemoryError:
    return MemoryError(
        "This step needs all rows in one process, and with distribute(rows='own') no rank has "
        "them: use rows='replicated'."
    )


class AbsentArray(np.ndarray):
    """The shape of an array whose rows are at several ranks; everything else is an error."""

    @classmethod
    def of(cls, *shape: int) -> AbsentArray:
        """Takes no memory."""
        return np.broadcast_to(np.float64(np.nan), shape).view(cls)

    def __getitem__(self, index: Any) -> Any:
        raise _refused()

    def __array_ufunc__(self, *args: Any, **kwargs: Any) -> Any:
        raise _refused()

    def __array_function__(self, *args: Any, **kwargs: Any) -> Any:
        raise _refused()


class AbsentTensor(Tensor):
    """The shape of a tensor whose rows are at several ranks; everything else is an error."""

    @classmethod
    def of(cls, *shape: int, dtype: torch.dtype, device: torch.device) -> AbsentTensor:
        """Takes no memory."""
        return torch.zeros((), dtype=dtype, device=device).expand(shape).as_subclass(cls)

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if function not in _OF_SHAPES:
            raise _refused()
        return super().__torch_function__(function, types, args, kwargs or {})


@dataclass(frozen=True)
class ShardedTable(Table):
    """A table of which each rank has rows of its own, those of rank 0 first.

    `X`, `y` and `noise` have shapes only. `each` asks the ranks for sums over their rows, and
    `rows` fetches some of them by number.

    Attributes
    ----------
    parts : RankWorkers
        The table of each rank.
    """

    here = False

    parts: RankWorkers = field(kw_only=True)

    @classmethod
    def of(cls, parts: RankWorkers) -> ShardedTable:
        """The table of these parts, which have the same scale of the target."""
        one, n = parts.own, sum(parts.sizes)
        X, y = (AbsentArray.of(n, *a.shape[1:]) for a in (one.X, one.y))
        return cls(X, y, one.y_mean, one.y_std, AbsentArray.of(n), one.origin, parts=parts)

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        return self.parts.call(work, *args)

    def whole(self) -> Table:
        return self.rows(np.arange(len(self.X)))

    def sample(self) -> Table:
        return self._sample

    @cached_property
    def _sample(self) -> Table:
        return self.rows(np.arange(len(self.X))[limit_rows(len(self.X))])

    def rows(self, chosen: np.ndarray) -> Table:
        """Some of the rows, by number, in this process."""
        arrays = self.parts.gather(_rows_of, chosen)
        return replace(self.parts.own, **dict(zip(OF_ROWS, arrays, strict=True)))

    def limited(self, low: np.ndarray, high: np.ndarray) -> ShardedTable:
        return self.of(self.parts.put(Table.limited, low, high))

    def centred(self, kernel: TorchKernel) -> ShardedTable:
        origin = kernel.origin(self.robust_moments()[0])
        return self.of(self.parts.put(_with_origin, origin))

    def problem(
        self, kernel: TorchKernel, dtype: torch.dtype, device: torch.device, keep: bool
    ) -> ShardedProblem:
        parts = self.parts.put(Table.problem, kernel, dtype, device, keep)
        n, t = len(self.X), self.y_mean.size
        X, Y = (
            AbsentTensor.of(n, columns, dtype=dtype, device=device)
            for columns in (self.X.shape[1], t)
        )
        return ShardedProblem(kernel, Rows.of(X, Y), keep=keep, parts=parts, table=self)

    def check_separable(self, kernel: TorchKernel) -> None:
        """As in the base class, for equal rows of the same rank."""
        self.each(Table.check_separable, kernel)


@dataclass(frozen=True)
class ShardedProblem(GPProblem):
    """A regression of which each rank has rows of its own.

    Attributes
    ----------
    parts : RankWorkers
        The problem of each rank.
    table : ShardedTable
        The same rows, from which `subset` fetches some.
    """

    parts: RankWorkers = field(kw_only=True)
    table: ShardedTable = field(kw_only=True)

    def total(self, work: Callable[..., tuple[Tensor, ...]], *args: Any) -> tuple[Tensor, ...]:
        return self.parts.sum(work, *args)

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        return self.parts.call(work, *args)

    def whole(self) -> GPProblem:
        return replace(self._here(self.table.whole()), prior_weight=self.prior_weight)

    def subset(self, idx: Int[Tensor, " b"]) -> GPProblem:
        weight = self.prior_weight * len(idx) / len(self.X)
        some = self._here(self.table.rows(idx.cpu().numpy()))
        return replace(some, prior_weight=weight)

    def _here(self, table: Table) -> GPProblem:
        return table.problem(self.kernel, self.X.dtype, self.X.device, self.keep)

    def to(self, dtype: torch.dtype) -> GPProblem:
        if dtype == self.X.dtype:
            return self
        made = self.table.problem(self.kernel, dtype, self.X.device, self.keep)
        return replace(made, prior_weight=self.prior_weight)


def _rows_of(table: Table, rows: np.ndarray) -> list[np.ndarray]:
    return [getattr(table, name)[rows] for name in OF_ROWS]


def _with_origin(table: Table, origin: np.ndarray | float) -> Table:
    return replace(table, origin=origin)
