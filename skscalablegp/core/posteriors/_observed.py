"""Observations: quantiles and draws from a posterior and its likelihood."""

from __future__ import annotations

from copy import copy
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import ndtri
from torch import Tensor

from ..likelihoods import Likelihood, Predictive
from ._base import Draws, Inputs, Posterior
from ._densities import additive_log_density, observed_log_density
from ._moments import Moments
from ._observed_modules import ObservedModule
from ._quantiles import additive_quantiles, observed_quantiles


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
    other = copy(posterior)
    other.likelihood = likelihood
    return other


class ObservedPosterior(Posterior):
    """Moments and draws of a single target y under a likelihood that is not additive.

    The kernel's white noise is a part of the latent function. The noise is the mean of the variance
    of y given f.

    Parameters
    ----------
    latent : Posterior
    likelihood : Likelihood
    """

    def __init__(self, latent: Posterior, likelihood: Likelihood):
        self.latent, self.likelihood = latent, likelihood
        self.dtype, self.device, self.width = latent.dtype, latent.device, latent.width

    def _predictive(self, X: Float[Tensor, "m d"]) -> Predictive:
        mean, variance, noise = self.latent.moments(X)
        variance = (variance + noise).double()
        zero = torch.zeros_like(variance)
        return self.likelihood.predictive(mean.double(), variance[:, None], zero)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m 1"]:
        """The mean of y, which depends on the variance of f."""
        return self._predictive(X).mean

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, variance, noise = self._predictive(X)
        return Moments(mean, variance[:, 0], noise[:, 0])

    def module(self, with_variance: bool = True) -> ObservedModule:
        """With the variances of the latent function, on which the mean of y depends."""
        return ObservedModule(self.latent.module(), self.likelihood)

    def covariance(self, X: Float[Tensor, "m d"]) -> NoReturn:
        """Raise a ValueError: the covariance has no closed form."""
        raise ValueError(
            f"The joint covariance of y under likelihood={self.likelihood!r} has no closed form: "
            "use return_std=True, or the covariance of draws of sample_y."
        )

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        f = self.latent.sample(X, n_samples, random_state).cpu().double().numpy()
        y = self.likelihood.draw(f, np.zeros(1), random_state)
        return torch.as_tensor(np.asarray(y, dtype=np.float64))

    def quantiles(
        self, X: Float[Tensor, "m d"], q: Float[np.ndarray, " k"], include_noise: bool
    ) -> Float[np.ndarray, "m 1 k"]:
        """Quantiles of y; without noise those of the mean of y given f, which is monotone in f."""
        mean, variance, noise = (part.cpu().double().numpy() for part in self.latent.moments(X))
        variance = (variance + noise)[:, None]
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

    def log_density(
        self, X: Float[Tensor, "m d"], Y: Float[np.ndarray, "m 1"]
    ) -> Float[np.ndarray, "m 1"]:
        """The log density, or log probability, of y at each row."""
        mean, variance, noise = (part.cpu().double().numpy() for part in self.latent.moments(X))
        none = np.zeros_like(mean)
        return observed_log_density(self.likelihood, Y, mean, (variance + noise)[:, None], none)


def predictive_log_density(
    posterior: Posterior,
    X: Float[Tensor, "m d"],
    Y: Float[np.ndarray, "m t"],
    known: Float[np.ndarray, "m t"] | None,
) -> Float[np.ndarray, "m t"]:
    """Log densities of new observations, one for each row and target.

    Parameters
    ----------
    posterior : Posterior
    X : Tensor of shape (m, d)
    Y : ndarray of shape (m, t)
        In the units of the posterior.
    known : ndarray of shape (m, t) or None
        Known noise variances.
    """
    if isinstance(posterior, ObservedPosterior):
        return posterior.log_density(X, Y)
    mean, variance, white = (part.cpu().double().numpy() for part in posterior.moments(X))
    variance = np.repeat(variance[:, None], mean.shape[1], 1)
    noise = white[:, None] + (np.zeros_like(mean) if known is None else known)
    return additive_log_density(posterior.likelihood, Y, mean, variance, noise)


def predictive_quantiles(
    posterior: Posterior,
    X: Float[Tensor, "m d"],
    q: Float[np.ndarray, " k"],
    include_noise: bool,
    known: Float[np.ndarray, "m t"] | None,
) -> Float[np.ndarray, "m t k"]:
    """Quantiles of new observations, or of the latent function.

    Parameters
    ----------
    posterior : Posterior
    X : Tensor of shape (m, d)
    q : ndarray of shape (k,)
        Probabilities.
    include_noise : bool
        Whether to include the kernel's white noise and the known noise.
    known : ndarray of shape (m, t) or None
        Known noise variances.
    """
    if isinstance(posterior, ObservedPosterior):
        return posterior.quantiles(X, q, include_noise)
    mean, variance, white = (part.cpu().double().numpy() for part in posterior.moments(X))
    variance, noise = np.repeat(variance[:, None], mean.shape[1], 1), None
    if include_noise:
        noise = np.zeros_like(mean) if known is None else known
        noise = noise + white[:, None]
    return additive_quantiles(posterior.likelihood, mean, variance, noise, q)


def draw_observations(
    posterior: Posterior,
    X: Float[Tensor, "m d"],
    known: Float[np.ndarray, "m t"] | None,
    n_samples: int,
    random_state: np.random.RandomState,
) -> Float[Tensor, "m t s"]:
    """Joint draws of observations, with known noise variances besides the kernel's white noise.

    O(m^3) if the noise is not Gaussian; it is then drawn by the likelihood.
    """
    likelihood = posterior.likelihood
    if likelihood.conjugate or not likelihood.additive:
        draws = posterior.sample(X, n_samples, random_state)
        if known is None:
            return draws
        white = random_state.standard_normal(draws.shape)
        return draws.cpu().double().add_(torch.as_tensor(np.sqrt(known)[:, :, None] * white))
    covariance = posterior.covariance(X).cpu().double().numpy()
    means, noise = (part.cpu().double().numpy() for part in (posterior.mean(X), posterior.noise(X)))
    size = (means.shape[1], n_samples)
    f = random_state.multivariate_normal(np.zeros(len(means)), covariance, size)
    f = means[:, :, None] + f.transpose(2, 0, 1)
    scale = (noise[:, None] + (0 if known is None else known)) / likelihood.variance_factor()
    return torch.as_tensor(likelihood.draw(f, scale[:, :, None], random_state))
