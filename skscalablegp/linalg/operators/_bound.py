"""A kernel at fixed hyperparameters, evaluated and differentiated in tiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import reduce
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ..._devices import has_float64, sum_dtype
from ...kernels import Stationary, Term, TorchKernel
from ._base import slope


class BoundKernel(ABC):
    """A kernel with fixed theta, in the form that operators use.

    ``prepare`` does the work that is linear in n once (scaling, centring, squared norms), while
    ``tile`` and ``tile_grad`` do the work for each entry. Prepared rows are sliced like an array.
    """

    def __init__(self, kernel: TorchKernel, theta: Float[Tensor, " p"]):
        self.kernel = kernel
        self.theta = theta

    def diag(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        """The diagonal of k(X, X) without noise."""
        return self.kernel.diag(self.theta, X)

    @abstractmethod
    def prepare(self, X: Float[Tensor, "n d"]) -> Any:
        """Rows in the form that ``tile`` expects; O(n d)."""

    @abstractmethod
    def tile(self, left: Any, right: Any) -> Float[Tensor, "a b"]:
        """k(left, right) without noise, as a new tensor."""

    @abstractmethod
    def tile_grad(self, left: Any, right: Any, W: Float[Tensor, "a b"]) -> Float[Tensor, " p"]:
        """The gradient in theta of ``sum(W * k(left, right))``, float64; may overwrite W."""


class AutodiffKernel(BoundKernel):
    """Any kernel, differentiated automatically, with one small graph for each tile."""

    def prepare(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X

    def tile(self, left: Tensor, right: Tensor) -> Float[Tensor, "a b"]:
        with torch.no_grad():
            return self.kernel.cross(self.theta, left, right)

    def tile_grad(self, left: Tensor, right: Tensor, W: Tensor) -> Float[Tensor, " p"]:
        with torch.enable_grad():
            theta = self.theta.detach().clone().requires_grad_(True)
            total = (self.kernel.cross(theta, left, right) * W).sum()
            return slope(total, theta).to(sum_dtype(W.device))


class StationaryRows:
    """The scaled rows of each kernel, extended by their squared norms.

    For scaled rows a and b, ``[a, |a|^2, 1] . [-2 b, 1, |b|^2] = |a - b|^2``, so that one matrix
    product gives all squared distances of a tile.
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


# |a|^2 + |b|^2 - 2 a'b has an error of about eps |a|^2, which spoils values and slopes for rows
# that are close to each other. If the mean |a|^2 exceeds this limit, distances are computed in
# float64 and rounded to float32. That costs a product of few columns, less than exp over the tile.
_SINGLE_PRECISION_NORM = 32.0

# Scaled coordinates are clipped to this value. Every profile is zero there, and the squares are
# finite in float32.
_FAR = 1e15

# Products of more kernels are faster by autograd, which computes powers of a kernel as powers.
_MAX_FACTORS = 3


class StationaryKernel(BoundKernel):
    """Sums of products of constants and profiles of scaled distances, in closed form.

    Let u = a^2 be the squared distance in units of the length scale, times the factor of the
    profile. Then dk/dlog(l_j) = h(u) (a_j)^2 with the slope h = -2 dk/du. Its sum over a tile with
    weights W needs G = W h, the row and column sums of G, and one product G B, for any number of
    columns. If the kernel is one factor of a product, W is multiplied by the values of the other
    factors. A tile costs one matrix product and about five passes for each kernel.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        terms: Sequence[Term],
        center: Float[Tensor, " d"],
        spread: Float[Tensor, " d"],
    ):
        super().__init__(kernel, theta)
        self.center = center
        self._precise = has_float64(center.device)
        leaves = dict.fromkeys(leaf for term in terms for leaf in term.leaves)
        self.leaves = cast(list[Stationary], list(leaves))
        # Without double precision, distances that need it are computed from differences.
        far = [self._needs_precision(leaf, spread) for leaf in self.leaves]
        self.by_differences = [one and not self._precise for one in far]
        self.scales = [self._scale(*of_leaf) for of_leaf in zip(self.leaves, far, strict=True)]
        self.shapes = [[float(s.value(theta)) for s in leaf.shape] for leaf in self.leaves]
        # The constants of each term, their product, and the positions of its leaves.
        place = {leaf: i for i, leaf in enumerate(leaves)}
        self.terms = [
            (t.constants, float(t.amplitude(theta)), [place[leaf] for leaf in t.leaves])
            for t in terms
        ]

    def _scale(self, leaf: Stationary, far: bool) -> Float[Tensor, " size"]:
        """The factors on the columns of a row, in the precision in which distances are computed."""
        scale = leaf.profile.factor**0.5 / leaf.length_scale.value(self.theta)
        dtype = torch.float64 if far and self._precise else self.center.dtype
        return scale.to(self.center.device, dtype, non_blocking=True)

    def _needs_precision(self, leaf: Stationary, spread: Tensor) -> bool:
        """Whether products of rows in single precision are too rough for distances."""
        if self.center.dtype == torch.float64:
            return True
        scale = leaf.profile.factor**0.5 / leaf.length_scale.value(self.theta)
        # Near a kink at zero, an error in |a|^2 changes the value by the root of that error. Where
        # the user lets torch round the factors of products (TF32, bfloat16), errors are larger.
        rounded = torch.get_float32_matmul_precision() != "highest"
        limit = 0.0 if leaf.profile.kink or rounded else _SINGLE_PRECISION_NORM
        seen = spread[list(leaf.seen_columns(len(spread)))].double()
        return float((scale.square() * seen).sum()) > limit

    def prepare(self, X: Float[Tensor, "n d"]) -> StationaryRows:
        left, right = [], []
        for leaf, scale in zip(self.leaves, self.scales, strict=True):
            center = self.center if leaf.columns is None else self.center[list(leaf.columns)]
            A = (leaf.seen(X.to(scale.dtype)) - center.to(scale.dtype)) * scale
            A = A.clamp_(-_FAR, _FAR)
            q = A.square().sum(1, keepdim=True)
            one = torch.ones_like(q)
            left.append(torch.cat([A, q, one], 1))
            right.append(torch.cat([A.mul(-2), one, q], 1))
        return StationaryRows(left, right, len(X))

    def tile(self, left: StationaryRows, right: StationaryRows) -> Float[Tensor, "a b"]:
        total: Tensor | None = None
        for _, amplitude, places in self.terms:
            value = None
            for i in places:
                apart = self._apart(i, left, right)
                factor = self.leaves[i].profile.value(apart, *self.shapes[i])
                value = factor if value is None else value.mul_(factor)
            if value is None:
                value = self.center.new_full((len(left), len(right)), amplitude)
            elif amplitude != 1.0:
                value.mul_(amplitude)
            total = value if total is None else total.add_(value)
        return self.center.new_zeros(len(left), len(right)) if total is None else total

    def _apart(self, i: int, left: StationaryRows, right: StationaryRows) -> Tensor:
        """The argument of the profile: scaled distances for one with a kink, else their squares."""
        if self.by_differences[i]:
            a, b = left.left[i][:, :-2], right.left[i][:, :-2]
            apart = torch.cdist(a, b, compute_mode="donot_use_mm_for_euclid_dist")
            return apart if self.leaves[i].profile.kink else apart.square_()
        squared = torch.mm(left.left[i], right.right[i].T)
        # Negative values are rounding errors.
        squared = squared.to(self.center.dtype).clamp_min_(0)
        return squared.sqrt_() if self.leaves[i].profile.kink else squared

    def _value_and_slope(self, i: int, left: StationaryRows, right: StationaryRows) -> tuple:
        """k, -2 dk/du and the derivatives in the shape parameters."""
        a, profile = self._apart(i, left, right), self.leaves[i].profile
        if not profile.kink:
            k, slope, *by_shape = profile.value_and_slope(a, *self.shapes[i])
            return k, slope, by_shape
        k, slope, *by_shape = profile.value_and_slope(a.clone(), *self.shapes[i])
        # -2 dk/du = -dk/da / a has a pole at 0, but is multiplied by a difference that vanishes
        # there. Distances below their own rounding error contribute nothing.
        slope.div_(a).masked_fill_(a < torch.finfo(a.dtype).eps ** 0.5, 0.0)
        return k, slope, by_shape

    def tile_grad(
        self, left: StationaryRows, right: StationaryRows, W: Tensor
    ) -> Float[Tensor, " p"]:
        exact = sum_dtype(W.device)
        grad = torch.zeros(len(self.theta), dtype=exact, device=W.device)
        for constants, amplitude, places in self.terms:
            parts = [self._value_and_slope(i, left, right) for i in places]
            free = [slot.index for slot in constants if slot.index is not None]
            if free:
                value = _dot(W, _product([k for k, _, _ in parts])) if parts else W.sum(dtype=exact)
                for index in free:
                    grad[index] += amplitude * value
            for f, i in enumerate(places):
                leaf, (_, slope, by_shape) = self.leaves[i], parts[f]
                others = [k for k, _, _ in parts[:f] + parts[f + 1 :]]
                weights = W * _product(others) if others else W
                for slot, d in zip(leaf.shape, by_shape, strict=True):
                    if slot.index is not None:
                        grad[slot.index] += amplitude * _dot(weights, d)
                index = leaf.length_scale.index
                if index is not None:
                    G = slope.mul_(weights)
                    if left is right:
                        # A row is at distance zero from itself, but the sums below would find
                        # the rounding error of its square, which is large for a far row.
                        G.diagonal().zero_()
                    of = _by_differences if self.by_differences[i] else _squared_difference_sums
                    sums = of(left.left[i], right.left[i], G)
                    size = index.stop - index.start
                    grad[index] += amplitude * (sums if size == len(sums) else sums.sum())
        return grad


def _product(tiles: list[Tensor]) -> Tensor:
    """The product of the tiles, as a new tensor unless there is only one."""
    return reduce(torch.mul, tiles)


def _dot(A: Tensor, B: Tensor) -> Tensor:
    if not has_float64(A.device):
        return (A * B).sum(0).sum()
    return torch.dot(A.reshape(-1), B.reshape(-1)).double()


def _squared_difference_sums(A: Tensor, B: Tensor, G: Tensor) -> Float[Tensor, " d"]:
    """sum_ij G_ij (A_ik - B_jk)^2 for every column k; rows are [values, norm, 1]."""
    d = A.shape[1] - 2
    G = G.to(B.dtype)
    GB = torch.mm(G, B)
    A, B, row_sums = A[:, :d], B[:, :d], GB[:, d + 1]
    col_sums = G.sum(0)
    inner = (A * GB[:, :d]).sum(0, dtype=sum_dtype(A.device))
    outer = torch.mv(A.square().T, row_sums) + torch.mv(B.square().T, col_sums)
    return outer.to(inner.dtype) - 2 * inner


def _by_differences(A: Tensor, B: Tensor, G: Tensor) -> Float[Tensor, " d"]:
    """The same without subtraction of large numbers; a pass over the tile for each column."""
    columns = range(A.shape[1] - 2)
    parts = [((A[:, k, None] - B[None, :, k]).square_() * G).sum(0).sum() for k in columns]
    return torch.stack(parts)


def bind(kernel: TorchKernel, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> BoundKernel:
    """The fastest form of a kernel at these hyperparameters.

    Parameters
    ----------
    kernel : TorchKernel
        A compiled kernel.
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    X : Tensor of shape (n, d)
        The training rows. Their mean is subtracted from all rows before squared norms are computed,
        and their dtype and device are those of the tiles.
    """
    terms = kernel.stationary_terms()
    if terms is None or any(len(term.leaves) > _MAX_FACTORS for term in terms):
        return AutodiffKernel(kernel, theta)
    # Both are zero if there are no rows, as for a prior.
    center = X.mean(0).nan_to_num()
    spread = (X - center).square().mean(0).nan_to_num().cpu()
    return StationaryKernel(kernel, theta, terms, center, spread)
