"""The posterior of a finite feature map, in weight space."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...linalg.solvers import cholesky_with_jitter
from ._base import Draws, Inputs, MeanAndVariance, Posterior, without_own
from ._draws import WeightDraws, normal
from ._low_rank import WeightCaches, WeightForm
from ._modules import LinearModule, PosteriorModule, WeightFeatures
from ._moments import Moments


@dataclass(frozen=True, eq=False)
class FeatureWeights:
    """The posterior of the weights of a finite feature map: w ~ N(mean, (L L')^-1).

    Attributes
    ----------
    factor : Tensor of shape (m, m)
        The lower triangular factor L.
    mean : Tensor of shape (m, t)
    jitter : float
        Number that was added to a diagonal to make the matrix positive definite.
    """

    factor: Float64[Tensor, "m m"]
    mean: Float64[Tensor, "m t"]
    jitter: float = 0.0

    @classmethod
    def of(cls, estimator: Any, device: torch.device) -> FeatureWeights:
        """The weights of a fitted estimator."""
        factor = torch.tensor(estimator.coef_precision_cholesky_, device=device)
        return cls(factor, torch.tensor(estimator.coef_, device=device))

    def given(
        self, phi: Float64[Tensor, "b m"], Y: Float64[Tensor, "b t"], noise: Float64[Tensor, " b"]
    ) -> FeatureWeights:
        """The posterior after further rows, of precision L L' + phi' D^-1 phi; O(m^3).

        `noise` are the noise variances D of these rows.
        """
        P, scaled = self.factor @ self.factor.T, phi / noise[:, None]
        factor = torch.linalg.cholesky(P + phi.T @ scaled)
        mean = torch.cholesky_solve(P @ self.mean + scaled.T @ Y, factor)
        return FeatureWeights(factor, mean, self.jitter)


def inverse_root(factor: Float64[Tensor, "m m"]) -> Float64[Tensor, "m m"]:
    """R = L^-T, with R R' = (L L')^-1."""
    units = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
    return torch.linalg.solve_triangular(factor, units, upper=False).T


class FeaturePosterior(Posterior):
    """The posterior of f(x) = phi(x)' w with w ~ N(mean, (L L')^-1), without training rows.

    Parameters
    ----------
    features : callable
        The features phi at the trained hyperparameters: (m, d) -> (m, q), in float64.
    noise : callable
        Variance of white noise for new observations: (m, d) -> (m,).
    weights : FeatureWeights
        Mean and factor of the posterior of the weights.
    learned : bool, default=False
        Whether the features were also fitted to the rows. Leaving out a row then changes more than
        the weights, and there is no closed form.
    parts : callable, optional
        Returns features and noise as a torch module.

    Notes
    -----
    For each row a mean costs O(q) and a variance O(q^2). Variances are sums of squares.
    """

    dtype = torch.float64

    def __init__(
        self,
        features: Callable[[Tensor], Tensor],
        noise: Callable[[Tensor], Tensor],
        weights: FeatureWeights,
        learned: bool = False,
        parts: Callable[[], WeightFeatures] | None = None,
    ):
        self._parts = parts
        self._features, self._noise, self._learned = features, noise, learned
        self.weights, self.factor = weights.mean, weights.factor
        self.device, self.width = self.weights.device, len(self.weights)

    @torch.no_grad()
    def _phi(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        return self._features(X.double())

    def _whitened(self, phi: Float64[Tensor, "m q"]) -> Float64[Tensor, "q m"]:
        return torch.linalg.solve_triangular(self.factor, phi.T, upper=False)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self._phi(X) @ self.weights

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        phi = self._phi(X)
        return Moments(phi @ self.weights, self._whitened(phi).square().sum(0), self.noise(X))

    def learned_variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance from the weights, without that of a remainder."""
        return self._whitened(self._phi(X)).square().sum(0)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        V = self._whitened(self._phi(X))
        return V.T @ V

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance | None:
        if self._learned:
            return None
        mean, variance, noise = self.moments(X)
        return without_own(Y, mean, variance, known + noise)

    def low_rank_form(self) -> WeightCaches | None:
        form = WeightForm(
            features=self._phi,
            precision=self.factor @ self.factor.T,
            prior=lambda X: self._phi(X).square().sum(1),
            prior_covariance=lambda X: self._phi(X) @ self._phi(X).T,
        )
        return WeightCaches(self, form)

    def with_spread(self, covariance: Float[Tensor, "q q"]) -> FeaturePosterior:
        other, root = copy(self), cholesky_with_jitter(covariance)[0]
        other.factor = cholesky_with_jitter(torch.cholesky_inverse(root))[0]
        return other

    def module(self, with_variance: bool = True) -> PosteriorModule:
        if self._parts is None:
            return super().module(with_variance)
        return LinearModule(self._parts(), self.weights, plus=inverse_root(self.factor))

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        if self._parts is None:
            return super().functions(n_samples, generator)
        q, t = self.weights.shape
        return WeightDraws(self._parts(), self._drawn(normal(q, t, n_samples, generator=generator)))

    def _drawn(self, eps: Float64[Tensor, "q t s"]) -> Float64[Tensor, "q t s"]:
        """Draws of the weights."""
        factor, mean = self.factor.cpu(), self.weights.cpu()[:, :, None]
        apart = torch.linalg.solve_triangular(factor.T, eps.flatten(1), upper=True)
        return mean + apart.reshape(eps.shape)

    @torch.no_grad()
    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._noise(X.double())

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Draw weights, and thereby whole functions: O(q^2) a draw, and O(q) for each row."""
        (q, t), device = self.weights.shape, self.device
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        eps = torch.randn(q, t * n_samples, generator=generator, dtype=torch.float64).to(device)
        deviations = torch.linalg.solve_triangular(self.factor.T, eps, upper=True)
        w = self.weights[:, :, None] + deviations.reshape(q, t, n_samples)
        f = (self._phi(X) @ w.flatten(1)).reshape(len(X), t, n_samples)
        white = torch.randn(f.shape, generator=generator, dtype=torch.float64).to(device)
        return f + white * self.noise(X).sqrt()[:, None, None]
