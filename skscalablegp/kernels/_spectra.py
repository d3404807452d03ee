"""Random frequencies of stationary kernels, drawn once and moved along with theta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.special import gammaincinv
from torch import Tensor

from ._leaves import Stationary
from ._nodes import Leaf, Node
from ._slots import Slot
from ._spectral_mixture import SpectralComponent

# Student t degrees of freedom, 2 nu, of the spectral density of each Matern family.
MATERN_DF = {"matern12": 1, "matern32": 3, "matern52": 5}


class NoSpectralDensity(ValueError):
    """A kernel of which no random features can be drawn; ``cause`` says why, without what to do."""

    cause: str = ""


def no_spectral_density(label: str, reason: str) -> NoSpectralDensity:
    """The error for a kernel, with what to do instead."""
    error = NoSpectralDensity(
        f"{label} {reason}, so its prior samples cannot be made of random features. "
        'Use gradient="standard", which needs no prior samples, or, for a small number of rows, '
        "exact prior samples from a Cholesky factor."
    )
    error.cause = f"{label} {reason}"
    return error


class Frequencies(ABC):
    """One stationary kernel's frozen randomness."""

    @abstractmethod
    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        """The frequencies at theta, differentiable in theta."""


Draw = Callable[[Leaf, int, int, torch.Generator, torch.dtype, torch.device], Frequencies]


@dataclass(frozen=True, eq=False)
class ScaledFrequencies(Frequencies):
    """Frequencies at unit length scale, divided by the length scale.

    Attributes
    ----------
    base : Tensor of shape (pairs, d)
        Draws at unit length scale.
    length_scale : Slot
        One value, or one per column.
    """

    base: Float[Tensor, "pairs d"]
    length_scale: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        return self.base / self.length_scale.value_like(theta, self.base)


@dataclass(frozen=True, eq=False)
class GammaMixtureFrequencies(Frequencies):
    """RationalQuadratic: normal draws times the square root of a gamma variable of mean 1.

    ``(1 + r^2 / (2 alpha))^-alpha = E[exp(-g r^2 / 2)]`` with g ~ Gamma(alpha, rate alpha), and g
    is alpha's quantile function at a frozen uniform, so that it follows alpha continuously.

    Attributes
    ----------
    base : Tensor of shape (pairs, d)
        Standard normal draws.
    uniforms : Tensor of shape (pairs,)
        Where on the gamma distribution each frequency sits; float64 on the CPU.
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
    def forward(ctx, alpha: Tensor, uniforms: Tensor) -> Tensor:
        a, u, step = alpha.item(), uniforms.numpy(), 1e-4

        def root(a: float) -> np.ndarray:
            return np.sqrt(gammaincinv(a, u) / a)

        if ctx.needs_input_grad[0]:
            slope = (root(a * (1 + step)) - root(a * (1 - step))) / (2 * step * a)
            ctx.save_for_backward(torch.from_numpy(slope))
        return torch.from_numpy(root(a)).to(alpha.device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        (slope,) = ctx.saved_tensors
        return (grad * slope.to(grad)).sum()[None], None


_DRAWS: dict[type[Leaf], Draw] = {}


def register_spectrum(leaf_class: type[Leaf], draw: Draw) -> None:
    """Teach `sample_prior_features` one more compiled stationary kernel.

    Parameters
    ----------
    leaf_class : type
        A subclass of Leaf; only this exact class is meant.
    draw : callable
        ``draw(leaf, n_features_in, n_pairs, generator, dtype, device) -> Frequencies`` for a
        kernel that is 1 at zero distance; raises NoSpectralDensity where it cannot.
    """
    _DRAWS[leaf_class] = draw


def find_draw(leaf: Node) -> Draw | None:
    """How to draw a leaf's frequencies, or None."""
    return _DRAWS.get(type(leaf))


def _normal(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    # Drawn in float64 where the generator lives: the same numbers for every dtype and device.
    return torch.randn(shape, generator=generator, dtype=torch.float64, device=generator.device)


def _draw_stationary(
    leaf: Stationary,
    n_features_in: int,
    n_pairs: int,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
) -> Frequencies:
    base = _normal((n_pairs, n_features_in), generator)
    if leaf.family == "rq":
        u = torch.rand(n_pairs, generator=generator, dtype=torch.float64, device=generator.device)
        base = base.to(dtype=dtype, device=device)
        return GammaMixtureFrequencies(base, u.cpu(), leaf.length_scale, leaf.shape)
    if leaf.family in MATERN_DF:
        df = MATERN_DF[leaf.family]
        # One chi-squared variable per frequency, shared by its columns: a multivariate t.
        chi2 = _normal((n_pairs, df), generator).square().sum(1, keepdim=True)
        base = base * torch.sqrt(df / chi2)
    return ScaledFrequencies(base.to(dtype=dtype, device=device), leaf.length_scale)


register_spectrum(Stationary, _draw_stationary)


@dataclass(frozen=True, eq=False)
class BumpFrequencies(Frequencies):
    """Normal draws around plus and minus a frequency: one component of a spectral mixture.

    Attributes
    ----------
    base, signs : Tensor of shape (pairs, d)
        Standard normal draws; 1 or -1.
    means, scales : Slot
        The component's, one value a column.
    """

    base: Float[Tensor, "pairs d"]
    signs: Float[Tensor, "pairs d"]
    means: Slot
    scales: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        means = self.means.value_like(theta, self.base)
        scales = self.scales.value_like(theta, self.base)
        return 2 * np.pi * (self.signs * means + self.base * scales)


def _draw_component(
    leaf: SpectralComponent,
    n_features_in: int,
    n_pairs: int,
    generator: torch.Generator,
    dtype: torch.dtype,
    device: torch.device,
) -> Frequencies:
    base = _normal((n_pairs, n_features_in), generator).to(dtype=dtype, device=device)
    signs = _normal((n_pairs, n_features_in), generator).sign().to(dtype=dtype, device=device)
    return BumpFrequencies(base, signs, leaf.means, leaf.scales)


register_spectrum(SpectralComponent, _draw_component)
