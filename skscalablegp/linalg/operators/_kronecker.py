"""Kronecker products: covariances of product grids, one factor an axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

from ._toeplitz import Toeplitz

# Up to this many points a dense factor is faster than two Fourier transforms.
_DENSE_POINTS = 256


class Kronecker:
    """The Kronecker product of Toeplitz matrices; the last axis varies fastest.

    Parameters
    ----------
    factors : sequence of Toeplitz
        One an axis.
    """

    def __init__(self, factors: Sequence[Toeplitz]):
        self.factors = list(factors)
        m = math.prod(factor.shape[0] for factor in self.factors)
        self.shape = (m, m)

    def matmul(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """K V, one axis at a time; O(m log m) a column, O(m sum_j m_j) where axes are short."""
        sizes = [factor.shape[0] for factor in self.factors]
        for axis, factor in enumerate(self.factors):
            before, after = math.prod(sizes[:axis]), math.prod(sizes[axis + 1 :]) * V.shape[1]
            columns = V.reshape(before, sizes[axis], after)
            if sizes[axis] <= _DENSE_POINTS:
                image = torch.matmul(factor.to_dense(), columns)
            else:
                flat = columns.transpose(0, 1).reshape(sizes[axis], before * after)
                image = factor.matmul(flat).reshape(sizes[axis], before, after).transpose(0, 1)
            V = image.reshape(self.shape[0], -1)
        return V

    def to_dense(self) -> Float[Tensor, "m m"]:
        """The matrix, m^2 numbers."""
        return reduce(torch.kron, [factor.to_dense() for factor in self.factors])
