"""The posterior of a finite feature map, in weight space."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ._base import Posterior
from ._feature_weights import FeatureWeights
from ._weights import WeightForm


class FeatureMap(ABC):
    """What a posterior in weight space knows in the place of an operator over the rows.

    Attributes
    ----------
    device : torch.device
    dtype : torch.dtype
        Of the rows that it takes.
    shape : tuple of int
        q twice, for q features.
    """

    device: torch.device
    dtype: torch.dtype
    shape: tuple[int, int]

    @abstractmethod
    def evaluate(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        """phi(X), without a gradient."""

    @abstractmethod
    def noise(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, " m"]:
        """What white noise adds to a new observation's variance."""


class FeaturePosterior(Posterior):
    """f(x) = phi(x)' w with w ~ N(mean, (L L')^-1); holds no training rows.

    Parameters
    ----------
    operator : FeatureMap
        The map at the trained hyperparameters.
    weights : FeatureWeights
        Mean and factor of the weights' posterior.

    Notes
    -----
    A mean costs O(m) a row, a variance O(m^2); variances are sums of squares and never negative.
    """

    def __init__(self, operator: FeatureMap, weights: FeatureWeights):
        self.operator = operator
        self.weights = weights.mean
        self.factor = weights.factor

    @property
    def dtype(self) -> torch.dtype:
        return self.operator.dtype

    @property
    def device(self) -> torch.device:
        return self.operator.device

    @property
    def width(self) -> int:
        return len(self.weights)

    def _phi(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        return self.operator.evaluate(X)

    def _whitened(self, phi: Float64[Tensor, "m q"]) -> Float64[Tensor, "q m"]:
        return torch.linalg.solve_triangular(self.factor, phi.T, upper=False)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self._phi(X) @ self.weights

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._whitened(self._phi(X)).square().sum(0)

    def mean_and_variance(
        self, X: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m t"], Float[Tensor, " m"]]:
        phi = self._phi(X)
        return phi @ self.weights, self._whitened(phi).square().sum(0)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        V = self._whitened(self._phi(X))
        return V.T @ V

    def weight_form(self) -> WeightForm:
        """The same as low-rank variances take it."""
        return WeightForm(
            features=self._phi,
            precision=self.factor @ self.factor.T,
            prior=lambda X: self._phi(X).square().sum(1),
            prior_covariance=lambda X: self._phi(X) @ self._phi(X).T,
        )

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.operator.noise(X)

    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m t s"]:
        """Draws of the weights, hence of whole functions: O(m^2) a draw, O(m) a further row."""
        (q, t), device = self.weights.shape, self.operator.device
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        eps = torch.randn(q, t * n_samples, generator=generator, dtype=torch.float64).to(device)
        deviations = torch.linalg.solve_triangular(self.factor.T, eps, upper=True)
        w = self.weights[:, :, None] + deviations.reshape(q, t, n_samples)
        f = (self._phi(X) @ w.flatten(1)).reshape(len(X), t, n_samples)
        white = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(device)
        return f + white * self.noise(X).sqrt()[:, None, None]
