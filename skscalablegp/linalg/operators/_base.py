"""The interface of a symmetric positive definite matrix that is never assumed to be stored."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ._chosen import ChosenRows


def slope(value: Float[Tensor, ""], theta: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
    """The gradient in theta of a value, which need not depend on theta."""
    if not value.requires_grad:
        return torch.zeros_like(theta)
    return torch.autograd.grad(value, theta, materialize_grads=True)[0]


def column_norms(V: Float[Tensor, "n s"]) -> Float[Tensor, " s"]:
    """The norm of every column, summed in float64."""
    return torch.linalg.vector_norm(V, dim=0, dtype=torch.float64)


def column_dots(
    left: Float[Tensor, "n s"], right: Float[Tensor, "n s"], out: Float[Tensor, "n s"] | None = None
) -> Float[Tensor, " s"]:
    """left[:, c]' right[:, c] for every column c, summed in float64; `out` is scratch space."""
    return torch.mul(left, right, out=out).sum(0, dtype=torch.float64)


class SelfAdjointOperator(ABC):
    """A matrix H that is known by its products, self-adjoint in an inner product u' M v.

    M is the identity unless a subclass defines ``dual``. Conjugate gradients and Lanczos need no
    more than these products, and know M V for each of their vectors V.

    Attributes
    ----------
    epochs : float
        The number of entries of H evaluated so far, divided by ``n**2``.
    threaded : bool
        Whether products are a few operations of torch, which need all of its threads.
    """

    threaded = False

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

    def dual(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """M V, which is V itself if H is symmetric."""
        return V

    def norms(self, V: Float[Tensor, "n s"]) -> Float[Tensor, " s"]:
        """The norm of every column in the inner product of M, float64."""
        return column_norms(V)

    def image(self, V: Float[Tensor, "n s"], dual: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """H V, where ``dual(V)`` is known."""
        return self.matmul(dual)

    @abstractmethod
    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """H V in the precision of V, which may exceed that of the operator; one epoch."""


class LinearOperator(SelfAdjointOperator):
    """H = K(theta) + diag(noise), accessed only through products and some of its entries.

    The operator counts every access in epochs; one epoch is the evaluation of ``n**2`` entries of
    H. Budgets and benchmarks use this count, which solvers therefore need not keep.

    Attributes
    ----------
    noise : Tensor of shape (n,)
        The variances that are added to the diagonal of K.
    """

    noise: Tensor

    @abstractmethod
    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        """H[idx, :], b / n epochs; the rows of a slice may be a view of H."""

    def chosen(self, idx: Int[Tensor, " b"] | slice) -> ChosenRows:
        """H[idx, :] for products and its block, b / n epochs; see `ChosenRows`."""
        return ChosenRows(self.rows(idx), idx)

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
