"""exp(-2 sin^2(pi |x - z| / periodicity) / length_scale^2)."""

from __future__ import annotations

import math
from copy import copy

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._distances import distance
from ._nodes import Node
from ._registry import Layout, register_kernel
from ._slots import Slot


class Periodic(Node):
    """A periodic function of the distance; the length scale does not divide the distance."""

    label = "ExpSineSquared"
    stationary = True
    apart = staticmethod(distance)

    def __init__(self, length_scale: Slot, periodicity: Slot):
        self.length_scale, self.periodicity = length_scale, periodicity

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        length_scale = self.length_scale.value_like(theta, X)
        # The sine of an infinite angle is NaN.
        turns = self.apart(X, Z) / self.periodicity.value_like(theta, X)
        angle = math.pi * turns.clamp(max=1e30)
        return torch.exp(-2 * (torch.sin(angle) / length_scale) ** 2)

    def plain(self) -> Periodic:
        other = copy(self)
        other.apart = differences
        return other

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)


def differences(X: Tensor, Z: Tensor) -> Tensor:
    """|x - z| of a single column, with a derivative of 0 at 0."""
    return (X[..., :, None, 0] - Z[..., None, :, 0]).abs()


def _build(kernel: sk.ExpSineSquared, layout: Layout) -> Periodic:
    """On several columns the function of the distance is not positive definite."""
    if layout.n_features > 1:
        raise ValueError(
            f"{kernel!r} is positive definite on one column only, and here it has "
            f"{layout.n_features}: use skscalablegp.kernels.Columns to choose one, for example "
            "Columns(ExpSineSquared(), 0)."
        )
    return Periodic(**layout.slots(kernel))


register_kernel(sk.ExpSineSquared, _build)
