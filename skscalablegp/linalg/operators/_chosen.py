"""A few rows of H as an operator: what a step of a solver that reads rows needs of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..blocks import matmul
from ._tiles import add_to, cells

if TYPE_CHECKING:
    from ._kernel import KernelOperator


class ChosenRows:
    """The b x n matrix H[idx, :], stored.

    Parameters
    ----------
    rows : Tensor of shape (b, n)
    idx : Tensor of shape (b,) or slice
        Numbers of the rows.
    """

    def __init__(self, rows: Float[Tensor, "b n"], idx: Int[Tensor, " b"] | slice):
        self._rows, self._idx = rows, idx

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self._rows)

    def block(self) -> Float[Tensor, "b b"]:
        """H[idx][:, idx]."""
        return self._rows[:, self._idx]

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "b s"]:
        """H[idx, :] V."""
        return matmul(self._rows, V)

    def rmatmul(self, V: Float[Tensor, "b s"]) -> Float[Tensor, "n s"]:
        """H[:, idx] V."""
        return matmul(self._rows.mT, V)


class EvaluatedRows(ChosenRows):
    """The same matrix, evaluated in tiles by each product and never stored as a whole.

    Tiles stay in the cache of a processor. Rows of a large table would be written to memory and
    read again, which takes longer than their evaluation.

    Parameters
    ----------
    operator : KernelOperator
    numbers : Tensor of shape (b,)
        Numbers of the rows.
    """

    def __init__(self, operator: KernelOperator, numbers: Int[Tensor, " b"]):
        self._operator, self._numbers = operator, numbers
        self._chosen = operator._rows[numbers]
        self._diagonal = operator.diag()[numbers]

    @property
    def size(self) -> int:
        return len(self._numbers)

    def block(self) -> Float[Tensor, "b b"]:
        """H[idx][:, idx], b^2 entries that are evaluated in addition to those of a product."""
        return self._operator.block(self._numbers)

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "b s"]:
        op = self._operator
        if op._lazy is not None:
            found = op._lazy.product(self._chosen, op._rows, V)
            return found.addcmul_(V[self._numbers], op.noise[self._numbers, None])
        out = V.new_zeros(self.size, V.shape[1])
        return op._fitting(lambda: self._add_tiles(out.zero_(), lambda i, j, K: (i, K @ V[j])))

    def rmatmul(self, V: Float[Tensor, "b s"]) -> Float[Tensor, "n s"]:
        op = self._operator
        if op._lazy is not None:
            found = op._lazy.product(op._rows, self._chosen, V)
            return found.index_add_(0, self._numbers, V * op.noise[self._numbers, None])
        out = V.new_zeros(op.shape[0], V.shape[1])
        return op._fitting(lambda: self._add_tiles(out.zero_(), lambda i, j, K: (j, K.T @ V[i])))

    def _add_tiles(self, out: Tensor, product: Any) -> Tensor:
        """Add the products of all tiles to the parts of `out` that ``product`` names."""

        def work(cell: tuple[slice, slice]) -> tuple[slice, Tensor]:
            return product(*cell, self._tile(*cell))

        op = self._operator
        for part, found in op._map(work, cells(self.size, op.shape[0], op._tile_rows)):
            add_to(out[part], found)
        return out

    def _tile(self, left: slice, right: slice) -> Float[Tensor, "a b"]:
        """A tile with exact entries of the diagonal of H, for which no device is waited."""
        op = self._operator
        tile = op.bound.tile(self._chosen[left], op._rows[right])
        own = self._numbers[left] - right.start
        inside = (own >= 0) & (own < tile.shape[1])
        column = own.clamp(0, tile.shape[1] - 1)[:, None]
        entries = torch.where(inside[:, None], self._diagonal[left, None], tile.gather(1, column))
        return tile.scatter_(1, column, entries)
