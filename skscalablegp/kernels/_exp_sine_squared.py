"""exp(-2 sin^2(pi |x - z| / periodicity) / length_scale^2)."""

from __future__ import annotations

import math

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._distances import distance
from ._nodes import Node
from ._registry import register_kernel
from ._slots import Slot


class Periodic(Node):
    """A periodic function of the distance; the length scale does not divide the distance."""

    label = "ExpSineSquared"
    stationary = True

    def __init__(self, length_scale: Slot, periodicity: Slot):
        self.length_scale, self.periodicity = length_scale, periodicity

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor:
        length_scale = self.length_scale.value_like(theta, X)
        # The sine of an infinite angle is NaN.
        turns = distance(X, Z) / self.periodicity.value_like(theta, X)
        angle = math.pi * turns.clamp(max=1e30)
        return torch.exp(-2 * (torch.sin(angle) / length_scale) ** 2)

    def diag(self, theta: Tensor, X: Tensor) -> Tensor:
        return X.new_ones(1)


register_kernel(sk.ExpSineSquared, lambda k, layout: Periodic(**layout.slots(k)))
