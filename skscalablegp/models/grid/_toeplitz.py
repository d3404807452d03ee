"""Covariances on grids: Toeplitz matrices, given by their first columns, and Kronecker products."""

from __future__ import annotations

import math
from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

# Up to this many points a dense factor is faster than two Fourier transforms.
_DENSE_POINTS = 256


def toeplitz(column: Float[Tensor, " m"]) -> Float[Tensor, "m m"]:
    """The symmetric matrix with this first column, m^2 numbers; differentiable."""
    steps = torch.arange(len(column), device=column.device)
    return column[(steps[:, None] - steps).abs()]


def toeplitz_matmul(column: Float[Tensor, " m"], V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """The product with V by the circulant matrix of twice the size, O(m log m) a column."""
    ring = torch.cat([column, column[1:-1].flip(0)]) if len(column) > 1 else column
    spectrum = torch.fft.rfft(ring)[:, None] * torch.fft.rfft(V, n=len(ring), dim=0)
    return torch.fft.irfft(spectrum, n=len(ring), dim=0)[: len(column)]


def kronecker(columns: list[Tensor]) -> Float[Tensor, "m m"]:
    """The Kronecker product of Toeplitz matrices, one an axis; the last axis varies fastest."""
    return reduce(torch.kron, map(toeplitz, columns))


def kronecker_matmul(columns: list[Tensor], V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
    """Its product with V an axis at a time; O(m sum_j m_j) a column, O(m log m) on long axes."""
    sizes = [len(column) for column in columns]
    for axis, (column, size) in enumerate(zip(columns, sizes, strict=True)):
        before, after = math.prod(sizes[:axis]), V.numel() // math.prod(sizes[: axis + 1])
        block = V.reshape(before, size, after)
        if size <= _DENSE_POINTS:
            image = toeplitz(column) @ block
        else:
            flat = block.transpose(0, 1).reshape(size, before * after)
            image = toeplitz_matmul(column, flat).reshape(size, before, after).transpose(0, 1)
        V = image.reshape(V.shape)
    return V
