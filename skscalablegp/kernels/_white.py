"""Independent noise."""

from __future__ import annotations

from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._nodes import Node, Term
from ._registry import register_kernel
from ._slots import Slot


class White(Node):
    """No covariance between rows, and a variance on the diagonal of k(X, X)."""

    label = "WhiteKernel"
    stationary = True

    def __init__(self, noise_level: Slot):
        self.noise_level = noise_level

    def alone(self, column: int) -> Node:
        return self

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> None:
        return None

    def diag(self, theta: Tensor, X: Tensor) -> None:
        return None

    def noise(self, theta: Tensor, X: Tensor) -> Tensor:
        return self.noise_level.value_like(theta, X)

    def products(self) -> list[Term]:
        return []


register_kernel(sk.WhiteKernel, lambda k, layout: White(**layout.slots(k)))
