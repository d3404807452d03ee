"""Random Fourier features of a prior whose hyperparameters move while the randomness stays."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from ..kernels import (
    Constant,
    Frequencies,
    Linear,
    Node,
    Slot,
    TorchKernel,
    find_draw,
    no_spectral_density,
)

# A block's features multiply with every linear factor; past this, features are no saving.
MAX_FEATURES = 100_000


@dataclass(frozen=True, eq=False)
class _First(Frequencies):
    """The first of some frequencies: nested draws are one draw, cut at different places."""

    inner: Frequencies
    n_pairs: int

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        return self.inner.at(theta)[: self.n_pairs]


@dataclass(frozen=True, eq=False)
class _Block:
    """One product of leaves: amplitude, one set of frequencies summed over leaves, linear maps."""

    constants: tuple[Slot, ...]
    frequencies: tuple[Frequencies, ...]
    sigmas: tuple[Slot, ...]
    n_pairs: int
    n_features: int

    def evaluate(self, theta: Tensor, X: Tensor) -> Tensor:
        variance = X.new_ones(())
        for slot in self.constants:
            variance = variance * slot.value_like(theta, X).squeeze(0)
        if self.frequencies:
            omega = sum(frequencies.at(theta) for frequencies in self.frequencies)
            phase = X @ omega.to(X).T
            phi = torch.cat([torch.cos(phase), torch.sin(phase)], dim=1)
            phi = phi * torch.sqrt(variance / self.n_pairs)
        else:
            phi = torch.sqrt(variance).expand(len(X), 1)
        for sigma in self.sigmas:
            bias = sigma.value_like(theta, X).expand(len(X), 1)
            linear = torch.cat([bias, X], dim=1)
            phi = (phi[:, :, None] * linear[:, None, :]).flatten(1)
        return phi

    def head(self, n_pairs: int) -> _Block:
        if not self.frequencies or n_pairs >= self.n_pairs:
            return self
        first = tuple(_First(frequencies, n_pairs) for frequencies in self.frequencies)
        q = self.n_features // self.n_pairs * n_pairs
        return replace(self, frequencies=first, n_pairs=n_pairs, n_features=q)


@dataclass(frozen=True, eq=False)
class PriorFeatures:
    """A frozen random map phi with ``E[phi(theta, X) phi(theta, Z)'] = k_theta(X, Z)``.

    A prior function is ``f(X) = phi(theta, X) @ w`` with ``w ~ N(0, I)`` of shape (q, s): a
    sample of every one of s functions, at any rows, whatever theta becomes later. The expectation
    is over the frequencies (over draws of this object); given them, f has the covariance
    phi phi', which differs from k by O(1 / sqrt(n_pairs)).

    Attributes
    ----------
    n_features_in : int
        Number of columns of X.
    n_features : int
        q, the number of columns of phi.
    """

    blocks: tuple[_Block, ...]
    n_features_in: int
    n_features: int

    def evaluate(self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        """phi(theta, X), row by row, so that X may be cut into chunks. O(n d q).

        Differentiable in theta and X; the result has X's dtype and device.
        """
        if not self.blocks:
            return X.new_zeros(len(X), 0)
        return torch.cat([block.evaluate(theta, X) for block in self.blocks], dim=1)

    def head(self, n_pairs: int) -> PriorFeatures:
        """The features of the first `n_pairs` frequencies of every product, scaled to be a map."""
        if n_pairs < 1:
            raise ValueError(f"n_pairs must be at least 1, for example 100; got {n_pairs!r}.")
        blocks = tuple(block.head(n_pairs) for block in self.blocks)
        return PriorFeatures(blocks, self.n_features_in, sum(block.n_features for block in blocks))


def sample_prior_features(
    torch_kernel: TorchKernel,
    n_features_in: int,
    n_pairs: int = 1000,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> PriorFeatures:
    """Draw random features of a kernel's noise-free part.

    The kernel is expanded into a sum of products. A sum's features are concatenated; in a
    product of stationary kernels independent frequencies add; constants scale the features; a
    DotProduct and a constant alone are exact finite maps, ``(sigma_0, x)`` and the square root of
    the constant. Frequencies are drawn at unit length scale and divided by the length scale when
    the features are evaluated (Rahimi and Recht 2007, Bochner's theorem): normal for RBF,
    multivariate Student t with 2 nu degrees of freedom for Matern-nu, a gamma scale mixture of
    normals for RationalQuadratic. WhiteKernel contributes nothing.

    Parameters
    ----------
    torch_kernel : TorchKernel
        The compiled kernel.
    n_features_in : int
        Number of columns.
    n_pairs : int, default=1000
        Sine and cosine pairs for each product that has a stationary kernel in it.
    generator : torch.Generator
        Where the randomness comes from; the draws are the same for every dtype and device.
    dtype : torch.dtype, default=torch.float64
        Of the stored frequencies.
    device : torch.device or str, default="cpu"
        Of the stored frequencies.

    Returns
    -------
    PriorFeatures

    Raises
    ------
    NoSpectralDensity
        For ExpSineSquared, for powers that are not small integers, and for products that would
        need too many features.
    """
    if generator is None:
        raise TypeError("sample_prior_features needs a torch.Generator.")
    if n_features_in != torch_kernel.n_features:
        raise ValueError(
            f"The kernel was compiled for {torch_kernel.n_features} columns, not {n_features_in}."
        )
    products = torch_kernel.node.products()
    _check(products, n_features_in, n_pairs)
    blocks = []
    for factors in products:
        frequencies = tuple(
            draw(leaf, n_features_in, n_pairs, generator, dtype, torch.device(device))
            for leaf in factors
            if (draw := find_draw(leaf)) is not None
        )
        constants = tuple(leaf.constant for leaf in factors if isinstance(leaf, Constant))
        sigmas = tuple(leaf.sigma_0 for leaf in factors if isinstance(leaf, Linear))
        q = _count(factors, n_features_in, n_pairs)
        blocks.append(_Block(constants, frequencies, sigmas, n_pairs, q))
    return PriorFeatures(tuple(blocks), n_features_in, sum(block.n_features for block in blocks))


def _check(products: list[tuple[Node, ...]], n_features_in: int, n_pairs: int) -> None:
    for factors in products:
        for leaf in factors:
            if not isinstance(leaf, Constant | Linear) and find_draw(leaf) is None:
                raise no_spectral_density(leaf.label, "has no spectral density to draw from")
        q = _count(factors, n_features_in, n_pairs)
        if q > MAX_FEATURES:
            label = " * ".join(leaf.label for leaf in factors)
            raise no_spectral_density(label, f"would need {q:,} features")


def _count(factors: tuple[Node, ...], n_features_in: int, n_pairs: int) -> int:
    n_linear = sum(isinstance(leaf, Linear) for leaf in factors)
    stationary = any(find_draw(leaf) is not None for leaf in factors)
    return (2 * n_pairs if stationary else 1) * math.prod([1 + n_features_in] * n_linear)
