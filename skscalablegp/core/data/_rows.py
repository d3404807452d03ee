"""Training rows that may be larger than memory: scaled and handed out a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...linalg.gradients import Rows
from ...workers import Workers
from ._batches import counted_batches
from ._columns import BLOCK_ROWS, Columns
from ._merging import have_merged

# Tables up to this size are held as tensors; larger ones are read batch by batch.
_RESIDENT_BYTES = 2**28
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Scaling:
    """Means and scales that convert a table to the units of a model.

    Attributes
    ----------
    x_mean, x_scale : ndarray of shape (d,)
        Column means and standard deviations, 1 for constant columns.
    y_mean, y_scale : ndarray of shape (t,)
        Means and scales of the targets; 0 and 1 if they are not normalised.
    """

    x_mean: np.ndarray
    x_scale: np.ndarray
    y_mean: np.ndarray
    y_scale: np.ndarray

    def inputs(
        self, X: np.ndarray, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "m d"]:
        """Standardised rows."""
        return torch.as_tensor(_scaled(X, self.x_mean, self.x_scale)).to(device, dtype)


def _scaled(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Standardised rows in C order."""
    return (np.ascontiguousarray(rows) - mean) / scale


@dataclass(frozen=True, eq=False)
class RowSource(Columns):
    """The rows of one fit, in a model's units.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Inputs in their own units; may be an `np.memmap`, of which only batches are read.
    Y : ndarray of shape (n, t)
        Targets in their own units.
    scaling : Scaling
    dtype : torch.dtype
        Precision of the tensors.
    device : torch.device
    noise : ndarray of shape (n,)
        Known noise variances in the model's units.
    weight : ndarray of shape (n,)
        How many equal rows each row stands for.
    """

    X: np.ndarray
    Y: np.ndarray
    scaling: Scaling
    dtype: torch.dtype
    device: torch.device
    noise: np.ndarray
    weight: np.ndarray
    _resident: Rows | None = None

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        Y: np.ndarray,
        scaling: Scaling,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
        noise: np.ndarray | float = 0.0,
        weight: np.ndarray | float = 1.0,
    ) -> RowSource:
        """The rows of a table; one number stands for all."""
        # Where all rows have the same noise, it takes no memory. torch takes no such weights.
        noise = np.broadcast_to(np.float64(noise), len(X))
        weight = np.full(len(X), weight, dtype=np.float64)
        return cls(X, Y, scaling, dtype, device, noise, weight)

    @property
    def n_rows(self) -> float:
        """The number of rows before they were merged: the sum of their weights."""
        return float(self.weight.sum())

    def __len__(self) -> int:
        return len(self.X)

    def resident(self) -> RowSource:
        """The same rows, held as tensors if they are small enough."""
        size = torch.finfo(self.dtype).bits // 8
        if self._resident is not None or (self.X.size + self.Y.size) * size > _RESIDENT_BYTES:
            return self
        on: dict = {"dtype": self.dtype, "device": self.device}
        X, Y = torch.empty(self.X.shape, **on), torch.empty(self.Y.shape, **on)
        for start in range(0, len(self), BLOCK_ROWS):
            some = slice(start, start + BLOCK_ROWS)
            rows = self.take(some)
            X[some], Y[some] = rows.X, rows.Y
        # One number for all rows takes no time in batches.
        noise = torch.tensor(self.noise) if self.noisy else 0.0
        weight = torch.tensor(self.weight) if have_merged(self.weight) else 1.0
        return replace(self, _resident=Rows.of(X, Y, noise, weight))

    def converted(self, dtype: torch.dtype, device: torch.device | None = None) -> RowSource:
        """The same rows in another precision, held as tensors no more."""
        device = self.device if device is None else device
        return replace(self, dtype=dtype, device=device, _resident=None)

    def here(self) -> RowSource:
        """The rows in this process."""
        return self

    @property
    def work(self) -> Workers:
        """Who computes with the rows: this process, or ranks with a `RowSource` each."""
        return Workers(self)

    def counted(self, index: np.ndarray, weight: np.ndarray) -> Rows:
        """Some rows, each of which counts as often as its weight says."""
        some = self.take(index)
        return replace(some, weight=torch.as_tensor(weight).to(some.weight))

    def subset(self, index: np.ndarray) -> RowSource:
        """Some of the rows, in the same units."""
        names = ("X", "Y", "noise", "weight")
        parts = {name: getattr(self, name)[index] for name in names}
        return replace(self, _resident=None, **parts)

    def labels(self) -> tuple[Float[np.ndarray, "n t"], Float[np.ndarray, " n"]]:
        """The targets of a classifier, and how many rows each row of them stands for."""
        return self.Y, self.weight

    def take(self, index: np.ndarray | Tensor | slice) -> Rows:
        """Some rows, scaled, as tensors."""
        if self._resident is not None:
            at = index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)
            return self._resident.take(at)
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        s = self.scaling
        X = _scaled(self.X[index], s.x_mean, s.x_scale)
        Y = _scaled(self.Y[index], s.y_mean, s.y_scale)
        parts = X, Y, np.array(self.noise[index]), np.array(self.weight[index])
        return Rows.of(*(torch.as_tensor(part).to(self.device, self.dtype) for part in parts))

    def originals(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows in their own units, and their targets."""
        return np.array(self.X[index]), np.array(self.Y[index])

    @cached_property
    def noisy(self) -> bool:
        """Whether there is known noise."""
        return self.noise_range()[1] > 0

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[Rows]:
        """All rows in order, `size` at a time; of no rows one block, which is empty."""
        for start in range(0, max(len(self), 1), size):
            yield self.take(slice(start, start + size))

    def batches(self, size: int, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers and weights of rows, as `counted_batches` draws them."""
        return counted_batches(torch.tensor(self.weight).to(self.device), size, generator)
