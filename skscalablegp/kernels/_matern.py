"""Matern functions of half-integer smoothness nu, with a^2 = u = 2 nu r^2."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._frequencies import Draws, ScaledFrequencies
from ._nodes import Node
from ._rbf import Gaussian
from ._registry import Layout, register_kernel
from ._stationary import Profile, Stationary, root


class _Matern(Profile):
    """Frequencies have a multivariate Student-t density with 2 nu = `factor` degrees of freedom."""

    def frequencies(self, leaf: Stationary, draws: Draws) -> ScaledFrequencies:
        base, df = draws.normal(), int(self.factor)
        # One chi-squared variable per frequency, shared by its columns, gives a multivariate t.
        chi2 = draws.normal(df).square().sum(1, keepdim=True)
        return ScaledFrequencies(draws.stored(base * torch.sqrt(df / chi2)), leaf.length_scale)


class Matern12(_Matern):
    """exp(-a)."""

    factor = 1.0
    kink = True

    def formula(self, a: Any) -> Any:
        return torch.exp(-a)

    def value(self, a: Tensor) -> Tensor:
        return a.neg_().exp_()

    def value_and_slope(self, a: Tensor) -> tuple[Tensor, ...]:
        e = a.neg_().exp_()
        return e, e.clone()


class Matern32(_Matern):
    """(1 + a) exp(-a)."""

    factor = 3.0

    def formula(self, u: Any) -> Any:
        a = root(u)
        return (1 + a) * torch.exp(-a)

    def value(self, u: Tensor) -> Tensor:
        a = u.sqrt_()
        e = torch.neg(a).exp_()
        return e.addcmul_(e, a)

    def value_and_slope(self, u: Tensor) -> tuple[Tensor, ...]:
        a = u.sqrt_()
        e = torch.neg(a).exp_()
        return torch.addcmul(e, e, a), e


class Matern52(_Matern):
    """(1 + a + a^2 / 3) exp(-a)."""

    factor = 5.0

    def formula(self, u: Any) -> Any:
        a = root(u)
        return (1 + a + u / 3) * torch.exp(-a)

    def value(self, u: Tensor) -> Tensor:
        polynomial = u.div(3)
        a = u.sqrt_()
        e = torch.neg(a).exp_()
        return polynomial.add_(a).add_(1).mul_(e)

    def value_and_slope(self, u: Tensor) -> tuple[Tensor, ...]:
        a = u.sqrt()
        e = torch.neg(a).exp_()
        slope = torch.addcmul(e, e, a).div_(3)
        return slope.mul(3).addcmul_(e, u, value=1 / 3), slope


_PROFILES = {0.5: Matern12(), 1.5: Matern32(), 2.5: Matern52(), math.inf: Gaussian()}


def _build(kernel: sk.Matern, layout: Layout) -> Node:
    if kernel.nu not in _PROFILES:
        return layout.without_compiled_form(kernel, f"Matern with nu={kernel.nu}")
    return _PROFILES[kernel.nu].build(kernel, layout)


register_kernel(sk.Matern, _build, "Matern (nu = 0.5, 1.5, 2.5 or inf)")
