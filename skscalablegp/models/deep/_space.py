"""A deep kernel's features as the map of a posterior in weight space."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...core.posteriors import FeatureMap
from ._features import DeepFeatures


@dataclass(frozen=True, eq=False)
class DeepFeatureSpace(FeatureMap):
    """The features of a deep kernel, and one noise variance.

    Attributes
    ----------
    features : DeepFeatures
    tensors : list of Tensor
        Its parameters, float64.
    noise_variance : float
    device : torch.device
    """

    features: DeepFeatures
    tensors: list[Tensor]
    noise_variance: float
    device: torch.device
    dtype: torch.dtype = torch.float64

    @property
    def shape(self) -> tuple[int, int]:
        return self.features.n_features, self.features.n_features

    def evaluate(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        with torch.no_grad():
            return self.features(self.tensors, X.double())

    def noise(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, " m"]:
        return X.new_full((len(X),), self.noise_variance, dtype=torch.float64)
