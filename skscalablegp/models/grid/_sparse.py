"""Sparse matrices and sums over rows on the device of a grid."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import embedding_bag

CPU = torch.device("cpu")


class SparseMatrix:
    """A sparse matrix times dense ones: by SciPy on the CPU, and elsewhere as sums of chosen rows.

    Parameters
    ----------
    matrix : csr_array or ndarray of shape (n, m)
        An array, if most entries are not zero.
    device : torch.device
        The device of the products.
    """

    def __init__(self, matrix: scipy.sparse.csr_array | np.ndarray, device: torch.device):
        self._matrix, self._device, self._factor = matrix, device, 1.0
        self._largest: float | None = None
        self._entries: tuple[Tensor, ...] = ()
        self._dense = isinstance(matrix, np.ndarray)
        if device.type != "cpu" and self._dense:
            self._entries = (torch.from_numpy(matrix).to(device, non_blocking=True),)
        elif device.type != "cpu":
            parts = matrix.indices.astype("int64"), matrix.indptr.astype("int64"), matrix.data
            self._entries = tuple(
                torch.from_numpy(part).to(device, non_blocking=True) for part in parts
            )

    def scaled(self, factor: float) -> SparseMatrix:
        """The matrix times a number, without a copy of its entries on a device."""
        out = copy(self)
        out.__dict__.pop("_own", None)
        out._factor *= factor
        return out

    @cached_property
    def _own(self) -> scipy.sparse.csr_array | np.ndarray:
        return self._matrix if self._factor == 1 else self._matrix * self._factor

    def norm(self) -> float:
        """The largest sum of absolute entries of a column."""
        if self._largest is None:
            self._largest = float(abs(self._matrix).sum(0).max())
        return abs(self._factor) * self._largest

    def sum(self) -> float:
        """The sum of all entries."""
        return self._factor * float(self._matrix.sum())

    def __matmul__(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "n s"]:
        if self._device.type == "cpu":
            return times(self._own, V)
        if self._dense:
            return self._factor * (self._entries[0].to(V.dtype) @ V)
        columns, starts, values = self._entries
        out = embedding_bag(
            columns,
            V.contiguous(),
            starts,
            mode="sum",
            per_sample_weights=values.to(V.dtype),
            include_last_offset=True,
        )
        return out if self._factor == 1 else out * self._factor


def times(gram: scipy.sparse.csr_array | np.ndarray, V: Float[Tensor, "m s"]) -> Tensor:
    """The product of a Gram matrix with vectors on the CPU."""
    if isinstance(gram, np.ndarray):
        return torch.from_numpy(gram) @ V
    return torch.from_numpy(gram @ V.numpy())


@dataclass(frozen=True, eq=False)
class SentMoments:
    """`NoisyMoments` on the device of the grid.

    Attributes
    ----------
    gram : SparseMatrix
    rhs : Tensor of shape (m, t)
    total, second_total : float
        Sums of c y^2 over rows and targets, with c = 1 / D and 1 / D^2.
    n : int or float
        Number of rows, or the sum of their counts.
    second_gram : SparseMatrix or None
        None if D is constant.
    second_rhs : Tensor of shape (m, t)
    sums : list of Tensor
    log_det, inverse : float
    """

    gram: SparseMatrix
    rhs: Float[Tensor, "m t"]
    total: float
    n: int | float
    second_gram: SparseMatrix | None
    second_rhs: Float[Tensor, "m t"]
    second_total: float
    sums: list[Tensor]
    log_det: float
    inverse: float

    @classmethod
    def of(cls, moments: Any, device: torch.device) -> SentMoments:
        """Moments that are sent to a device."""

        def sent(a: Any) -> Tensor:
            return torch.as_tensor(a).to(device, non_blocking=True)

        first, second = moments.first, moments.second
        gram = SparseMatrix(first.gram, device)
        again = gram if second.gram is first.gram else None
        if again is None and second.gram is not None:
            again = SparseMatrix(second.gram, device)
        return cls(
            gram,
            sent(first.rhs),
            float(first.total.sum()),
            first.n,
            again,
            sent(second.rhs),
            float(second.total.sum()),
            [sent(part) for part in moments.sums],
            moments.log_det,
            moments.inverse,
        )

    def divided(self, D: float, log_det: float) -> SentMoments:
        """These of weights 1, divided by a noise variance that all rows have."""
        return replace(
            self,
            gram=self.gram.scaled(1 / D),
            rhs=self.rhs / D,
            total=self.total / D,
            second_gram=None,
            second_rhs=self.rhs / D**2,
            second_total=self.total / D**2,
            sums=[part / D for part in self.sums],
            log_det=log_det,
            inverse=self.n / D,
        )
