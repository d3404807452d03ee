"""Random features of a kernel as the map of a posterior in weight space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...core.posteriors import FeatureMap
from ...features import PriorFeatures
from ...kernels import TorchKernel


@dataclass(frozen=True, eq=False)
class FeatureSpace(FeatureMap):
    """The random features of a kernel, and the kernel's own white noise.

    Attributes
    ----------
    kernel : TorchKernel
        For its white noise.
    theta : Tensor of shape (p,)
    features : PriorFeatures
    device : torch.device
    """

    kernel: TorchKernel
    theta: Float64[Tensor, " p"]
    features: PriorFeatures
    device: torch.device
    dtype: torch.dtype = torch.float64

    @property
    def shape(self) -> tuple[int, int]:
        return self.features.n_features, self.features.n_features

    def evaluate(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        with torch.no_grad():
            return self.features.evaluate(self.theta, X.double())

    def noise(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, " m"]:
        with torch.no_grad():
            return self.kernel.noise(self.theta, X.double())
