"""Log-concave likelihoods of one latent function, and their expectations under a Gaussian."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

N_NODES = 101


class Site(ABC):
    """log g(y | f), concave in f (a site projection: Evans and Nair 2020, appendix H).

    Everything is elementwise over rows and targets; `std` is that of f under q, and expectations
    are over f ~ N(mean, std^2).
    """

    # Whether E log g is quadratic in the mean, so that products of two draws are unbiased.
    gaussian = False

    @abstractmethod
    def expected(
        self, Y: Float[Tensor, "b t"], mean: Float[Tensor, "b t"], std: Float[Tensor, "b t"]
    ) -> Float[Tensor, "b t"]:
        """E log g."""

    @abstractmethod
    def residual(
        self, Y: Float[Tensor, "b t"], mean: Float[Tensor, "b t"], std: Float[Tensor, "b t"]
    ) -> Float[Tensor, "b t"]:
        """Minus the derivative of `expected` in the mean (Bonnet's theorem)."""

    @abstractmethod
    def curvature(
        self, Y: Float[Tensor, "b t"], mean: Float[Tensor, "b t"], std: Float[Tensor, "b t"]
    ) -> Float[Tensor, "b t"]:
        """Minus its second derivative in the mean, minus twice that in the variance (Price)."""

    @property
    @abstractmethod
    def typical_curvature(self) -> float:
        """What step sizes are scaled by."""

    @property
    def noise(self) -> float:
        """Variance of y given f, 0 for labels."""
        return 0.0


@dataclass(frozen=True)
class GaussianSite(Site):
    """y = f + e with e ~ N(0, variance); everything in closed form.

    Parameters
    ----------
    variance : float
        Noise variance.
    """

    variance: float
    gaussian = True

    def expected(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        quadratic = ((Y - mean).square() + std.square()) / self.variance
        return -0.5 * (math.log(2 * math.pi * self.variance) + quadratic)

    def residual(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return (mean - Y) / self.variance

    def curvature(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        return torch.full_like(mean, 1 / self.variance)

    @property
    def typical_curvature(self) -> float:
        return 1 / self.variance

    @property
    def noise(self) -> float:
        return self.variance


@dataclass(frozen=True)
class LaplaceSite(Site):
    """y = f + e with density exp(-|e| / scale) / (2 scale): robust regression, in closed form.

    Parameters
    ----------
    scale : float
        Mean absolute deviation; positive.

    Raises
    ------
    ValueError
        For a scale that is not positive.
    """

    scale: float

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ValueError(
                f"The Laplace likelihood needs a positive scale, got {self.scale!r}: the noise "
                "variance of the kernel's WhiteKernel is twice its square."
            )

    def _standardised(self, Y: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        std = std.clamp_min(1e-6 * self.scale)
        return (mean - Y) / std, std

    def expected(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        u, std = self._standardised(Y, mean, std)
        density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        # The mean of a folded normal variable.
        folded = std * (2 * density + u * torch.erf(u / math.sqrt(2)))
        return -math.log(2 * self.scale) - folded / self.scale

    def residual(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        u, _ = self._standardised(Y, mean, std)
        return torch.erf(u / math.sqrt(2)) / self.scale

    def curvature(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        u, std = self._standardised(Y, mean, std)
        density = torch.exp(-0.5 * u.square()) / math.sqrt(2 * math.pi)
        return 2 * density / (std * self.scale)

    @property
    def typical_curvature(self) -> float:
        return 1 / self.noise

    @property
    def noise(self) -> float:
        return 2 * self.scale**2


@dataclass(frozen=True)
class LogisticSite(Site):
    """P(y | f) = 1 / (1 + exp(-y f)) for y = -1 or 1, by Gauss-Hermite quadrature.

    Parameters
    ----------
    n_nodes : int, default=101
        Nodes of the quadrature.
    """

    n_nodes: int = N_NODES

    def _points(self, Y: Tensor, mean: Tensor, std: Tensor) -> tuple[Tensor, Tensor]:
        nodes, weights = _normal_rule(self.n_nodes)
        margin = Y[..., None] * (mean[..., None] + std[..., None] * nodes.to(mean))
        return margin, weights.to(mean)

    def expected(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        margin, weights = self._points(Y, mean, std)
        return torch.nn.functional.logsigmoid(margin) @ weights

    def residual(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        margin, weights = self._points(Y, mean, std)
        return -Y * (torch.sigmoid(-margin) @ weights)

    def curvature(self, Y: Tensor, mean: Tensor, std: Tensor) -> Tensor:
        margin, weights = self._points(Y, mean, std)
        p = torch.sigmoid(margin)
        return (p * (1 - p)) @ weights

    @property
    def typical_curvature(self) -> float:
        return 0.25

    def probability(self, mean: Tensor, std: Tensor) -> Tensor:
        """P(y = 1) with f integrated out."""
        margin, weights = self._points(torch.ones_like(mean), mean, std)
        return torch.sigmoid(margin) @ weights


@lru_cache(maxsize=8)
def _normal_rule(n_nodes: int) -> tuple[Tensor, Tensor]:
    """Nodes and weights of a standard normal variable."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    keep = weights > 1e-12 * weights.max()
    nodes, weights = nodes[keep], weights[keep]
    return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())
