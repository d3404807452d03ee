"""Expected log densities of a target under a Gaussian belief about its latent function."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Generator, Tensor


class LikelihoodTerms(NamedTuple):
    """E log p(y | f) for f ~ N(mean, variance), a row at a time, with its derivatives.

    Attributes
    ----------
    value : Tensor of shape (b,)
        Summed over targets.
    d_mean : Tensor of shape (b, q)
        In the means of the q latent functions.
    d_variance : Tensor of shape (b, s)
        In their variances; s is 1 where the latent functions share a variance.
    d_noise : Tensor of shape (b,)
        In the noise variance; zero where the likelihood has none.
    """

    value: Tensor
    d_mean: Tensor
    d_variance: Tensor
    d_noise: Tensor


class Likelihood(BaseEstimator, ABC):
    """Settings of p(y | f); everything random comes from the generator that is passed in."""

    # Whether one natural step on all rows finds the best q(f).
    conjugate = False

    def n_latent(self, n_outputs: int) -> int:
        """Latent functions for so many targets, or classes."""
        return n_outputs

    def n_factors(self, n_outputs: int) -> int:
        """Different covariances among the latent functions."""
        return self.n_latent(n_outputs)

    def noise_factor(self) -> float:
        """Variance of the noise in units of its squared scale."""
        return 1.0

    def draw_noise(self, shape: tuple[int, ...], random_state: np.random.RandomState) -> np.ndarray:
        """Noise of scale one for draws of new observations."""
        return random_state.standard_normal(shape)

    @abstractmethod
    def terms(
        self,
        Y: Float[Tensor, "b t"],
        mean: Float[Tensor, "b q"],
        variance: Float[Tensor, "b s"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        """The expectation and its derivatives."""


class Gaussian(Likelihood):
    """y = f + e, e ~ N(0, noise); targets share the noise and hence the covariance of f."""

    conjugate = True

    def n_factors(self, n_outputs: int) -> int:
        return 1

    def terms(
        self,
        Y: Float[Tensor, "b t"],
        mean: Float[Tensor, "b t"],
        variance: Float[Tensor, "b 1"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        t = Y.shape[1]
        residual = Y - mean
        second = residual.square().sum(1) + t * variance[:, 0]
        value = -0.5 * (t * torch.log(2 * math.pi * noise) + second / noise)
        return LikelihoodTerms(
            value,
            residual / noise[:, None],
            (-0.5 * t / noise)[:, None],
            0.5 * (second / noise - t) / noise,
        )


class StudentT(Likelihood):
    """y = f + sqrt(noise) e with e from Student's t: a few wild targets do not bend f.

    Parameters
    ----------
    df : float, default=4.0
        Degrees of freedom, above 2 so that the noise has a variance; large values are Gaussian.
    n_nodes : int, default=32
        Nodes of the Gauss-Hermite quadrature.
    """

    def __init__(self, df: float = 4.0, *, n_nodes: int = 32):
        self.df = df
        self.n_nodes = n_nodes

    def noise_factor(self) -> float:
        return self.df / (self.df - 2)

    def draw_noise(self, shape: tuple[int, ...], random_state: np.random.RandomState) -> np.ndarray:
        return random_state.standard_t(self.df, shape)

    def terms(
        self,
        Y: Float[Tensor, "b 1"],
        mean: Float[Tensor, "b 1"],
        variance: Float[Tensor, "b 1"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        df = self.df
        f, weights = hermite_points(mean[:, 0], variance[:, 0], self.n_nodes)
        r, s2 = Y - f, noise[:, None]
        scaled = r.square() / (df * s2)
        constant = math.lgamma((df + 1) / 2) - math.lgamma(df / 2) - 0.5 * math.log(df * math.pi)
        log_density = constant - 0.5 * torch.log(s2) - 0.5 * (df + 1) * torch.log1p(scaled)
        weight = (df + 1) / (df * s2 * (1 + scaled))
        curvature = weight * (2 * scaled / (1 + scaled) - 1)
        d_noise = 0.5 * (weight * r.square() / s2 - 1 / s2)
        return LikelihoodTerms(
            log_density @ weights,
            ((weight * r) @ weights)[:, None],
            0.5 * (curvature @ weights)[:, None],
            d_noise @ weights,
        )


class Bernoulli(Likelihood):
    """Two classes, 0 and 1, of one latent function.

    Parameters
    ----------
    link : {"logit", "probit"}, default="logit"
        p(y = 1 | f) is 1 / (1 + exp(-f)), or the standard normal distribution function.
    n_nodes : int, default=32
        Nodes of the Gauss-Hermite quadrature.
    """

    def __init__(self, link: str = "logit", *, n_nodes: int = 32):
        self.link = link
        self.n_nodes = n_nodes

    def n_latent(self, n_outputs: int) -> int:
        return 1

    def terms(
        self,
        Y: Float[Tensor, "b 1"],
        mean: Float[Tensor, "b 1"],
        variance: Float[Tensor, "b 1"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        f, weights = hermite_points(mean[:, 0], variance[:, 0], self.n_nodes)
        sign = 2 * Y - 1
        log_density, slope, curvature = self._log_density(sign * f)
        return LikelihoodTerms(
            log_density @ weights,
            ((sign * slope) @ weights)[:, None],
            0.5 * (curvature @ weights)[:, None],
            torch.zeros_like(noise),
        )

    def _log_density(self, g: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """log p of a latent value in the direction of the class, and two derivatives."""
        if self.link == "logit":
            slope = torch.sigmoid(-g)
            return torch.nn.functional.logsigmoid(g), slope, -slope * (1 - slope)
        log_cdf = torch.special.log_ndtr(g)
        slope = torch.exp(-0.5 * g.square() - 0.5 * math.log(2 * math.pi) - log_cdf)
        return log_cdf, slope, -slope * (g + slope)

    def probabilities(
        self, mean: Float[Tensor, "b 1"], variance: Float[Tensor, "b 1"]
    ) -> Float[Tensor, "b 2"]:
        """Of both classes, f integrated out: in closed form for probit, else by quadrature."""
        if self.link == "probit":
            p = torch.special.ndtr(mean[:, 0] / torch.sqrt(1 + variance[:, 0]))
        else:
            f, weights = hermite_points(mean[:, 0], variance[:, 0], self.n_nodes)
            p = torch.sigmoid(f) @ weights
        return torch.stack([1 - p, p], 1)


class Softmax(Likelihood):
    """c classes of c latent functions, p(y = k | f) = exp(f_k) / sum_j exp(f_j).

    The expectation of the logarithm of the sum has no closed form: it is the mean over draws of f,
    in pairs of opposite sign. Derivatives in mean and variance are expectations of derivatives
    (Bonnet's and Price's theorems), so that curvatures never have the wrong sign.

    Parameters
    ----------
    n_samples : int, default=16
        Draws of f for each row of a batch.
    """

    def __init__(self, n_samples: int = 16):
        self.n_samples = n_samples

    def terms(
        self,
        Y: Float[Tensor, "b 1"],
        mean: Float[Tensor, "b c"],
        variance: Float[Tensor, "b c"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        half = max(self.n_samples // 2, 1)
        eps = torch.randn(half, *mean.shape, generator=generator, dtype=torch.float64)
        eps = torch.cat([eps, -eps]).to(mean)
        f = mean + variance.clamp_min(0).sqrt() * eps
        log_sum = torch.logsumexp(f, 2)
        p = torch.exp(f - log_sum[:, :, None])
        chosen = Y.long()
        observed = torch.zeros_like(mean).scatter_(1, chosen, 1.0)
        return LikelihoodTerms(
            mean.gather(1, chosen)[:, 0] - log_sum.mean(0),
            observed - p.mean(0),
            -0.5 * (p * (1 - p)).mean(0),
            torch.zeros_like(noise),
        )

    def probabilities(
        self,
        mean: Float[Tensor, "b c"],
        variance: Float[Tensor, "b c"],
        draws: Float[Tensor, "s c"],
    ) -> Float[Tensor, "b c"]:
        """Mean of softmax over the given standard normal draws."""
        f = mean[:, None] + variance.clamp_min(0).sqrt()[:, None] * draws
        return torch.softmax(f, 2).mean(1)


def hermite_points(
    mean: Float[Tensor, " b"], variance: Float[Tensor, " b"], n_nodes: int
) -> tuple[Float[Tensor, "b k"], Float[Tensor, " k"]]:
    """Points and weights with which a sum is E g(f) for f ~ N(mean, variance)."""
    nodes, weights = _hermite_rule(n_nodes)
    std = variance.clamp_min(0).sqrt()
    return mean[:, None] + std[:, None] * nodes.to(mean), weights.to(mean)


@lru_cache(maxsize=8)
def _hermite_rule(n_nodes: int) -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    return torch.as_tensor(nodes), torch.as_tensor(weights / weights.sum())
