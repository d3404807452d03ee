"""The same covariance for every pair of rows."""

from __future__ import annotations

from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._nodes import Node, Term
from ._registry import register_kernel
from ._slots import Slot


class Constant(Node):
    """The constant c, which is also its own factor in products."""

    label = "ConstantKernel"
    stationary = True

    def __init__(self, constant: Slot):
        self.constant = constant

    def alone(self, column: int) -> Node:
        return self

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        return self.constant.value_like(theta, X)[None]

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return self.constant.value_like(theta, X)

    def products(self) -> list[Term]:
        return [Term((self.constant,), ())]


register_kernel(sk.ConstantKernel, lambda k, layout: Constant(*layout.slots(k).values()))
