"""The interface of a symmetric positive definite matrix that is never assumed to be stored."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor


def slope(value: Float[Tensor, ""], theta: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """The gradient in theta of a value, which need not depend on theta."""
    if not value.requires_grad:
        return torch.zeros_like(theta)
    return torch.autograd.grad(value, theta, materialize_grads=True)[0]


class LinearOperator(ABC):
    """H = K(theta) + diag(noise), accessed only through products and some of its entries.

    The operator counts every access in epochs; one epoch is the evaluation of ``n**2`` entries of
    H. Budgets and benchmarks use this count, which solvers therefore need not keep.

    Attributes
    ----------
    noise : Tensor of shape (n,)
        The variances that are added to the diagonal of K.
    epochs : float
        The number of entries of H evaluated so far, divided by ``n**2``.
    """

    noise: Tensor

    def __init__(self, n: int, dtype: torch.dtype, device: torch.device):
        self.shape = (n, n)
        self.dtype = dtype
        self.device = device
        self._entries = 0

    @property
    def epochs(self) -> float:
        return self._entries / max(self.shape[0], 1) ** 2

    def _count(self, entries: int) -> None:
        self._entries += entries

    @abstractmethod
    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """H V in the precision of V, which may exceed that of the operator; one epoch."""

    @abstractmethod
    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        """H[idx, :], b / n epochs; the rows of a slice may be a view of H."""

    @abstractmethod
    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        """H[idx][:, idx], (b / n)**2 epochs."""

    @abstractmethod
    def diag(self) -> Float[Tensor, " n"]:
        """The diagonal of H, including the noise; not counted."""

    @abstractmethod
    def bilinear_grad(
        self, left: Float[Tensor, "n s"], right: Float[Tensor, "n s"] | None = None
    ) -> Float[Tensor, " p"]:
        """The gradient in theta of ``sum_c left[:, c]' H right[:, c]``, float64, one epoch.

        Without `right`, `left` is a symmetric n x n matrix W, and the function is ``sum(W * H)``.
        """

    @abstractmethod
    def to_dense(self) -> Float[Tensor, "n n"]:
        """H as a new matrix, one epoch."""
