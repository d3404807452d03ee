"""The finite feature map of a deep kernel: a network followed by the features of a kernel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import torch
from jaxtyping import Float, Float64
from sklearn.gaussian_process.kernels import Kernel
from torch import Generator, Tensor, nn

from ...core import Machine
from ...features import Network, PriorFeatures, frequencies_per_product, sample_prior_features
from ...kernels import TorchKernel, root
from ._noise import WhiteNoise

# Spread of the inputs of a stationary kernel, in length scales. Results with 3 and 5 are alike, and
# 1 is worse on three of four data sets.
_SPREAD = 3.0
# Margin around the rows' range within which columns enter a network, as a share of the range.
_MARGIN = 0.1
# Largest change of the kernel's own constant in one exact pass, as a logarithm.
_LARGEST_CHANGE = 5.0


@dataclass(frozen=True, eq=False)
class DeepFeatures:
    """The features of a kernel at z = c network(x) / sqrt(q), where the network has q outputs.

    The division puts unrelated rows at a distance of about 1 when training begins, for networks of
    any width. Without layers z is x itself. c is 3 for kernels with a stationary factor. If length
    scales were as long as the distances, these kernels would be nearly linear, and large weights
    would cancel at the rows and diverge beyond them. The tensors are one list: the trained ones of
    the network, theta (the log hyperparameters of the kernel, float64), and the frozen ones of the
    network.

    Beyond its training rows a network continues in straight lines, however steep. Columns are
    therefore clipped to `box` before they enter it, and a further feature, sqrt(1 - exp(-r^2 / 2))
    at a distance r from the box, is zero at the rows and gives rows far away the target's variance.

    Attributes
    ----------
    network : Network
    kernel_features : PriorFeatures
        Exact for products of constants and DotProduct, random Fourier features for stationary
        kernels.
    kernel : TorchKernel
        The kernel of z with white noise, which contributes no features.
    adds_noise : bool
        Whether the white noise, the last term of the kernel, is not the user's.
    box : tuple of tuple of float, or None
        The lowest and the highest value of each column of a network's inputs; None if no network is
        trained.
    """

    network: Network
    kernel_features: PriorFeatures
    kernel: TorchKernel
    adds_noise: bool
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
        """The place of theta in the list of tensors."""
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
        tensors.insert(self.theta_at, self.kernel.theta0)
        return tensors

    @cached_property
    def white(self) -> WhiteNoise:
        return WhiteNoise(self.kernel)

    def kernel_at(self, theta: Float64[Tensor, " p"]) -> Kernel:
        """The user's kernel, or the default one without noise, at theta."""
        trained = self.kernel.to_sklearn(theta)
        return trained.k1 if self.adds_noise else trained

    def amplitude_bounds(self, theta: Float64[Tensor, " p"]) -> tuple[float, float]:
        """The smallest and the largest factor that the kernel's own constant may still take."""
        at = self.amplitude_at
        if at is None or self.white.tied:
            return 1.0, 1.0
        now, (low, high) = float(theta.detach()[at]), self.kernel.bounds[at].tolist()
        # A change by several orders of magnitude would only undo the balance found by training, but
        # a constant outside its bounds must reach them at any distance.
        nearest = min(max(0.0, low - now), high - now)
        least, most = nearest - _LARGEST_CHANGE, nearest + _LARGEST_CHANGE
        return math.exp(max(low - now, least)), math.exp(min(high - now, most))

    def embed(self, tensors: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        """z, the inputs of the kernel."""
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

    def on(self, machine: Machine) -> DeepFeatures:
        """The same features; with a device for products alone, their network is sent to it."""
        own = {part.name: getattr(self, part.name) for part in fields(DeepFeatures)}
        there = machine.products_on
        return DeepFeatures(**own) if there is None else SentFeatures(**own, device=there)

    def module(self, tensors: Sequence[Tensor]) -> nn.Module:
        """phi with these tensors as a torch module."""
        return DeepModule(self, tensors)

    def _clipped(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n d"]:
        return X if self.box is None else X.clamp(*X.new_tensor(self.box))


@dataclass(frozen=True, eq=False)
class SentFeatures(DeepFeatures):
    """Features on the CPU, whose network works on a device in single precision.

    Rows and weights are sent, and the outputs come back: the network takes nearly all of the time,
    and what follows needs double precision. Rows in double precision stay on the CPU.

    Attributes
    ----------
    device : torch.device
    """

    device: torch.device = torch.device("cpu")

    def embed(self, tensors: Sequence[Tensor], X: Float[Tensor, "n d"]) -> Float[Tensor, "n q"]:
        if X.dtype != torch.float32 or self.network.n_trainable == 0:
            return super().embed(tensors, X)
        sent = [
            part if place == self.theta_at else part.to(self.device, non_blocking=True)
            for place, part in enumerate(tensors)
        ]
        return super().embed(sent, X.to(self.device, non_blocking=True)).cpu()


class DeepModule(nn.Module):
    """`DeepFeatures` with its tensors as buffers."""

    def __init__(self, features: DeepFeatures, tensors: Sequence[Tensor]):
        super().__init__()
        k = features.theta_at
        self.network = features.network.module([*tensors[:k], *tensors[k + 1 :]])
        self.fourier = features.kernel_features.module(tensors[k])
        self._factor = 1.0
        if features.network.n_trainable:
            spread = _SPREAD if features.random else 1.0
            self._factor = spread * features.network.n_features**-0.5
        box = None if features.box is None else torch.tensor(features.box, dtype=torch.float64)
        self.register_buffer("box", box)

    def forward(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n m"]:
        if self.box is None:
            return self.fourier(self.network(X) * self._factor)
        inside = X.clamp(self.box[0], self.box[1])
        phi = self.fourier(self.network(inside) * self._factor)
        outside = (X - inside).square().sum(1, keepdim=True)
        return torch.cat([phi, root(-torch.expm1(-outside / 2))], 1)


def make_deep_features(
    network: Network,
    kernel: TorchKernel,
    adds_noise: bool,
    n_components: int,
    generator: Generator,
    ranges: tuple[Float[Tensor, " d"], Float[Tensor, " d"]],
) -> DeepFeatures:
    """Draw the frequencies of a deep kernel.

    Parameters
    ----------
    network : Network
    kernel : TorchKernel
        Compiled for the network's columns, with white noise.
    adds_noise : bool
        As in `DeepFeatures`.
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
    box = None
    if network.n_trainable:
        low, high = ranges
        margin = _MARGIN * (high - low)
        box = tuple((low - margin).tolist()), tuple((high + margin).tolist())
    return DeepFeatures(network, features, kernel, adds_noise, box)
