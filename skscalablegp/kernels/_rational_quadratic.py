"""(1 + r^2 / (2 alpha))^-alpha."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import gammaincinv
from sklearn.gaussian_process import kernels as sk
from torch import Tensor

from ._frequencies import Draws, Frequencies
from ._registry import Layout, register_kernel
from ._slots import Slot
from ._stationary import Profile, Stationary


class RationalQuadratic(Profile):
    """(1 + u / alpha)^-alpha with u = r^2 / 2. Frequencies are a gamma scale mixture of normals."""

    factor = 0.5
    shape = ("alpha",)

    def formula(self, u: Any, alpha: Any) -> Any:
        return torch.exp(-alpha * torch.log1p(u / alpha))

    def value(self, u: Tensor, alpha: float) -> Tensor:
        return u.div_(alpha).log1p_().mul_(-alpha).exp_()

    def value_and_slope(self, u: Tensor, alpha: float) -> tuple[Tensor, ...]:
        u = u.div_(alpha)
        log_base = torch.log1p(u)
        k = log_base.mul(-alpha).exp_()
        base = u + 1
        return k, k * 2 / base, k * alpha * (u / base - log_base)

    def frequencies(self, leaf: Stationary, draws: Draws) -> GammaMixtureFrequencies:
        base = draws.stored(draws.normal())
        return GammaMixtureFrequencies(base, draws.uniform(), leaf.length_scale, *leaf.shape)

    def build(self, kernel: sk.RationalQuadratic, layout: Layout) -> Stationary:
        if np.size(kernel.length_scale) != 1:
            raise ValueError(
                "RationalQuadratic takes one length scale, not one per column: got "
                f"length_scale={kernel.length_scale!r}."
            )
        return super().build(kernel, layout)


@dataclass(frozen=True, eq=False)
class GammaMixtureFrequencies(Frequencies):
    """RationalQuadratic: normal draws times the square root of a gamma variable of mean 1.

    ``(1 + r^2 / (2 alpha))^-alpha = E[exp(-g r^2 / 2)]`` with g ~ Gamma(alpha, rate alpha). Here g
    is a fixed quantile of this distribution, so that it is a continuous function of alpha.

    Attributes
    ----------
    base : Tensor of shape (pairs, d)
        Standard normal draws.
    uniforms : Tensor of shape (pairs,)
        Quantile levels of each frequency's gamma variable; float64 on the CPU.
    length_scale, alpha : Slot
        The kernel's hyperparameters.
    """

    base: Float[Tensor, "pairs d"]
    uniforms: Float64[Tensor, " pairs"]
    length_scale: Slot
    alpha: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        roots = _GammaQuantileRoot.apply(self.alpha.value(theta), self.uniforms)
        scaled = self.base * roots.to(self.base)[:, None]
        return scaled / self.length_scale.value_like(theta, self.base)


class _GammaQuantileRoot(torch.autograd.Function):
    """sqrt(g) with P(Gamma(alpha, rate alpha) <= g) = u; the derivative by central differences."""

    @staticmethod
    def forward(ctx: Any, alpha: Tensor, uniforms: Tensor) -> Tensor:
        a, u, step = alpha.item(), uniforms.numpy(), 1e-4

        def root(a: float) -> np.ndarray:
            return np.sqrt(gammaincinv(a, u) / a)

        if ctx.needs_input_grad[0]:
            slope = (root(a * (1 + step)) - root(a * (1 - step))) / (2 * step * a)
            ctx.save_for_backward(torch.from_numpy(slope))
        return torch.from_numpy(root(a)).to(alpha.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (slope,) = ctx.saved_tensors
        return (grad * slope.to(grad)).sum()[None], None


register_kernel(sk.RationalQuadratic, RationalQuadratic().build)
