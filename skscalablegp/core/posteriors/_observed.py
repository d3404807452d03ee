"""Posteriors of observations that are not the latent function plus noise."""

from __future__ import annotations

from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

from ..likelihoods import Likelihood, Predictive
from ._base import Draws, MeanAndVariance, Posterior, Rows
from ._quantiles import observed_quantiles


def observed(posterior: Posterior, likelihood: Likelihood) -> Posterior:
    """The posterior of observations under a likelihood.

    Parameters
    ----------
    posterior : Posterior
        Posterior of the latent function.
    likelihood : Likelihood
    """
    if not likelihood.additive:
        return ObservedPosterior(posterior, likelihood)
    posterior.likelihood = likelihood
    return posterior


class ObservedPosterior(Posterior):
    """Moments and draws of a single target y under a likelihood of one latent function.

    The kernel's white noise is a part of the latent function.

    Parameters
    ----------
    latent : Posterior
    likelihood : Likelihood
    """

    def __init__(self, latent: Posterior, likelihood: Likelihood):
        self.latent, self.likelihood = latent, likelihood
        self.dtype, self.device, self.width = latent.dtype, latent.device, latent.width

    def _predictive(self, X: Float[Tensor, "m d"]) -> Predictive:
        mean, variance = self.latent.mean_and_variance(X)
        variance = (variance + self.latent.noise(X)).double()
        zero = torch.zeros_like(variance)
        return self.likelihood.predictive(mean.double(), variance[:, None], zero)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        """The mean of y, which depends on the variance of f."""
        return self._predictive(X).mean

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        found = self._predictive(X)
        return found.mean, found.variance[:, 0]

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The mean of the variance of y given f."""
        return self._predictive(X).noise[:, 0]

    def observed_variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.mean_and_observed_variance(X)[1]

    def mean_and_observed_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        """From one evaluation of the latent moments, which both parts of the variance need."""
        found = self._predictive(X)
        return found.mean, (found.variance + found.noise)[:, 0]

    def covariance(self, X: Float[Tensor, "m d"]) -> NoReturn:
        """Raise a ValueError: the covariance has no closed form."""
        raise ValueError(
            f"The joint covariance of y under likelihood={self.likelihood!r} has no closed form: "
            "use return_std=True, or the covariance of draws of sample_y."
        )

    def quantiles(self, X, q, include_noise, known):
        """Quantiles of y; without noise those of the mean of y given f, which is monotone in f."""
        mean, variance = self.latent.mean_and_variance(X)
        variance = (variance + self.latent.noise(X)).cpu().double().numpy()[:, None]
        mean = mean.cpu().double().numpy()
        if include_noise:
            return observed_quantiles(self.likelihood, mean, variance, np.zeros_like(mean), q)
        f = torch.as_tensor(mean[..., None] + np.sqrt(variance)[..., None] * ndtri(q))
        other = torch.as_tensor(mean[..., None] - np.sqrt(variance)[..., None] * ndtri(q))
        rising, falling = (
            self.likelihood.moments(at, torch.zeros_like(at))[0].numpy() for at in (f, other)
        )
        # If the mean decreases in f, its low quantiles are at high quantiles of f.
        turned = (rising - falling) * (q - 0.5) < 0
        return np.where(turned, falling, rising)

    def sample_noisy(self, X, known, n_samples, random_state):
        return self.sample(X, n_samples, random_state)

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        f = self.latent.sample(X, n_samples, random_state).cpu().double().numpy()
        y = self.likelihood.draw(f, np.zeros(1), random_state)
        return torch.as_tensor(np.asarray(y, dtype=np.float64))
