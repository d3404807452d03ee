"""A network followed by a kernel's features: the finite map of a deep kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...features import Network, PriorFeatures, frequencies_per_product, sample_prior_features
from ...kernels import TorchKernel

# In length scales of 1: 3 and 5 train alike, 1 trained worse on three of four sets.
_SPREAD = 3.0
# How far beyond the rows' range columns still go into a network, as a share of the range.
_MARGIN = 0.1


@dataclass(frozen=True, eq=False)
class DeepFeatures:
    """phi(x) = features of a kernel at z = c network(x) / sqrt(q), q the network's columns.

    The division makes two unrelated rows lie at a distance of about 1 where a network begins,
    whatever its width; without layers z is x itself. c is 3 for kernels with a stationary factor:
    at length scales as long as the distances they would be nearly linear, with large weights that
    cancel between the rows and explode beyond them. Tensors are one list: the network's
    trained ones, theta (log hyperparameters of the kernel, float64), the network's frozen ones.

    Nothing holds a network beyond the rows that it has learned from: it goes on in straight lines,
    however steep. Columns therefore enter it clipped to `box`, and a further feature,
    sqrt(1 - exp(-r^2 / 2)) at a distance r from the box, is zero at the rows and gives the rest
    the target's variance far away.

    Attributes
    ----------
    network : Network
    kernel_features : PriorFeatures
        Exact for products of constants and DotProduct, random Fourier features for stationary
        kernels.
    theta0, bounds : tuple
        Where theta starts, and its bounds as pairs.
    box : tuple of tuple of float, or None
        The lowest and the highest value of each column that a network sees; None for no limits,
        and where there is no network that learns.
    """

    network: Network
    kernel_features: PriorFeatures
    theta0: tuple[float, ...]
    bounds: tuple[tuple[float, float], ...]
    box: tuple[tuple[float, ...], tuple[float, ...]] | None = None

    @property
    def n_features(self) -> int:
        """m, the columns of phi."""
        return self.kernel_features.n_features + (self.box is not None)

    @property
    def n_trainable(self) -> int:
        return self.network.n_trainable + 1

    @property
    def theta_at(self) -> int:
        """Where theta stands in the list of tensors."""
        return self.network.n_trainable

    @property
    def random(self) -> bool:
        """Whether the kernel has a stationary factor, whose features are drawn."""
        return any(block.frequencies for block in self.kernel_features.blocks)

    @property
    def amplitude_at(self) -> int | None:
        """The entry of theta that multiplies the whole kernel, if there is a free one."""
        blocks = self.kernel_features.blocks
        free = [
            {slot.index.start for slot in block.term.constants if slot.index is not None}
            for block in blocks
        ]
        common = set.intersection(*free) if free else set()
        return min(common, default=None)

    def initial(self, generator: Generator, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        """Starting values of all tensors, on the CPU."""
        tensors = self.network.initial(generator, dtype)
        tensors.insert(self.theta_at, torch.tensor(self.theta0, dtype=torch.float64))
        return tensors

    def embed(self, tensors: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        """z, what the kernel sees."""
        k = self.theta_at
        Z = self.network([*tensors[:k], *tensors[k + 1 :]], self._clipped(X))
        if self.network.n_trainable == 0:
            return Z
        return Z * ((_SPREAD if self.random else 1.0) * self.network.n_features**-0.5)

    def __call__(self, tensors: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        """phi(X), differentiable in the tensors; O(n (network + q m))."""
        phi = self.kernel_features.evaluate(tensors[self.theta_at], self.embed(tensors, X))
        if self.box is None:
            return phi
        outside = (X - self._clipped(X)).square().sum(1, keepdim=True)
        return torch.cat([phi, (-torch.expm1(-outside / 2)).sqrt().to(phi)], 1)

    def _clipped(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X if self.box is None else X.clamp(*X.new_tensor(self.box))


def make_deep_features(
    network: Network,
    kernel: TorchKernel,
    n_components: int,
    generator: Generator,
    ranges: tuple[Float[Tensor, " d"], Float[Tensor, " d"]],
) -> DeepFeatures:
    """Draw the frequencies of a deep kernel.

    Parameters
    ----------
    network : Network
    kernel : TorchKernel
        Compiled for the network's columns, without white noise.
    n_components : int
        Random features, half sines and half cosines, of all products with a stationary factor.
    generator : Generator
    ranges : tuple of Tensor of shape (d,)
        The rows' lowest and highest values.

    Raises
    ------
    NoSpectralDensity
        For a kernel that has no features.
    """
    pairs = frequencies_per_product(kernel, n_components)
    features = sample_prior_features(kernel, network.n_features, pairs, generator)
    bounds = tuple((float(low), float(high)) for low, high in kernel.bounds)
    box = None
    if network.n_trainable:
        low, high = ranges
        margin = _MARGIN * (high - low)
        box = tuple((low - margin).tolist()), tuple((high + margin).tolist())
    return DeepFeatures(network, features, tuple(kernel.theta0.tolist()), bounds, box)
