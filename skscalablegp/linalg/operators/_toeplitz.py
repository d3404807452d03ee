"""Covariances of equally spaced points: constant along diagonals."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


class Toeplitz:
    """A symmetric matrix given by its first column.

    Parameters
    ----------
    column : Tensor of shape (m,)
        k at distances 0, 1, ... m - 1 steps; differentiable.
    """

    def __init__(self, column: Float[Tensor, " m"]):
        self.column = column
        self.shape = (len(column), len(column))

    def matmul(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """T V by the circulant matrix of twice the size, O(m log m) a column."""
        m = len(self.column)
        ring = torch.cat([self.column, self.column[1:-1].flip(0)]) if m > 1 else self.column
        spectrum = torch.fft.rfft(ring)
        image = torch.fft.irfft(
            spectrum[:, None] * torch.fft.rfft(V, n=len(ring), dim=0), n=len(ring), dim=0
        )
        return image[:m]

    def to_dense(self) -> Float[Tensor, "m m"]:
        """The matrix, m^2 numbers."""
        steps = torch.arange(len(self.column), device=self.column.device)
        return self.column[(steps[:, None] - steps).abs()]
