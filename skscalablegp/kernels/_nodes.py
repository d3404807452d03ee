"""The algebra of compiled kernels: every node is the sum of a smooth and a diagonal part.

A node stands for ``k(X, X) = S(X, X) + diag(D(X))``, where S is an ordinary covariance function
and D is the contribution of white noise to the diagonal. Methods return None for a part that is
always zero, and may return axes of length one for a part that is constant.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ._frequencies import Draws, Frequencies, SpreadFrequencies, no_spectral_density
from ._slots import Slot

# Above this number of products, the expanded form costs more than the kernel itself.
MAX_PRODUCTS = 64
MAX_POWER = 16


class NotExportable(TypeError):
    """A model has a part that is not made of torch operations alone and cannot be exported."""


class Node(ABC):
    """A compiled kernel expression, with the properties that other code depends on.

    Attributes
    ----------
    label : str
        The scikit-learn kernel's class name, for messages.
    parts : tuple of Node
        The operands of a sum, product or power; empty for a leaf.
    stationary : bool
        Whether the kernel, noise included, depends on differences of rows only.
    separable : bool
        Whether it is a product over columns of functions of one column's difference each.
    profile : Profile or None
        The function of the scaled distance, where the kernel is one; used for tiles in closed form.
    columns : tuple of int or None
        The columns on which it depends; None means all.
    codes : bool
        Whether it compares categories, whose codes may be neither scaled, shifted nor interpolated.
    compiled : bool
        Whether it is computed by torch functions of theta and the rows.
    """

    label: str
    parts: tuple[Node, ...] = ()
    separable: bool = False
    profile: Any = None
    columns: tuple[int, ...] | None = None
    codes: bool = False
    compiled: bool = True

    @property
    def stationary(self) -> bool:
        return all(part.stationary for part in self.parts)

    def anchored(self, n_columns: int) -> frozenset[int]:
        """The columns that may not be shifted: the kernel depends on more than differences."""
        if self.parts:
            return frozenset().union(*(part.anchored(n_columns) for part in self.parts))
        return frozenset() if self.stationary and not self.codes else frozenset(range(n_columns))

    def coded(self, n_columns: int) -> frozenset[int]:
        """The columns that hold codes of categories."""
        if self.parts:
            return frozenset().union(*(part.coded(n_columns) for part in self.parts))
        return frozenset(range(n_columns)) if self.codes else frozenset()

    def on(self, columns: tuple[int, ...]) -> Node:
        """The same kernel, applied to these columns of rows that have more."""
        return OnColumns(self, columns)

    def alone(self, column: int) -> Node:
        """The same kernel of rows whose entries in all other columns count as zero."""
        if not self.parts:
            return ZeroElsewhere(self, column)
        other = copy(self)
        other.parts = tuple(part.alone(column) for part in self.parts)
        return other

    def plain(self) -> Node:
        """The same kernel in torch operations that can be traced, exported and differentiated in X.

        Its `smooth`, `diag` and `noise` also take batches of rows, (..., n, d). Here for leaves
        whose methods are of this kind, and for what is composed of such leaves.

        Raises
        ------
        NotExportable
            If there is no such form.
        """
        other = copy(self)
        other.parts = tuple(part.plain() for part in self.parts)
        return other

    @abstractmethod
    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        """S(X, Z), broadcastable to (n, m)."""

    @abstractmethod
    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        """The diagonal of S(X, X), broadcastable to (n,), in O(n d)."""

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        """D(X), broadcastable to (n,)."""
        return None

    def products(self) -> list[Term]:
        """S as a sum of products of leaves; a node that cannot be expanded counts as a leaf."""
        return [Term((), (self,))]

    def leaves(self) -> Iterator[Node]:
        """All nodes of the expression that have no parts."""
        if not self.parts:
            yield self
        for part in self.parts:
            yield from part.leaves()

    def frequencies(self, draws: Draws) -> Frequencies:
        """Frequencies from the spectral density of S, which is 1 at zero distance.

        Raises
        ------
        NoSpectralDensity
            If the kernel has no sampler. There is no approximate substitute.
        """
        raise no_spectral_density(self.label, "has no spectral density to draw from")

    def n_exact_features(self, n_columns: int) -> int:
        """Number of `exact_features`; 0 for a kernel that has none."""
        return 0

    def exact_features(
        self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]
    ) -> Float[Tensor, "n q"]:
        """A finite map phi with phi(X) phi(Z)' = S(X, Z), where there is one."""
        raise NotImplementedError(f"{self.label} has no finite feature map.")


@dataclass(frozen=True)
class Term:
    """Constants times kernels: one summand of an expanded kernel.

    Attributes
    ----------
    constants : tuple of Slot
        The factors in front, to be multiplied; empty for 1.
    leaves : tuple of Node
        The kernels, to be multiplied; empty for the function 1.
    """

    constants: tuple[Slot, ...]
    leaves: tuple[Node, ...]

    @property
    def label(self) -> str:
        """Its name in messages."""
        names = ["ConstantKernel"] * len(self.constants) + [leaf.label for leaf in self.leaves]
        return " * ".join(names)

    def amplitude(self, theta: Float[Tensor, " p"]) -> Float64[Tensor, ""]:
        """The product of the constants, float64."""
        product = torch.ones((), dtype=torch.float64, device=theta.device)
        for slot in self.constants:
            product = product * slot.value(theta).squeeze(0)
        return product


class OnColumns(Node):
    """A kernel that is applied to some columns of the rows.

    Its products are those of the inner kernel, with every leaf applied to these columns. Closed
    forms and spectral densities are kept.

    Parameters
    ----------
    part : Node
        The inner kernel, compiled for the number of chosen columns.
    columns : tuple of int
        The chosen columns, in the order in which the inner kernel takes them.
    """

    columns: tuple[int, ...]

    def __init__(self, part: Node, columns: tuple[int, ...]):
        self.part, self.columns = part, columns
        self.parts = part.parts and (part,)
        self.label, self.codes = part.label, part.codes
        # Any function of one difference is a product over its only column.
        self.separable = part.separable or len(columns) == 1

    @property
    def stationary(self) -> bool:
        return self.part.stationary

    def anchored(self, n_columns: int) -> frozenset[int]:
        return frozenset(self.columns[j] for j in self.part.anchored(len(self.columns)))

    def coded(self, n_columns: int) -> frozenset[int]:
        return frozenset(self.columns[j] for j in self.part.coded(len(self.columns)))

    def on(self, columns: tuple[int, ...]) -> Node:
        return self.part.on(tuple(columns[j] for j in self.columns))

    def alone(self, column: int) -> Node:
        return ZeroElsewhere(self, column)

    def plain(self) -> Node:
        return OnColumns(self.part.plain(), self.columns)

    def _of(self, X: Tensor) -> Tensor:
        return X[..., list(self.columns)]

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return self.part.smooth(theta, self._of(X), self._of(Z))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.diag(theta, self._of(X))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.noise(theta, self._of(X))

    @cached_property
    def _products(self) -> list[Term]:
        # Cached, because operators recognise a kernel shared by two products by its identity.
        terms = self.part.products()
        made: dict[Node, Node] = {}
        if any(leaf is self.part for term in terms for leaf in term.leaves):
            return [Term((), (self,))]
        for leaf in (leaf for term in terms for leaf in term.leaves):
            made.setdefault(leaf, leaf.on(self.columns))
        return [Term(t.constants, tuple(made[leaf] for leaf in t.leaves)) for t in terms]

    def products(self) -> list[Term]:
        return self._products

    def frequencies(self, draws: Draws) -> Frequencies:
        inner = self.part.frequencies(replace(draws, n_columns=len(self.columns)))
        return SpreadFrequencies(inner, self.columns, draws.n_columns)

    def n_exact_features(self, n_columns: int) -> int:
        return self.part.n_exact_features(len(self.columns))

    def exact_features(self, theta: Tensor, X: Tensor) -> Tensor:
        return self.part.exact_features(theta, self._of(X))


class ZeroElsewhere(Node):
    """A kernel of rows whose entries in all columns but one are replaced by zero."""

    def __init__(self, part: Node, column: int):
        self.part, self.column, self.label = part, column, part.label

    @property
    def stationary(self) -> bool:
        return self.part.stationary

    def _of(self, X: Tensor) -> Tensor:
        kept = torch.zeros_like(X)
        kept[..., self.column] = X[..., self.column]
        return kept

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return self.part.smooth(theta, self._of(X), self._of(Z))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.diag(theta, self._of(X))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.noise(theta, self._of(X))


class SumNode(Node):
    """S1 + S2 and D1 + D2."""

    label = "Sum"

    def __init__(self, left: Node, right: Node):
        self.parts = left, right

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return _add(*(part.smooth(theta, X, Z) for part in self.parts))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _add(*(part.diag(theta, X) for part in self.parts))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _add(*(part.noise(theta, X) for part in self.parts))

    def products(self) -> list[Term]:
        return [term for part in self.parts for term in part.products()]


class SumOverColumns(Node):
    """The sum of one kernel over several columns, each of them alone.

    Parameters
    ----------
    part : Node
        The kernel of one column, whose other entries are zero.
    single : list of int
        The columns.
    """

    label = "Sum over columns"

    def __init__(self, part: Node, single: list[int]):
        self.part, self.parts, self.single = part, (part,), single
        self.summands = {column: part.alone(column) for column in single}

    def plain(self) -> Node:
        return SumOverColumns(self.part.plain(), self.single)

    def alone(self, column: int) -> Node:
        return ZeroElsewhere(self, column)

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        total = None
        for summand in self.summands.values():
            total = _add(total, summand.smooth(theta, X, Z))
        return total

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        value = self.part.diag(theta, torch.zeros_like(X))
        return None if value is None else len(self.single) * value

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.noise(theta, X)


class ProductNode(Node):
    """S1 S2 and diag(S1) D2 + D1 diag(S2) + D1 D2."""

    label = "Product"

    def __init__(self, left: Node, right: Node):
        self.parts = left, right

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        left, right = self.parts
        values = left.smooth(theta, X, Z)
        return None if values is None else _multiply(values, right.smooth(theta, X, Z))

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _multiply(*(part.diag(theta, X) for part in self.parts))

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        D1, D2 = (part.noise(theta, X) for part in self.parts)
        if D1 is None and D2 is None:
            return None
        s1, s2 = (part.diag(theta, X) for part in self.parts)
        return _add(_multiply(s1, D2), _add(_multiply(D1, s2), _multiply(D1, D2)))

    def products(self) -> list[Term]:
        return _expanded(self, self.parts)


class PowerNode(Node):
    """S ** p and (diag(S) + D) ** p - diag(S) ** p for a positive number p."""

    label = "Exponentiation"

    def __init__(self, base: Node, exponent: float):
        self.parts, self.exponent = (base,), exponent

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        return _power(self.parts[0].smooth(theta, X, Z), self.exponent)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return _power(self.parts[0].diag(theta, X), self.exponent)

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        (base,), p = self.parts, self.exponent
        D, s = base.noise(theta, X), base.diag(theta, X)
        if D is None or s is None:
            return _power(D, p)
        if p != int(p) or p > MAX_POWER:
            return _raised(s + D, p) - _raised(s, p)
        # a^p - b^p = (a - b) (a^(p-1) + a^(p-2) b + ...) is accurate also for a small D.
        p = int(p)
        return D * sum((s + D) ** k * s ** (p - 1 - k) for k in range(p))

    def products(self) -> list[Term]:
        if self.exponent != int(self.exponent) or self.exponent > MAX_POWER:
            return super().products()
        return _expanded(self, self.parts * int(self.exponent))


def _add(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _multiply(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    return None if left is None or right is None else left * right


def _power(base: Tensor | None, exponent: float) -> Tensor | None:
    return None if base is None else _raised(base, exponent)


def _raised(base: Tensor, exponent: float) -> Tensor:
    if exponent == 1:
        return base
    if exponent < 1:
        # The derivative of 0 ** p is infinite, and times zero it is NaN: replace zeros.
        base = base.masked_fill(base == 0, torch.finfo(base.dtype).tiny)
    return base**exponent


def _expanded(node: Node, factors: tuple[Node, ...]) -> list[Term]:
    """The product of some factors, distributed over their sums while the terms are few."""
    terms = [Term((), ())]
    for factor in factors:
        parts = factor.products()
        if len(terms) * len(parts) > MAX_PRODUCTS:
            return [Term((), (node,))]
        terms = [Term(a.constants + b.constants, a.leaves + b.leaves) for a in terms for b in parts]
    return terms
