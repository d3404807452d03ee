"""An oracle for grids: H = W Kuu W' + diag(noise), row by row, as an operator."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from skscalablegp.core.data import Table
from skscalablegp.linalg.operators import LinearOperator
from skscalablegp.models.grid import GridKernel


def rows_of(X: np.ndarray, Y: np.ndarray, noise: np.ndarray | float = 0.0) -> Table:
    """A table with targets as they are."""
    t = Y.shape[1]
    return Table(X, Y, np.zeros(t), np.ones(t), np.broadcast_to(noise, len(X)).copy())


def dense_grid(grid_kernel: GridKernel, theta: Float[Tensor, " p"]) -> Float[Tensor, "m m"]:
    """Kuu, m^2 numbers."""
    return grid_kernel.matmul(theta, torch.eye(grid_kernel.n_points, dtype=torch.float64))


class InterpolatedOperator(LinearOperator):
    """The matrix of structured kernel interpolation over the rows of X (Wilson, Nickisch 2015).

    Parameters
    ----------
    grid_kernel : GridKernel
        Kuu and the kernel's white noise.
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    X : ndarray of shape (n, d)
        Rows inside the grid.
    extra_noise : Tensor of shape (n,) or None
        Known noise variances added to the diagonal.

    Notes
    -----
    A product costs O(n 4^d + m log m) a column. It is counted as one epoch like everywhere, though
    no n^2 entries are evaluated. Float64 on the CPU.
    """

    def __init__(
        self,
        grid_kernel: GridKernel,
        theta: Float[Tensor, " p"],
        X: np.ndarray,
        extra_noise: Float[Tensor, " n"] | None = None,
    ):
        super().__init__(len(X), torch.float64, torch.device("cpu"))
        self.grid_kernel, self.X = grid_kernel, X
        self.theta = theta.detach().double().cpu()
        self._W = grid_kernel.grid.interpolate(X)
        self._Wt = self._W.T.tocsr()
        with torch.no_grad():
            self._columns = grid_kernel.columns(self.theta)
            white = grid_kernel.noise(self.theta).expand(len(X)).clone()
        self.noise = white if extra_noise is None else white + extra_noise

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        self._count(self.shape[0] ** 2)
        from_rows = torch.from_numpy(self._Wt @ V.numpy())
        with torch.no_grad():
            on_grid = self.grid_kernel.matmul(self.theta, from_rows)
        return torch.from_numpy(self._W @ on_grid.numpy()) + self.noise[:, None] * V

    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        idx = torch.arange(self.shape[0])[idx]
        self._count(len(idx) * self.shape[0])
        with torch.no_grad():
            near = self.grid_kernel.rows(self.theta, self.X[idx.numpy()])
        out = torch.from_numpy(np.ascontiguousarray((self._W @ near.T.numpy()).T))
        out[torch.arange(len(idx)), idx] += self.noise[idx]
        return out

    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        self._count(len(idx) ** 2)
        X = self.X[idx.numpy()]
        with torch.no_grad():
            out = self.grid_kernel.cross(self.theta, X, X)
        # A repeated index repeats the diagonal entry, noise included.
        return out + torch.where(idx[:, None] == idx, self.noise[idx], 0.0)

    def diag(self) -> Float[Tensor, " n"]:
        with torch.no_grad():
            return self.grid_kernel.cross(self.theta, self.X) + self.noise

    def bilinear_grad(
        self, left: Float[Tensor, "n s"], right: Float[Tensor, "n s"] | None = None
    ) -> Float[Tensor, " p"]:
        self._count(self.shape[0] ** 2)
        if right is None:
            # sum_ij W_ij H_ij is the trace of a product with the identity.
            left, right = left, torch.eye(self.shape[0], dtype=left.dtype)
        with torch.enable_grad():
            theta = self.theta.clone().requires_grad_(True)
            A, B = (torch.from_numpy(self._Wt @ V.numpy()) for V in (left, right))
            value = (A * self.grid_kernel.matmul(theta, B)).sum()
            value = value + self.grid_kernel.noise(theta) * (left * right).sum()
            if not value.requires_grad:
                return torch.zeros_like(self.theta)
            (grad,) = torch.autograd.grad(value, theta, allow_unused=True)
        return torch.zeros_like(self.theta) if grad is None else grad

    def to_dense(self) -> Float[Tensor, "n n"]:
        self._count(self.shape[0] ** 2)
        with torch.no_grad():
            from_rows = torch.from_numpy(self._Wt.toarray())
            on_grid = self.grid_kernel.matmul(self.theta, from_rows)
        return torch.from_numpy(self._W @ on_grid.numpy()) + torch.diag(self.noise)
