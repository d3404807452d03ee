"""Kernel matrices of many small sets of rows, computed together."""

from __future__ import annotations

from functools import reduce
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import NotExportable, Stationary, Term, TorchKernel

# Scaled distances are clipped to this, where every profile is zero.
_FAR = 1e15
# Mean squared scaled distance above which distances are computed in double precision.
_WIDE = 32.0
# The same, above which double precision loses the distances between the other rows.
_LOST = 1e6
# Rows of a set whose covariances are computed at a time, if only one triangle is needed.
_STRIP = 64


def kernel_of_sets(
    kernel: TorchKernel, theta: Float[Tensor, " p"], Z: Float[Tensor, "b k d"], dtype: torch.dtype
) -> Float[Tensor, "b k k"]:
    """k(Z_i, Z_i) without noise for each of b sets of k rows, differentiable in theta; O(b k^2 d).

    The last row of each set is subtracted in double precision. Distances between close rows then
    keep their digits in single precision, and a matrix product is enough to compute them.
    """
    terms = kernel.stationary_terms()
    if terms is None:
        return _one_by_one(kernel, theta, Z, Z).to(dtype)
    b, k = Z.shape[:2]
    values: dict[Any, Tensor] = {}
    for leaf in _leaves(terms):
        A = _scaled(leaf, theta, Z, dtype)
        u = _SquaredDistances.apply(A, dtype).reshape(b * k, k)
        values[leaf] = leaf.at(theta, _root(u) if leaf.profile.kink else u)
    if not terms:
        return Z.new_zeros(b, k, k, dtype=dtype)
    # Writing over a matrix is faster than the arithmetic that fills a new one.
    once = len(terms) == 1 == len(terms[0].leaves)
    reuse = once and not (torch.is_grad_enabled() and theta.requires_grad)
    total: Any = None
    for term in terms:
        value = term.amplitude(theta).to(Z.device, dtype)
        for leaf in term.leaves:
            value = values[leaf].mul_(value) if reuse else values[leaf] * value
        total = value if total is None else total + value
    return total.expand(b * k, k).reshape(b, k, k)


def fill_upper(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    Z: Float[Tensor, "b k d"],
    out: Float[Tensor, "b l l"],
) -> None:
    """Write k(Z_i, Z_i) at and above the diagonal to the first rows and columns of `out`.

    Strips of rows stay in the cache of a core, and about half of the entries are computed. What is
    below the diagonal is undefined. Not differentiable; otherwise as `kernel_of_sets`.
    """
    terms, (b, k) = kernel.stationary_terms(), Z.shape[:2]
    if not terms:
        out[:, :k, :k] = kernel_of_sets(kernel, theta, Z, out.dtype)
        return
    points = {leaf: _products(_scaled(leaf, theta, Z, out.dtype)) for leaf in _leaves(terms)}
    weights = [float(term.amplitude(theta)) for term in terms]
    for start in range(0, k, _STRIP):
        some = slice(start, min(k, start + _STRIP))
        values: dict[Any, Tensor] = {}
        for leaf, (left, right) in points.items():
            u = torch.bmm(left[:, some], right[:, start:].mT).to(out.dtype).clamp_min_(0)
            u.diagonal(dim1=1, dim2=2).zero_()
            u = u.flatten(0, 1)
            values[leaf] = leaf.at(theta, u.sqrt_() if leaf.profile.kink else u)
        part = out[:, some, start:k]
        for number, (term, weight) in enumerate(zip(terms, weights, strict=True)):
            if not term.leaves:
                value = out.new_full((1, 1, 1), weight)
            else:
                first, *others = term.leaves
                value = reduce(torch.mul, (values[leaf] for leaf in others), values[first])
                value = value.unflatten(0, (b, -1))
            # The last multiplication writes its result to where it belongs.
            if number:
                part.add_(value, alpha=weight if term.leaves else 1.0)
            elif term.leaves:
                torch.mul(value, weight, out=part)
            else:
                part.copy_(value.expand_as(part))


def _scaled(
    leaf: Stationary, theta: Float[Tensor, " p"], Z: Float[Tensor, "b k d"], dtype: torch.dtype
) -> Float[Tensor, "b k c"]:
    """Rows in units of the length scales, near zero; in double precision where `dtype` is few."""
    b, k = Z.shape[:2]
    rows = leaf.seen(Z.reshape(b * k, -1)).reshape(b, k, -1)
    scale = leaf.profile.factor**0.5 / leaf.length_scale.value_like(theta, Z)
    A = _from_near(rows, scale).clamp(-_FAR, _FAR)
    narrow = not leaf.profile.kink and A.detach().square().sum(2).mean() <= _WIDE
    return A.to(dtype) if narrow else A


def _products(A: Float[Tensor, "b k c"]) -> tuple[Tensor, Tensor]:
    """Two matrices whose products are the squared distances within each set."""
    q = A.square().sum(2, keepdim=True)
    one = torch.ones_like(q)
    return torch.cat([A, q, one], 2), torch.cat([-2 * A, one, q], 2)


def _from_near(rows: Float[Tensor, "b k d"], scale: Tensor) -> Float[Tensor, "b k d"]:
    """Scaled rows, measured from the last of each set, or from their median if that is far."""
    A = (rows - rows[:, -1:]) * scale
    far = A.detach().square().mean((1, 2)) > _LOST
    if not far.any():
        return A
    # Relative to a far row, the distances between all other rows would be lost to rounding.
    middle = rows.median(1, keepdim=True).values
    return (rows - torch.where(far[:, None, None], middle, rows[:, -1:])) * scale


class _SquaredDistances(torch.autograd.Function):
    """|a_i - a_j|^2 within each set of rows, which lie near zero; returned in `dtype`."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(A)
        left, right = _products(A)
        u = torch.bmm(left, right.mT)
        u = u.to(dtype).clamp_min_(0)
        u.diagonal(dim1=1, dim2=2).zero_()
        return u

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (A,) = ctx.saved_tensors
        grad = grad.to(A)
        sums = (grad.sum(1) + grad.sum(2))[:, :, None]
        return 2 * (sums * A - grad @ A - grad.mT @ A), None


def _root(u: Tensor) -> Tensor:
    """The square root, with a derivative of 0 at 0."""
    zero = u == 0
    return u.masked_fill(zero, 1.0).sqrt().masked_fill(zero, 0.0)


def kernel_between_sets(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "s a d"],
    Z: Float[Tensor, "s b d"],
) -> Float[Tensor, "s a b"]:
    """k(X_i, Z_i) without noise for each of s pairs of sets; not differentiable. O(s a b d)."""
    terms = kernel.stationary_terms()
    if terms is None:
        return _one_by_one(kernel, theta, X, Z)
    values: dict[Any, Tensor] = {}
    for leaf in _leaves(terms):
        left, right = leaf.seen(X), leaf.seen(Z)
        scale = leaf.profile.factor**0.5 / leaf.length_scale.value_like(theta, Z)
        u = _squared_distances(left, right, scale).flatten(0, 1)
        values[leaf] = leaf.at(theta, u.sqrt_() if leaf.profile.kink else u)
    total = X.new_zeros(len(X) * X.shape[1], Z.shape[1])
    for term in terms:
        value = term.amplitude(theta).to(X)
        for leaf in term.leaves:
            value = values[leaf] * value
        total = total + value
    return total.unflatten(0, X.shape[:2])


def _squared_distances(
    left: Float[Tensor, "s a c"], right: Float[Tensor, "s b c"], scale: Tensor
) -> Float[Tensor, "s a b"]:
    """Between the rows of pairs of sets, in units of the length scales."""
    if left.shape[1] == 1:  # Differences are faster than products with one row.
        return (right - left).mul_(scale).clamp_(-_FAR, _FAR).square_().sum(2)[:, None]
    middle = right.mean(1, keepdim=True)
    A, B = (((rows - middle) * scale).clamp(-_FAR, _FAR) for rows in (left, right))
    u = A.square().sum(2)[:, :, None] + B.square().sum(2)[:, None] - 2 * A @ B.mT
    return u.clamp_min_(0)


def _leaves(terms: list[Term]) -> list[Stationary]:
    """The leaves of terms in closed form, each once."""
    return [cast(Stationary, leaf) for leaf in dict.fromkeys(v for t in terms for v in t.leaves)]


def _one_by_one(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "s a d"],
    Z: Float[Tensor, "s b d"],
) -> Float[Tensor, "s a b"]:
    """The same for kernels of another kind, together if their operations take batches."""
    try:
        value = kernel.node.plain().smooth(theta.to(X.device), X, Z)
    except NotExportable:
        pairs = zip(X, Z, strict=True)
        return torch.stack([kernel.cross(theta, left, right) for left, right in pairs])
    shape = (*X.shape[:2], Z.shape[1])
    return X.new_zeros(shape) if value is None else value.expand(shape)
