"""Matern functions of half-integer smoothness nu, with a^2 = u = 2 nu r^2."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from scipy.special import expit, gammaincinv, gammaln
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._frequencies import Draws, ScaledFrequencies
from ._nodes import Node
from ._rbf import Gaussian
from ._registry import Layout, register_kernel
from ._stationary import Profile, Stationary, root

# Degrees of freedom of the half with heavier tails. On six drawn tables of up to 3,500 rows whose
# data explain all but 7e-8 to 7e-4 of the prior variance, 1,000 frequencies with 0.2 or 0.4 degrees
# give .94 to 1.04 of the standard deviation (medians of five draws), those of the spectral density
# alone .21 to 1.06, and single draws of these .21 to 1.4.
_TAIL_DEGREES = 0.3
# Smaller ones would belong to frequencies above 10,000 inverse length scales. They have 1e-4 of the
# variance for nu=0.5 and 1e-11 for nu=1.5, but up to a percent of the slopes of draws.
_LEAST_CHI_SQUARED = 1e-8


class _Matern(Profile):
    """Frequencies have a multivariate Student-t density with 2 nu = `factor` degrees of freedom."""

    def frequencies(self, leaf: Stationary, draws: Draws) -> ScaledFrequencies:
        base, df, weights = draws.normal(), int(self.factor), None
        # One chi-squared variable per frequency, shared by its columns, gives a multivariate t.
        if draws.tails:
            chi2, weights = _chi_squared(df, draws)
            chi2, weights = chi2.to(base)[:, None], draws.stored(weights)
        else:
            chi2 = draws.normal(df).square().sum(1, keepdim=True)
        base = draws.stored(base * torch.sqrt(df / chi2))
        return ScaledFrequencies(base, leaf.length_scale, weights)


def _chi_squared(df: int, draws: Draws) -> tuple[Tensor, Tensor]:
    """Chi-squared variables, half of which have fewer degrees of freedom, and their weights.

    Small ones belong to high frequencies. Weights are ratios of the density to that of the mixture,
    at most 2. Both halves are random ones and are stratified.
    """
    u, order = draws.uniform().numpy(), draws.uniform().argsort().numpy()
    # The halves of two kernels of a product are independent.
    parts, degrees = (order[::2], order[1::2]), np.full(draws.n_pairs, float(df))
    degrees[parts[1]] = _TAIL_DEGREES
    for part in parts:
        u[part] = (np.arange(len(part)) + u[part]) / max(1, len(part))
    value = np.maximum(2 * gammaincinv(degrees / 2, u), _LEAST_CHI_SQUARED)
    log_ratio = gammaln(df / 2) - gammaln(_TAIL_DEGREES / 2)
    log_ratio = log_ratio + (_TAIL_DEGREES - df) / 2 * np.log(value / 2)
    return torch.from_numpy(value), torch.from_numpy(2 * expit(-log_ratio))


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
