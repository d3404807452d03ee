"""Latent functions behind a likelihood, as torch modules."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..likelihoods import Likelihood
from ._modules import KernelFeatures, PosteriorModule
from ._moments import Moments


class ObservedModule(PosteriorModule):
    """Moments of a target under a likelihood that is not additive.

    Parameters
    ----------
    latent : PosteriorModule
    likelihood : Likelihood
    """

    def __init__(self, latent: PosteriorModule, likelihood: Likelihood):
        super().__init__()
        self.latent, self._likelihood = latent, likelihood

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, variance, noise = self.latent.moments(X)
        total = (variance + noise)[:, None]
        at = self._likelihood.predictive(mean, total, torch.zeros_like(noise))
        return Moments(at.mean, at.variance[:, 0], at.noise[:, 0])


class LatentModule(nn.Module):
    """Several latent functions of inducing points, each with a covariance of its own.

    Parameters
    ----------
    features : KernelFeatures
    weights : Tensor of shape (k, q)
    whiten : Tensor of shape (k, k)
        Features times this matrix belong to whitened inducing values.
    roots : Tensor of shape (s, k, k)
        Roots of their covariances times `whiten`; s is q, or 1 for a common covariance.
    transform : nn.Module, optional
        Applied to rows before everything else.
    constant : Tensor of shape (q,), optional
        Prior means, by default zero.
    """

    weights: Tensor
    whiten: Tensor
    roots: Tensor
    constant: Tensor

    def __init__(
        self,
        features: KernelFeatures,
        weights: Float[Tensor, "k q"],
        whiten: Float[Tensor, "k k"],
        roots: Float[Tensor, "s k k"],
        transform: nn.Module | None = None,
        constant: Float[Tensor, " q"] | None = None,
    ):
        super().__init__()
        self.features, self.transform = features, transform or nn.Identity()
        constant = weights.new_zeros(weights.shape[1]) if constant is None else constant
        parts = dict(weights=weights, whiten=whiten, roots=roots, constant=constant)
        for name, value in parts.items():
            self.register_buffer(name, value.detach().double().cpu().clone())

    def forward(self, X: Float[Tensor, "m d"]) -> tuple[Float[Tensor, "m q"], Float[Tensor, "m s"]]:
        """Means and variances, white noise included."""
        X = self.transform(X)
        phi = self.features(X)
        left = (self.features.prior(X, phi) - (phi @ self.whiten).square().sum(1)).clamp_min(0)
        spread = (phi @ self.roots).square().sum(2).mT
        return phi @ self.weights + self.constant, (left + self.features.noise(X))[:, None] + spread
