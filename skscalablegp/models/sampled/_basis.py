"""Bases of very many functions, of which a step evaluates a few."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...core.posteriors import KernelFeatures
from ...features import PriorFeatures, sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel, no_spectral_density

# Number of units that are drawn together, which also is the smallest draw.
_BLOCK_UNITS = 256
# Numbers in one evaluation of the whole basis, by default.
_NUMBERS = 2**24
# Numbers of frequencies that are kept. More frequencies are drawn again from their seeds.
_KEPT_NUMBERS = 2**26


@dataclass(frozen=True, eq=False)
class BasisPart:
    """Some units of a basis.

    Attributes
    ----------
    index : Tensor of shape (u,)
        The numbers of the units, on the device of the basis.
    evaluate : callable
        Maps hyperparameters and rows (n, d) to the functions of these units (n, q u), ordered by
        the function within a unit, then by unit; O(n q u d).
    blocks : ndarray of int
        The numbers of their blocks.
    scale : float
        Number of all blocks for each of these, which scales up sums over drawn functions.
    """

    index: Tensor
    evaluate: Callable[[Tensor, Tensor], Tensor]
    blocks: np.ndarray
    scale: float


class SampledBasis(ABC):
    """m basis functions in units of q functions that belong together; blocks consist of units.

    A draw takes whole blocks, each equally likely, so that every function is in it with equal
    probability.

    Attributes
    ----------
    per_unit : int
        q, functions of one unit: sine and cosine of one frequency, or a single kernel function.
    n_units : int
        m / q.
    block_units : int
        Units of a block; the last may have fewer.
    device : torch.device
    """

    per_unit: int
    n_units: int
    block_units: int
    device: torch.device

    @property
    def n_features(self) -> int:
        """m."""
        return self.per_unit * self.n_units

    @property
    def n_blocks(self) -> int:
        return -(-self.n_units // self.block_units)

    def index(self, blocks: np.ndarray) -> Tensor:
        """The unit numbers of several blocks, in the order of the blocks."""
        units = (blocks[:, None] * self.block_units + np.arange(self.block_units)).ravel()
        return torch.as_tensor(units[units < self.n_units]).to(self.device, non_blocking=True)

    def draw(self, n_blocks: int, rng: np.random.Generator) -> BasisPart:
        """Draw blocks without replacement; O(n_blocks), independent of the number of all blocks."""
        n_blocks = min(n_blocks, self.n_blocks)
        return self.part(rng.choice(self.n_blocks, n_blocks, replace=False, shuffle=False))

    def parts(self, units_at_a_time: int) -> Iterator[BasisPart]:
        """The whole basis, some units at a time, in order."""
        step = max(1, units_at_a_time // self.block_units)
        for start in range(0, self.n_blocks, step):
            yield self.part(np.arange(start, min(start + step, self.n_blocks)))

    @torch.no_grad()
    def evaluations(
        self, theta: Float[Tensor, " p"], X: Float[Tensor, "n d"], most: int | None = None
    ) -> Iterator[tuple[Tensor, Float[Tensor, "n qu"]]]:
        """The whole basis at some rows: numbers of some units, at most `most` functions at a time.

        They come with the values of the functions, in order.
        """
        most = _NUMBERS // max(1, len(X)) if most is None else most
        for part in self.parts(max(1, most // self.per_unit)):
            yield part.index, part.evaluate(theta, X)

    def part(self, blocks: np.ndarray) -> BasisPart:
        """The units of some blocks."""
        index = self.index(blocks)
        return BasisPart(index, self._evaluator(blocks, index), blocks, self.n_blocks / len(blocks))

    @abstractmethod
    def _evaluator(self, blocks: np.ndarray, index: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """What evaluates the units of some blocks."""

    @abstractmethod
    def module(self, theta: Float[Tensor, " p"]) -> nn.Module:
        """All functions as a torch module, in the order of `part`; O(m d) numbers."""


@dataclass(frozen=True, eq=False)
class SeededFourier(SampledBasis):
    """Random Fourier features whose frequencies are regenerated from seeds, not stored.

    The frequencies of a block are those that `sample_prior_features` draws from a generator with
    the seed of the block, so that ten million features take only the memory of their weights. The
    prior precision is the identity, because the features contain the variances.

    Parameters
    ----------
    kernel : TorchKernel
        Sums of products, each with at least one stationary kernel and otherwise constants.
    n_units : int
        Number of frequencies for each product of the kernel.
    seed : int
        Seed of the whole basis.
    block_units : int
        Number of frequencies in a block.
    dtype : torch.dtype
    device : torch.device

    Raises
    ------
    NoSpectralDensity
        For kernels without a spectral density, and for factors that are not stationary.
    """

    kernel: TorchKernel
    n_units: int
    seed: int
    block_units: int = _BLOCK_UNITS
    dtype: torch.dtype = torch.float32
    device: torch.device = torch.device("cpu")

    def __post_init__(self) -> None:
        for term in self.kernel.node.products():
            if not term.leaves or not all(leaf.stationary for leaf in term.leaves):
                raise no_spectral_density(term.label, "is not a product of stationary kernels")
        # Draw one frequency, so that a kernel without a sampler is refused before training.
        sample_prior_features(self.kernel, self.kernel.n_features, 1, torch.Generator())

    def __getstate__(self) -> dict[str, Any]:
        # Frequencies come back from their seeds.
        return {name: value for name, value in vars(self).items() if name != "_kept"}

    @cached_property
    def per_unit(self) -> int:
        return _per_unit(self.kernel)

    def _evaluator(self, blocks: np.ndarray, index: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        return self._features(blocks, len(index)).evaluate

    def module(self, theta: Float[Tensor, " p"]) -> nn.Module:
        return self._features(np.arange(self.n_blocks), self.n_units).module(theta)

    def _features(self, blocks: np.ndarray, n_pairs: int) -> PriorFeatures:
        joined = _mapped(torch.cat, tuple(self._block(int(b)).blocks for b in blocks))
        scaled = tuple(
            replace(block, n_pairs=self.n_units, n_features=2 * n_pairs) for block in joined
        )
        return PriorFeatures(scaled, self.kernel.n_features, len(scaled) * 2 * n_pairs)

    @cached_property
    def _kept(self) -> dict[int, PriorFeatures]:
        """Frequencies by block, kept only if all of them together are few."""
        return {}

    def _block(self, block: int) -> PriorFeatures:
        d, seed = self.kernel.n_features, _mixed(self.seed, block)
        drawn = self._kept.get(block)
        if drawn is None:
            generator = torch.Generator().manual_seed(seed)
            size = min(self.block_units, self.n_units - block * self.block_units)
            on = {"dtype": self.dtype, "device": self.device}
            drawn = sample_prior_features(self.kernel, d, size, generator, **on)
            if self.n_units * d * len(self.kernel.node.products()) <= _KEPT_NUMBERS:
                self._kept[block] = drawn
        return drawn


@dataclass(frozen=True, eq=False)
class KernelFunctions(SampledBasis):
    """k(x, z_i) at given points z_i; each point is a block.

    Parameters
    ----------
    kernel : TorchKernel
    points : Tensor of shape (m, d)
        In the model's units.
    scale : Tensor of shape (m,), optional
        Factors of the functions, such as the roots of prior variances, which make the prior
        precision 1.
    """

    kernel: TorchKernel
    points: Float[Tensor, "m d"]
    scale: Float[Tensor, " m"] | None = None

    per_unit = 1
    block_units = 1

    @property
    def n_units(self) -> int:
        return len(self.points)

    @property
    def device(self) -> torch.device:
        return self.points.device

    def _evaluator(self, blocks: np.ndarray, index: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        points, scale = self.points[index], None if self.scale is None else self.scale[index]

        def evaluate(theta: Tensor, X: Tensor) -> Tensor:
            phi = self.kernel.cross(theta, X, points)
            return phi if scale is None else phi * scale.to(phi)

        return evaluate

    def module(self, theta: Float[Tensor, " p"]) -> nn.Module:
        return _ScaledFunctions(KernelFeatures(self.kernel, theta, self.points), self.scale)


class _ScaledFunctions(nn.Module):
    """Kernel functions times factors."""

    def __init__(self, features: KernelFeatures, scale: Float[Tensor, " m"] | None):
        super().__init__()
        self.features = features
        scale = torch.ones(()) if scale is None else scale
        self.register_buffer("scale", scale.detach().double().cpu())

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        return self.features(X) * self.scale


@dataclass(frozen=True, eq=False)
class Functions:
    """The functions of a fitted model, independent of a device.

    Attributes
    ----------
    kernel : Kernel
        The scikit-learn kernel at the trained hyperparameters.
    points : ndarray of shape (m, d) or None
        Points of kernel functions, in the model's units; None for Fourier features.
    n_components : int
        m.
    seed, block : int
        Seed of Fourier features, and the number of frequencies in a block.
    """

    kernel: Any
    points: np.ndarray | None
    n_components: int
    seed: int = 0
    block: int = 1

    @classmethod
    def fourier(cls, kernel: Any, d: int, n_components: int, drawn: int, seed: int) -> Functions:
        """Random features, in blocks that are small enough for draws of `drawn` functions."""
        per_unit = _per_unit(compile_kernel(kernel, d))
        units = max(1, n_components // per_unit)
        block = max(1, min(_BLOCK_UNITS, drawn // per_unit, units))
        return cls(kernel, None, per_unit * units, seed, block)

    @classmethod
    def at(cls, kernel: Any, points: np.ndarray) -> Functions:
        """Kernel functions at points."""
        return cls(kernel, points, len(points))

    def basis(self, d: int, dtype: torch.dtype, device: torch.device) -> SampledBasis:
        """The functions of d columns, for evaluation.

        Raises
        ------
        NoSpectralDensity
            For a kernel without random features.
        """
        kernel = compile_kernel(self.kernel, d)
        if self.points is not None:
            return KernelFunctions(kernel, torch.as_tensor(self.points).to(device, dtype))
        units = self.n_components // _per_unit(kernel)
        try:
            return SeededFourier(kernel, units, self.seed, self.block, dtype, device)
        except NoSpectralDensity as error:
            raise NoSpectralDensity(
                f"{error.cause}, so that there are no random Fourier features: use "
                'basis="rows", or an array of points as the basis, which take any kernel.'
            ) from None


def _per_unit(kernel: TorchKernel) -> int:
    """Number of Fourier features of one frequency: a sine and a cosine for each product."""
    return 2 * max(1, len(kernel.node.products()))


def _mixed(seed: int, block: int) -> int:
    """The seed of a block; neighbouring blocks have unrelated seeds (splitmix64)."""
    z = (seed * 0x9E3779B97F4A7C15 + block * 0xD1B54A32D192ED03 + 1) % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return (z ^ (z >> 31)) % 2**63


def _mapped(function: Callable[[tuple[Tensor, ...]], Tensor], trees: tuple[Any, ...]) -> Any:
    """A tree of the same form, with a function of the tensors at each place."""
    first = trees[0]
    if isinstance(first, Tensor):
        return function(trees)
    if isinstance(first, tuple):
        return tuple(_mapped(function, items) for items in zip(*trees, strict=True))
    if is_dataclass(first):
        names = [f.name for f in fields(first)]
        parts = {k: _mapped(function, tuple(getattr(t, k) for t in trees)) for k in names}
        return replace(first, **parts)
    return first
