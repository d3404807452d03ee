"""The algebra of compiled kernels: every node is a smooth part plus a diagonal-only part.

A node stands for ``k(X, X) = S(X, X) + diag(D(X))``, where S is an ordinary covariance function
and D is what white noise leaves on the diagonal. A part that is zero by structure is None, and
a part that is the same everywhere may come back with axes of length one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor

# Past this many products an expanded kernel is no longer cheaper than the kernel itself.
MAX_PRODUCTS = 64
MAX_POWER = 16


class Node(ABC):
    """A compiled kernel expression.

    Attributes
    ----------
    label : str
        The scikit-learn kernel's class name, for messages.
    """

    label: str

    @abstractmethod
    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        """S(X, Z), broadcastable to (n, m)."""

    @abstractmethod
    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        """The diagonal of S(X, X), broadcastable to (n,), in O(n d)."""

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        """D(X), broadcastable to (n,)."""
        return None

    def products(self) -> list[tuple[Node, ...]]:
        """S as a sum of products of leaves; a node that cannot be expanded is its own leaf."""
        return [(self,)]


class Leaf(Node):
    """A kernel without parts."""


class SumNode(Node):
    """S1 + S2 and D1 + D2."""

    label = "Sum"

    def __init__(self, left: Node, right: Node):
        self.left, self.right = left, right

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return _add(self.left.smooth(theta, X, Z), self.right.smooth(theta, X, Z))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _add(self.left.diag(theta, X), self.right.diag(theta, X))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _add(self.left.noise(theta, X), self.right.noise(theta, X))

    def products(self) -> list[tuple[Node, ...]]:
        return self.left.products() + self.right.products()


class ProductNode(Node):
    """S1 S2 and diag(S1) D2 + D1 diag(S2) + D1 D2."""

    label = "Product"

    def __init__(self, left: Node, right: Node):
        self.left, self.right = left, right

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        left = self.left.smooth(theta, X, Z)
        return None if left is None else _multiply(left, self.right.smooth(theta, X, Z))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _multiply(self.left.diag(theta, X), self.right.diag(theta, X))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        D1, D2 = self.left.noise(theta, X), self.right.noise(theta, X)
        if D1 is None and D2 is None:
            return None
        s1, s2 = self.left.diag(theta, X), self.right.diag(theta, X)
        return _add(_multiply(s1, D2), _add(_multiply(D1, s2), _multiply(D1, D2)))

    def products(self) -> list[tuple[Node, ...]]:
        expanded = _distribute(self.left.products(), self.right.products())
        return [(self,)] if expanded is None else expanded


class PowerNode(Node):
    """S ** p and (diag(S) + D) ** p - diag(S) ** p for a positive number p."""

    label = "Exponentiation"

    def __init__(self, base: Node, exponent: float):
        self.base, self.exponent = base, exponent

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return _power(self.base.smooth(theta, X, Z), self.exponent)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _power(self.base.diag(theta, X), self.exponent)

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        D, s, p = self.base.noise(theta, X), self.base.diag(theta, X), self.exponent
        if D is None or s is None:
            return _power(D, p)
        if p != int(p) or p > MAX_POWER:
            return _power(s + D, p) - _power(s, p)
        # a^p - b^p = (a - b) (a^(p-1) + a^(p-2) b + ...) keeps a small D's digits.
        p = int(p)
        return D * sum((s + D) ** k * s ** (p - 1 - k) for k in range(p))

    def products(self) -> list[tuple[Node, ...]]:
        if self.exponent != int(self.exponent) or self.exponent > MAX_POWER:
            return [(self,)]
        base = expanded = self.base.products()
        for _ in range(int(self.exponent) - 1):
            expanded = _distribute(expanded, base)
            if expanded is None:
                return [(self,)]
        return expanded


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _multiply(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    return None if left is None or right is None else left * right


def _power(base: Tensor | None, exponent: float) -> Tensor | None:
    if base is None or exponent == 1:
        return base
    if exponent < 1:
        # The derivative of 0 ** p is infinite; entries that underflowed have none to give.
        base = base.masked_fill(base == 0, torch.finfo(base.dtype).tiny)
    return base**exponent


def _distribute(left: list, right: list) -> list | None:
    if len(left) * len(right) > MAX_PRODUCTS:
        return None
    return [a + b for a in left for b in right]
