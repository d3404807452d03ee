"""A kernel at fixed hyperparameters, evaluated and differentiated tile by tile."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import StationaryTerm, TorchKernel


class BoundKernel(ABC):
    """What an operator needs of a kernel whose theta is fixed.

    ``prepare`` does the work that is linear in n once (scaling, centring, squared norms); ``tile``
    and ``tile_grad`` do the work per entry. A prepared table is sliced like an array.
    """

    def __init__(self, kernel: TorchKernel, theta: Float[Tensor, " p"]):
        self.kernel = kernel
        self.theta = theta

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The noise-free diagonal of k(X, X)."""
        return self.kernel.diag(self.theta, X)

    @abstractmethod
    def prepare(self, X: Float[Tensor, "n d"]) -> Any:
        """Rows in the form that ``tile`` takes; O(n d)."""

    @abstractmethod
    def tile(self, left: Any, right: Any) -> Float[Tensor, "a b"]:
        """k(left, right) without noise, a new tensor."""

    @abstractmethod
    def tile_grad(self, left: Any, right: Any, W: Float[Tensor, "a b"]) -> Float[Tensor, " p"]:
        """The gradient in theta of ``sum(W * k(left, right))``, float64; W may be overwritten."""


class AutodiffKernel(BoundKernel):
    """Any kernel, differentiated automatically: a tile's graph lives no longer than the tile."""

    def prepare(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X

    def tile(self, left: Tensor, right: Tensor) -> Float[Tensor, "a b"]:
        with torch.no_grad():
            return self.kernel.cross(self.theta, left, right)

    def tile_grad(self, left: Tensor, right: Tensor, W: Tensor) -> Float[Tensor, " p"]:
        with torch.enable_grad():
            theta = self.theta.detach().clone().requires_grad_(True)
            value = (self.kernel.cross(theta, left, right) * W).sum()
            if not value.requires_grad:
                return torch.zeros_like(theta)
            (grad,) = torch.autograd.grad(value, theta, allow_unused=True)
        return torch.zeros_like(theta) if grad is None else grad.double()


class StationaryRows:
    """Scaled rows of each term with their squared norms folded in.

    For scaled rows a and b, ``[a, |a|^2, 1] . [-2 b, 1, |b|^2] = |a - b|^2``: one matrix product
    gives squared distances without a second pass over the tile.
    """

    __slots__ = ("left", "right", "size")

    def __init__(self, left: list[Tensor], right: list[Tensor], size: int):
        self.left = left
        self.right = right
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, idx: slice | Tensor) -> StationaryRows:
        left = [a[idx] for a in self.left]
        right = [b[idx] for b in self.right]
        size = len(left[0]) if left else len(torch.arange(self.size)[idx])
        return StationaryRows(left, right, size)


# |a|^2 + |b|^2 - 2 a'b is off by about eps |a|^2, which near rows feel as a wrong value and a wrong
# slope. Past this mean |a|^2 single precision forms distances in double and rounds the result: a
# matrix product of a few columns, against exp over the whole tile.
_SINGLE_PRECISION_NORM = 32.0

# Factor on the scaled distance, so that every profile below is a function of a**2 alone.
_SCALE = {"rbf": 0.5, "matern12": 1.0, "matern32": 3.0, "matern52": 5.0, "rq": 0.5}


class StationaryKernel(BoundKernel):
    """Sums of constant x stationary terms in closed form: one product and five passes per tile.

    With a^2 the distance in units of the length scale times the family's factor,
    dk/dlog(l_j) = h(a^2) (a_j)^2 with h = -2 dk/d(a^2); the sum over a tile against weights W
    needs G = W h, its row and column sums, and one product G B, whatever the number of columns.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        terms: Sequence[StationaryTerm],
        center: Float[Tensor, " d"],
        spread: Float[Tensor, " d"],
    ):
        super().__init__(kernel, theta)
        self.terms = terms
        self.center = center
        self.amplitudes = [float(term.amplitude(theta)) for term in terms]
        self.shapes = [float(t.shape.value(theta)) if t.shape is not None else 0.0 for t in terms]
        self.scales = [None if t.length_scale is None else self._scale(t, spread) for t in terms]

    def _scale(self, term: StationaryTerm, spread: Tensor) -> Float[Tensor, " size"]:
        """What rows are multiplied by; its precision is that of the distances."""
        scale = _SCALE[term.family] ** 0.5 / term.length_scale.value(self.theta).to(spread.device)
        # exp(-|a|) has a kink at zero, where an error in |a|^2 is felt as its square root.
        limit = 0.0 if term.family == "matern12" else _SINGLE_PRECISION_NORM
        mean_norm = float((scale.square() * spread.double()).sum())
        return scale if mean_norm > limit else scale.to(self.center.dtype)

    def prepare(self, X: Float[Tensor, "n d"]) -> StationaryRows:
        left, right = [], []
        for scale in self.scales:
            # A constant term has no distance: keep the two columns so that slicing is uniform.
            if scale is None:
                A = X[:, :0]
            else:
                A = (X.to(scale.dtype) - self.center.to(scale.dtype)) * scale
            q = A.square().sum(1, keepdim=True)
            one = torch.ones_like(q)
            left.append(torch.cat([A, q, one], 1))
            right.append(torch.cat([A.mul(-2), one, q], 1))
        return StationaryRows(left, right, len(X))

    def tile(self, left: StationaryRows, right: StationaryRows) -> Float[Tensor, "a b"]:
        total = None
        for t in range(len(self.terms)):
            value = self._values(t, left, right)
            total = value if total is None else total.add_(value)
        if total is None:
            total = self.center.new_zeros(len(left), len(right))
        return total

    def _squared(self, t: int, left: StationaryRows, right: StationaryRows) -> Tensor:
        """Squared scaled distances; rounding may leave them below zero, never truly."""
        squared = torch.mm(left.left[t], right.right[t].T)
        return squared.to(self.center.dtype).clamp_min_(0)

    def _values(self, t: int, left: StationaryRows, right: StationaryRows) -> Tensor:
        family, c = self.terms[t].family, self.amplitudes[t]
        if family == "constant":
            return self.center.new_full((len(left), len(right)), c)
        a2 = self._squared(t, left, right)
        if family == "rbf":
            return a2.neg_().exp_().mul_(c)
        if family == "rq":
            return a2.div_(self.shapes[t]).log1p_().mul_(-self.shapes[t]).exp_().mul_(c)
        if family == "matern52":
            poly = a2.div(3)
            a = a2.sqrt_()
            e = torch.neg(a).exp_().mul_(c)
            return poly.add_(a).add_(1).mul_(e)
        a = a2.sqrt_()
        e = torch.neg(a).exp_()
        if family == "matern32":
            e.addcmul_(e, a)
        return e if c == 1.0 else e.mul_(c)

    def _value_and_slope(
        self, t: int, left: StationaryRows, right: StationaryRows
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """k, h = -2 dk/d(a^2) and, for the rational quadratic, dk/dlog(shape)."""
        family, c = self.terms[t].family, self.amplitudes[t]
        a2 = self._squared(t, left, right)
        if family == "rbf":
            k = a2.neg_().exp_().mul_(c)
            return k, k * 2, None
        if family == "rq":
            alpha = self.shapes[t]
            u = a2.div_(alpha)
            log_base = torch.log1p(u)
            k = log_base.mul(-alpha).exp_().mul_(c)
            base = u + 1
            d_shape = k * alpha * (u / base - log_base)
            return k, k * 2 / base, d_shape
        a = a2.sqrt() if family == "matern52" else a2.sqrt_()
        e = torch.neg(a).exp_().mul_(c)
        if family == "matern12":
            # The slope's pole is cancelled by a vanishing difference: below the resolution of the
            # distance itself both are left out.
            close = a < torch.finfo(a.dtype).eps ** 0.5
            return e, (e / a).masked_fill_(close, 0.0), None
        if family == "matern32":
            return torch.addcmul(e, e, a), e, None
        slope = torch.addcmul(e, e, a).div_(3)
        return slope.mul(3).addcmul_(e, a2, value=1 / 3), slope, None

    def tile_grad(
        self, left: StationaryRows, right: StationaryRows, W: Float[Tensor, "a b"]
    ) -> Float[Tensor, " p"]:
        grad = torch.zeros(len(self.theta), dtype=torch.float64, device=W.device)
        last = len(self.terms) - 1
        for t, term in enumerate(self.terms):
            if term.family == "constant":
                k, slope, d_shape = None, None, None
                amplitude = W.sum(dtype=torch.float64) * self.amplitudes[t]
            else:
                k, slope, d_shape = self._value_and_slope(t, left, right)
                amplitude = _dot(W, k)
            for slot in term.constants:
                if slot.index is not None:
                    grad[slot.index] += amplitude
            if d_shape is not None and term.shape.index is not None:
                grad[term.shape.index] += _dot(W, d_shape)
            if slope is not None and term.length_scale.index is not None:
                G = slope.mul_(W) if t < last else W.mul_(slope)
                per_column = _squared_difference_sums(left.left[t], right.left[t], G)
                size = term.length_scale.index.stop - term.length_scale.index.start
                grad[term.length_scale.index] += (
                    per_column if size == len(per_column) else per_column.sum()
                )
        return grad


def _dot(A: Tensor, B: Tensor) -> Tensor:
    return torch.dot(A.reshape(-1), B.reshape(-1)).double()


def _squared_difference_sums(A: Tensor, B: Tensor, G: Tensor) -> Float[Tensor, " d"]:
    """sum_ij G_ij (A_ik - B_jk)^2 for every column k; rows carry [values, norm, 1]."""
    d = A.shape[1] - 2
    G = G.to(B.dtype)
    GB = torch.mm(G, B)
    A, B, row_sums = A[:, :d], B[:, :d], GB[:, d + 1]
    col_sums = G.sum(0)
    inner = (A * GB[:, :d]).sum(0, dtype=torch.float64)
    outer = torch.mv(A.square().T, row_sums) + torch.mv(B.square().T, col_sums)
    return outer.double() - 2 * inner


def bind(kernel: TorchKernel, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> BoundKernel:
    """The fastest bound form that the kernel allows.

    Parameters
    ----------
    kernel : TorchKernel
        A compiled kernel.
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    X : Tensor of shape (n, d)
        The training rows: their mean is subtracted from every row before squared norms are formed,
        and their dtype and device are those of the products.
    """
    terms = kernel.stationary_terms()
    if terms is None:
        return AutodiffKernel(kernel, theta)
    center = X.mean(0)
    return StationaryKernel(kernel, theta, terms, center, (X - center).square().mean(0))
