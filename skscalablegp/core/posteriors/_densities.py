"""Log densities of new observations: in closed form, or by quadrature over the latent function."""

from __future__ import annotations

import math

import numpy as np
import torch
from jaxtyping import Float
from scipy.special import logsumexp

from ..likelihoods import Likelihood

# Quadrature nodes of the latent function in its standard deviations, for noise that is no mixture
# of normal distributions. They resolve noise that is a hundred times narrower than the distribution
# of the function.
NODES = np.linspace(-8.5, 8.5, 401)
LOG_WEIGHTS = -0.5 * NODES**2 - np.log(np.exp(-0.5 * NODES**2).sum())
# Number of floating-point numbers in one block.
_BLOCK = 2**21


def normal_log_density(
    y: Float[np.ndarray, "*#s"], mean: Float[np.ndarray, "*#s"], variance: Float[np.ndarray, "*#s"]
) -> Float[np.ndarray, "*#s"]:
    """log N(y; mean, variance), elementwise."""
    variance = np.maximum(variance, np.finfo(np.float64).tiny)
    return -0.5 * (np.log(2 * math.pi * variance) + np.square(y - mean) / variance)


def additive_log_density(
    likelihood: Likelihood,
    y: Float[np.ndarray, "m t"],
    mean: Float[np.ndarray, "m t"],
    variance: Float[np.ndarray, "m t"],
    noise: Float[np.ndarray, "m t"],
) -> Float[np.ndarray, "m t"]:
    """The log density of f + e for f ~ N(mean, variance) and noise e of the likelihood's kind.

    Parameters
    ----------
    likelihood : Likelihood
        An additive one.
    y, mean, variance, noise : ndarray of shape (m, t)
        Observations, moments of the latent functions, and variances of e.
    """
    scales = likelihood.noise_scales()
    if scales is None:
        return observed_log_density(
            likelihood, y, mean, variance, noise / likelihood.variance_factor()
        )
    total = np.zeros(y.shape)
    step = max(1, _BLOCK // (len(scales[0]) * y.shape[1]))
    for start in range(0, len(y), step):
        part = slice(start, start + step)
        spread = variance[part, :, None] + noise[part, :, None] * scales[0]
        each = normal_log_density(y[part, :, None], mean[part, :, None], spread)
        total[part] = logsumexp(each, axis=2, b=scales[1])
    return total


def observed_log_density(
    likelihood: Likelihood,
    y: Float[np.ndarray, "m t"],
    mean: Float[np.ndarray, "m t"],
    variance: Float[np.ndarray, "m t"],
    noise: Float[np.ndarray, "m t"],
) -> Float[np.ndarray, "m t"]:
    """The log of E p(y | f) for f ~ N(mean, variance), by the trapezoid rule."""
    total = np.zeros(y.shape)
    step = max(1, _BLOCK // (len(NODES) * y.shape[1]))
    for start in range(0, len(y), step):
        part = slice(start, start + step)
        f = mean[part, :, None] + np.sqrt(variance[part])[:, :, None] * NODES
        at = (torch.as_tensor(a) for a in (y[part, :, None], f, noise[part, :, None]))
        with torch.no_grad():
            given = likelihood.log_density(*at).numpy()
        total[part] = logsumexp(given + LOG_WEIGHTS, axis=2)
    return total
