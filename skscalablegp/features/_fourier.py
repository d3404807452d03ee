"""Random Fourier features of a prior, whose random numbers are independent of hyperparameters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .._validation import check_integer
from ..kernels import Draws, Frequencies, Node, Term, TorchKernel, no_spectral_density

# Linear factors multiply the number of a block's features. A block may have at most this many.
MAX_FEATURES = 100_000


@dataclass(frozen=True, eq=False)
class _First(Frequencies):
    """The first `n_pairs` of some frequencies, so that smaller draws are parts of larger ones."""

    inner: Frequencies
    n_pairs: int

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        return self.inner.at(theta)[: self.n_pairs]

    def importance(self) -> Float[Tensor, " pairs"] | None:
        weights = self.inner.importance()
        return None if weights is None else weights[: self.n_pairs]


@dataclass(frozen=True, eq=False)
class _Block:
    """The features of one product of kernels.

    The frequencies are sums over the kernels of the product that have no exact finite map.
    """

    term: Term
    frequencies: tuple[Frequencies, ...]
    n_pairs: int
    n_features: int

    def evaluate(self, theta: Tensor, X: Tensor) -> Tensor:
        variance = self.term.amplitude(theta).to(X)
        if self.frequencies:
            omega = sum(frequencies.at(theta) for frequencies in self.frequencies)
            phase = X @ omega.to(X).T
            phi = torch.cat([torch.cos(phase), torch.sin(phase)], dim=1)
            phi = phi * self.scale(variance)
        else:
            phi = torch.sqrt(variance).expand(len(X), 1)
        for leaf in self.term.leaves:
            if leaf.n_exact_features(X.shape[1]):
                exact = leaf.exact_features(theta, X)
                phi = (phi[:, :, None] * exact[:, None, :]).flatten(1)
        return phi

    def scale(self, variance: Tensor) -> Tensor:
        """The factor of the sines and cosines: one number, or one for each of them."""
        scale = torch.sqrt(variance / self.n_pairs)
        for frequencies in self.frequencies:
            if (weights := frequencies.importance()) is not None:
                scale = scale * weights.to(scale).sqrt().repeat(2)
        return scale

    def head(self, n_pairs: int) -> _Block:
        if not self.frequencies or n_pairs >= self.n_pairs:
            return self
        first = tuple(_First(frequencies, n_pairs) for frequencies in self.frequencies)
        q = self.n_features // self.n_pairs * n_pairs
        return replace(self, frequencies=first, n_pairs=n_pairs, n_features=q)


@dataclass(frozen=True, eq=False)
class PriorFeatures:
    """A frozen random map phi with ``E[phi(theta, X) phi(theta, Z)'] = k_theta(X, Z)``.

    With ``w ~ N(0, I)`` of shape (q, s), ``f(X) = phi(theta, X) @ w`` are the values of s samples
    of the prior at any rows and for any theta. The expectation above is over the random
    frequencies. Given these, f has the covariance phi phi', which differs from k by
    O(1 / sqrt(n_pairs)).

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
        """phi(theta, X), in O(n d q) operations and in the dtype and on the device of X.

        Each row of the result depends on one row of X. Differentiable in theta and X.
        """
        if not self.blocks:
            return X.new_zeros(len(X), 0)
        return torch.cat([block.evaluate(theta, X) for block in self.blocks], dim=1)

    def module(self, theta: Float[Tensor, " p"]) -> nn.Module:
        """The map at theta as a torch module, whose buffers are its frequencies.

        Raises
        ------
        NotExportable
            For a kernel without a traceable form.
        """
        return FourierModule(self.blocks, theta.detach().double().cpu())

    def head(self, n_pairs: int) -> PriorFeatures:
        """The map of the first `n_pairs` frequencies of every product, rescaled accordingly."""
        check_integer("n_pairs", n_pairs, example=100)
        blocks = tuple(block.head(n_pairs) for block in self.blocks)
        return PriorFeatures(blocks, self.n_features_in, sum(block.n_features for block in blocks))


class FourierModule(nn.Module):
    """Random features at fixed hyperparameters, with the frequencies as buffers.

    Parameters
    ----------
    blocks : sequence of _Block
    theta : Tensor of shape (p,)
    """

    def __init__(self, blocks: tuple[_Block, ...], theta: Float[Tensor, " p"]):
        super().__init__()
        self.register_buffer("theta", theta.clone())
        self._exact = []
        for number, block in enumerate(blocks):
            variance, omega = block.term.amplitude(theta), None
            scale = variance.sqrt()
            if block.frequencies:
                omega = sum(f.at(theta).double().cpu() for f in block.frequencies)
                scale = block.scale(variance)
            self.register_buffer(f"scale{number}", scale.detach())
            self.register_buffer(f"omega{number}", omega)
            # Of the others the frequencies are all that is needed.
            exact = [
                f for f in block.term.leaves if omega is None or f.n_exact_features(omega.shape[1])
            ]
            self._exact.append([leaf.plain() for leaf in exact])

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        parts = [self._block(X, number, leaves) for number, leaves in enumerate(self._exact)]
        return torch.cat(parts, 1) if parts else X[:, :0]

    def _block(self, X: Tensor, number: int, leaves: list[Node]) -> Tensor:
        scale, omega = getattr(self, f"scale{number}"), getattr(self, f"omega{number}")
        if omega is None:
            phi = X[:, :1] * 0 + scale
        else:
            phase = X @ omega.T
            phi = torch.cat([torch.cos(phase), torch.sin(phase)], dim=1) * scale
        for leaf in leaves:
            if leaf.n_exact_features(X.shape[1]):
                exact = leaf.exact_features(self.theta, X)
                phi = (phi[:, :, None] * exact[:, None, :]).flatten(1)
        return phi


def sample_prior_features(
    torch_kernel: TorchKernel,
    n_features_in: int,
    n_pairs: int = 1000,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
    tails: bool = False,
) -> PriorFeatures:
    """Draw random features of a kernel without its noise.

    The kernel is expanded into a sum of products. The features of the terms of a sum are
    concatenated. The frequencies of the stationary kernels in a product are independent and are
    added. Constants scale the features. A DotProduct has the exact finite map ``(sigma_0, x)``, and
    a constant alone its square root. Each kernel draws frequencies from its own spectral density at
    unit length scale; they are divided by the length scale when the features are evaluated (Rahimi
    and Recht 2007, Bochner's theorem). A WhiteKernel contributes no features.

    Parameters
    ----------
    torch_kernel : TorchKernel
        The compiled kernel.
    n_features_in : int
        Number of columns.
    n_pairs : int, default=1000
        Number of pairs of a sine and a cosine for each product with a stationary kernel.
    generator : torch.Generator
        The draws are the same for every dtype and device.
    dtype : torch.dtype, default=torch.float64
        Precision of the stored frequencies.
    device : torch.device or str, default="cpu"
        Device of the stored frequencies.
    tails : bool, default=False
        Whether high frequencies of Matern kernels are drawn more often than by their spectral
        density, with weights. Many rows explain nearly all of the prior variance but that of the
        highest frequencies, which are rare otherwise.

    Returns
    -------
    PriorFeatures

    Raises
    ------
    NoSpectralDensity
        For kernels without a sampler, such as ExpSineSquared and powers that are not small
        integers, and for products that would need too many features.
    """
    if generator is None:
        raise TypeError("sample_prior_features needs a torch.Generator.")
    if n_features_in != torch_kernel.n_features:
        raise ValueError(
            f"The kernel was compiled for {torch_kernel.n_features} columns, not {n_features_in}."
        )
    draws = Draws(n_pairs, n_features_in, generator, dtype, torch.device(device), tails)
    blocks = tuple(_block(term, draws) for term in torch_kernel.node.products())
    return PriorFeatures(blocks, n_features_in, sum(block.n_features for block in blocks))


def frequencies_per_product(torch_kernel: TorchKernel, n_components: int) -> int:
    """The number of frequencies of each product for a given total number of sines and cosines.

    Parameters
    ----------
    torch_kernel : TorchKernel
    n_components : int
        Total number of sines and cosines. The exact features of a DotProduct and of constants do
        not count.

    Returns
    -------
    n_pairs : int
        At least 1.
    """
    d = torch_kernel.n_features
    random = [
        term
        for term in torch_kernel.node.products()
        if not all(leaf.n_exact_features(d) for leaf in term.leaves)
    ]
    return max(1, n_components // (2 * max(1, len(random))))


def _block(term: Term, draws: Draws) -> _Block:
    exact = [q for leaf in term.leaves if (q := leaf.n_exact_features(draws.n_columns))]
    others = [leaf for leaf in term.leaves if not leaf.n_exact_features(draws.n_columns)]
    q = (2 * draws.n_pairs if others else 1) * math.prod(exact)
    if q > MAX_FEATURES:
        raise no_spectral_density(term.label, f"would need {q:,} features")
    return _Block(term, tuple(leaf.frequencies(draws) for leaf in others), draws.n_pairs, q)
