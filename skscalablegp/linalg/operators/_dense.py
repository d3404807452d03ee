"""An operator for a matrix that is given as a whole."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ._base import LinearOperator


class DenseOperator(LinearOperator):
    """A given symmetric positive definite matrix, for small problems and tests.

    Parameters
    ----------
    H : Tensor of shape (n, n)
        The whole matrix, including the noise.
    noise : Tensor of shape (n,), optional
        The part of the diagonal that is noise; zero by default.
    derivatives : Tensor of shape (p, n, n), optional
        dH/dtheta. By default there are none, and gradients are empty.
    """

    def __init__(
        self,
        H: Float[Tensor, "n n"],
        noise: Float[Tensor, " n"] | None = None,
        derivatives: Float[Tensor, "p n n"] | None = None,
    ):
        super().__init__(len(H), H.dtype, H.device)
        self.H = H
        self.noise = H.new_zeros(len(H)) if noise is None else noise
        self.derivatives = H.new_zeros(0, *H.shape) if derivatives is None else derivatives

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        self._count(self.H.numel())
        return self.H.to(V.dtype) @ V

    def rows(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b n"]:
        self._count(len(idx) * self.shape[0])
        return self.H[idx]

    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        self._count(len(idx) ** 2)
        return self.H[idx[:, None], idx]

    def diag(self) -> Float[Tensor, " n"]:
        return self.H.diagonal().clone()

    def bilinear_grad(self, left, right=None):
        self._count(self.H.numel())
        if right is None:
            return torch.einsum("ij,pij->p", left, self.derivatives).double()
        products = torch.einsum("pij,js->pis", self.derivatives, right)
        return torch.einsum("is,pis->p", left, products).double()

    def to_dense(self) -> Float[Tensor, "n n"]:
        self._count(self.H.numel())
        return self.H.clone()
