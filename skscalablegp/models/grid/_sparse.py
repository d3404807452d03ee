"""Sparse matrices on the device of a grid."""

from __future__ import annotations

from copy import copy
from functools import cached_property

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
