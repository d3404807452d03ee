"""Quantiles of predictive distributions: in closed form, or by root finding."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jaxtyping import Float
from scipy.special import log_ndtr, ndtri

from ..likelihoods import Likelihood
from ._densities import LOG_WEIGHTS, NODES

# Maximum number of bisections, more than double precision can resolve.
_BISECTIONS = 200
# Newton steps converge at this change relative to the quantile.
_CONVERGED = 1e-13
# Number of floating-point numbers in one block.
_BLOCK = 2**21


def additive_quantiles(
    likelihood: Likelihood,
    mean: Float[np.ndarray, "m t"],
    variance: Float[np.ndarray, "m t"],
    noise: Float[np.ndarray, "m t"] | None,
    q: Float[np.ndarray, " k"],
) -> Float[np.ndarray, "m t k"]:
    """Quantiles of f + e for f ~ N(mean, variance) and noise e of the likelihood's kind.

    Parameters
    ----------
    likelihood : Likelihood
        An additive one.
    mean, variance : ndarray of shape (m, t)
        Moments of the latent functions.
    noise : ndarray of shape (m, t) or None
        Variance of e; None for the quantiles of f alone.
    q : ndarray of shape (k,)
        Probabilities.
    """
    scales = likelihood.noise_scales()
    if noise is None or (scales is not None and len(scales[0]) == 1):
        total = variance if noise is None else variance + noise
        return mean[..., None] + np.sqrt(total)[..., None] * ndtri(q)
    if scales is None:
        scale = noise / likelihood.variance_factor()
        return observed_quantiles(likelihood, mean, variance, scale, q)
    flat_v, flat_n = variance.reshape(-1), noise.reshape(-1)
    out = np.empty((mean.size, len(q)))
    step = max(1, _BLOCK // (len(q) * len(scales[0])))
    for start in range(0, mean.size, step):
        part = slice(start, start + step)
        spread = np.sqrt(flat_v[part, None] + flat_n[part, None] * scales[0])
        out[part] = _mixture_quantiles(spread, scales[1], q)
    return mean[..., None] + out.reshape(*mean.shape, len(q))


def _mixture_quantiles(
    spread: Float[np.ndarray, "m c"], weights: Float[np.ndarray, " c"], q: Float[np.ndarray, " k"]
) -> Float[np.ndarray, "m k"]:
    """Quantiles of mixtures of normal distributions with mean 0, by safeguarded Newton steps.

    The distribution is symmetric. The equation log P(z > x) = log p is solved for tails p up to a
    half, which keeps all digits of extreme quantiles.
    """
    # The two ends of a central interval have the same tail probability.
    tail = np.minimum(q, 1 - q)
    _, first, which = np.unique(np.log(tail).round(12), return_index=True, return_inverse=True)
    tail = tail[first]
    target, spread = np.log(tail)[None, :, None], np.maximum(spread, 1e-300)[:, None, :]
    low = np.zeros((len(spread), len(tail), 1))
    # The quantile of the widest component is an upper bound.
    high = spread.max(2, keepdims=True) * -ndtri(tail)[None, :, None]
    x = np.minimum(
        np.sqrt((weights * spread**2).sum(2, keepdims=True)) * -ndtri(tail)[:, None], high
    )
    for _ in range(_BISECTIONS):
        parts = log_ndtr(-x / spread) + np.log(weights)
        top = parts.max(2, keepdims=True)
        share = np.exp(parts - top)
        value = top + np.log(share.sum(2, keepdims=True)) - target
        low, high = np.where(value > 0, x, low), np.where(value > 0, high, x)
        density = np.exp(-0.5 * (x / spread) ** 2) / (np.sqrt(2 * np.pi) * spread) * weights
        slope = density.sum(2, keepdims=True) / np.exp(np.minimum(value + target, 0))
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            newton = x + value / slope
        inside = (newton > low) & (newton < high)
        new = np.where(inside, newton, 0.5 * (low + high))
        done = np.abs(new - x) <= _CONVERGED * np.abs(x)
        x = new
        if done.all():
            break
    return x[:, which, 0] * np.sign(q - 0.5)


def observed_quantiles(
    likelihood: Likelihood,
    mean: Float[np.ndarray, "m t"],
    variance: Float[np.ndarray, "m t"],
    noise: Float[np.ndarray, "m t"],
    q: Float[np.ndarray, " k"],
) -> Float[np.ndarray, "m t k"]:
    """Smallest y with P(Y <= y) >= q, from the likelihood's `cdf` and f ~ N(mean, variance).

    Quantiles of counts are whole numbers.
    """
    out = np.empty((*mean.shape, len(q)))
    weights = np.exp(LOG_WEIGHTS)
    step = max(1, _BLOCK // (len(NODES) * len(q) * mean.shape[1]))
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        f = mean[part][..., None] + np.sqrt(variance[part])[..., None] * NODES

        def share(y: np.ndarray, f=f, part=part) -> np.ndarray:
            given = likelihood.cdf(y[..., None], f[:, :, None], noise[part][..., None, None])
            return given @ weights

        out[part] = _bisected(share, mean[part], np.sqrt(variance[part] + noise[part]), q)
    return out


def _bisected(
    share: Callable[[np.ndarray], np.ndarray], centre: np.ndarray, spread: np.ndarray, q: np.ndarray
) -> np.ndarray:
    low, width = np.repeat(centre[..., None], len(q), axis=-1), np.maximum(spread, 1e-6)[..., None]
    high = low.copy()
    for _ in range(1100):
        above, below = share(low) >= q, share(high) < q
        if not (above.any() or below.any()):
            break
        low, high = np.where(above, low - width, low), np.where(below, high + width, high)
        width = 2 * width
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        enough = share(middle) >= q
        if ((middle <= low) | (middle >= high)).all():
            break
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    whole = np.round(high)
    near = np.abs(whole - high) <= 1e-9 * np.maximum(1, np.abs(high))
    return np.where(near, whole, high)
