"""Distances between rows that are accurate near zero."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

EXACT = "donot_use_mm_for_euclid_dist"
# Up to this number of columns, summing squared differences costs no more than the product form.
EXACT_COLUMNS = 8


def centre(X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor]:
    """Subtract the mean of Z from both sets of rows; call it before they are rescaled.

    Distances do not change, and later rounding errors are relative to the spread of the rows
    instead of their mean.
    """
    if len(Z) == 0:
        return X, Z
    shift = Z.detach().mean(0)
    return X - shift, Z - shift


def distance(X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """|x - z|, computed from differences in both passes; the derivative at 0 is 0.

    Use it for functions that are not differentiable at zero distance, such as exp(-|x - z|). There
    the square root turns an error of 1e-16 in ``|x|^2 + |z|^2 - 2 x'z`` into one of 1e-8, and the
    matrix products of `squared_distance`'s backward pass would be divided by tiny distances.
    """
    return torch.cdist(X, Z, compute_mode=EXACT)


def squared_distance(X: Float[Tensor, "n d"], Z: Float[Tensor, "m d"]) -> Float[Tensor, "n m"]:
    """|x - z|^2 of centred rows, for smooth functions of it. O(n m d).

    In float64, squared differences are summed, because the error of the product form, 1e-16 |x|^2,
    matters for short length scales. In float32, more than a few columns use the product form. The
    backward pass is two matrix products, about ten times cheaper than that of torch.cdist.
    """
    return _SquaredDistance.apply(X, Z)


class _SquaredDistance(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, X: Tensor, Z: Tensor) -> Tensor:
        ctx.save_for_backward(X, Z)
        if X.dtype == torch.float64 or X.shape[1] <= EXACT_COLUMNS:
            return torch.cdist(X, Z, compute_mode=EXACT).square_()
        norms = X.square().sum(1)[:, None] + Z.square().sum(1)
        return norms.addmm_(X, Z.T, alpha=-2).clamp_min_(0)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None]:
        X, Z = ctx.saved_tensors
        grad_X = grad_Z = None
        if ctx.needs_input_grad[0]:
            grad_X = 2 * (grad.sum(1)[:, None] * X - grad @ Z)
        if ctx.needs_input_grad[1]:
            grad_Z = 2 * (grad.sum(0)[:, None] * Z - grad.T @ X)
        return grad_X, grad_Z
