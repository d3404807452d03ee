"""exp(-r^2 / 2)."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._frequencies import Draws, ScaledFrequencies
from ._registry import register_kernel
from ._stationary import Profile, Stationary


class Gaussian(Profile):
    """exp(-u) with u = r^2 / 2. Frequencies are normal."""

    factor = 0.5
    separable = True

    def formula(self, u: Any) -> Any:
        return torch.exp(-u)

    def value(self, u: Tensor) -> Tensor:
        return u.neg_().exp_()

    def value_and_slope(self, u: Tensor) -> tuple[Tensor, ...]:
        k = u.neg_().exp_()
        return k, k * 2

    def frequencies(self, leaf: Stationary, draws: Draws) -> ScaledFrequencies:
        return ScaledFrequencies(draws.stored(draws.normal()), leaf.length_scale)


register_kernel(sk.RBF, Gaussian().build)
