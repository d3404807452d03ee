"""The posterior of a model that looks at the data through inducing points."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...core.likelihoods import Gaussian, Likelihood
from ...core.posteriors import KernelPosterior, WeightForm, reported_variance
from ...kernels import TorchKernel
from ._bound import WhitenedBelief, Whitening


@dataclass(frozen=True, eq=False)
class InducingSpace:
    """What such a posterior knows in the place of an operator over the rows.

    Attributes
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    Z : Tensor of shape (m, d)
        Inducing points, in the kernel's units.
    device : torch.device
    transform : callable or None
        What rows pass through before the kernel sees them.
    """

    kernel: TorchKernel
    theta: Float64[Tensor, " p"]
    Z: Float64[Tensor, "m d"]
    device: torch.device
    transform: Callable[[Tensor], Tensor] | None = None
    dtype: torch.dtype = torch.float64

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.Z), len(self.Z)

    def rows(self, X: Float[Tensor, "b d"]) -> Float64[Tensor, "b q"]:
        """Rows as the kernel takes them."""
        X = X.double()
        if self.transform is None:
            return X
        with torch.no_grad():
            return self.transform(X)


class InducingPosterior(KernelPosterior):
    """f(x) given a belief about whitened inducing values; holds no training rows.

    Parameters
    ----------
    operator : InducingSpace
        Kernel and inducing points.
    belief : WhitenedBelief
        q(v). Regressors share one covariance among their targets.
    likelihood : Likelihood, optional
        For the additive noise of new observations; Gaussian by default.

    Notes
    -----
    Building it costs O(m^3), a mean O(m) a row, a variance O(m^2). Titsias (2009), equation 6.
    """

    operator: InducingSpace

    def __init__(
        self,
        operator: InducingSpace,
        belief: WhitenedBelief,
        likelihood: Likelihood | None = None,
    ):
        self.operator = operator
        self.likelihood = likelihood or Gaussian()
        with torch.no_grad():
            K = operator.kernel.cross(operator.theta, operator.Z, operator.Z)
        self.white = Whitening.of(K)
        self.belief = belief
        self.weights = self.white.inverse.T @ belief.mean

    def _cross(self, X: Tensor) -> Float64[Tensor, "m b"]:
        ours = self.operator
        with torch.no_grad():
            return ours.kernel.cross(ours.theta, ours.Z, X)

    def moments(self, X: Float[Tensor, "b d"]) -> tuple[Tensor, Tensor]:
        """Means (b, q) and variances (b, s) of the latent functions."""
        X = self.operator.rows(X)
        K = self._cross(X)
        A = self.white.inverse @ K
        prior = self._diag(X)
        given = prior - A.square().sum(0)
        # What the points leave open, and what is not known about the points.
        left = reported_variance(given, prior)
        spread = torch.stack([((S @ A) * A).sum(0) for S in self.belief.covariance], 1)
        return K.T @ self.weights, left[:, None] + spread

    def _diag(self, X: Tensor) -> Float64[Tensor, " b"]:
        with torch.no_grad():
            return self.operator.kernel.diag(self.operator.theta, X)

    def mean(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b t"]:
        return self._cross(self.operator.rows(X)).T @ self.weights

    def variance(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        return self.moments(X)[1][:, 0]

    def covariance(self, X: Float[Tensor, "b d"]) -> Float[Tensor, "b b"]:
        X = self.operator.rows(X)
        A = self.white.inverse @ self._cross(X)
        with torch.no_grad():
            prior = self.operator.kernel.cross(self.operator.theta, X, X)
        return prior - A.T @ A + A.T @ self.belief.covariance[0] @ A

    def weight_form(self) -> WeightForm:
        """The same as low-rank variances take it: whitened inducing values are the weights."""
        space = self.operator

        def prior_covariance(X: Tensor) -> Tensor:
            X = space.rows(X)
            with torch.no_grad():
                return space.kernel.cross(space.theta, X, X)

        return WeightForm(
            features=lambda X: (self.white.inverse @ self._cross(space.rows(X))).T,
            precision=torch.linalg.inv(self.belief.covariance[0]),
            prior=lambda X: self._diag(space.rows(X)),
            prior_covariance=prior_covariance,
            has_rest=True,
        )

    def noise(self, X: Float[Tensor, "b d"]) -> Float[Tensor, " b"]:
        X = self.operator.rows(X)
        scale = self._scale(X)
        return self.likelihood.moments(torch.zeros_like(scale), scale)[1]

    def _scale(self, X: Tensor) -> Float64[Tensor, " b"]:
        with torch.no_grad():
            return self.operator.kernel.noise(self.operator.theta, X)

    def sample(
        self, X: Float[Tensor, "b d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "b t s"]:
        """Joint draws of f, and noise of the likelihood's own kind; O(b^3)."""
        covariance = self.covariance(X).cpu().numpy()
        zero = np.zeros(len(covariance))
        means = self.mean(X).cpu().numpy()
        f = random_state.multivariate_normal(zero, covariance, (means.shape[1], n_samples))
        f = means[:, :, None] + f.transpose(2, 0, 1)
        scale = self._scale(self.operator.rows(X)).cpu().numpy()
        return torch.as_tensor(self.likelihood.draw(f, scale[:, None, None], random_state))
