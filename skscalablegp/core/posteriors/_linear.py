"""Posteriors of weights of features, with or without a remainder from the prior."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor, nn

from ...kernels import TorchKernel
from ._base import Draws, Inputs, LowRankForm, MeanAndVariance, Posterior, without_own
from ._draws import Moved, WeightDraws, normal, prior_draws
from ._low_rank import explained_weights
from ._modules import Dense, KernelFeatures, LinearModule, PosteriorModule, Solved, WeightFeatures
from ._moments import Moments

# Lanczos starts with the average features of at most this many rows.
_PROBE_ROWS = 1000


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


class LinearPosterior(Posterior):
    """The posterior of f(x) = psi(x)' w + c + r(x), without training rows.

    The weights w ~ N(mean, B B') have the prior N(0, I). Random features have no remainder r. That
    of a process given its values at some points does not depend on the data.

    Parameters
    ----------
    features : WeightFeatures or KernelFeatures
        psi, or the covariances phi with points of which psi is made.
    mean : Tensor of shape (q, t)
        The weights' means.
    root : Dense or Solved
        B; several of them for latent functions with a covariance each.
    learned : bool, default=False
        Whether the features were also fitted to the rows. Leaving out a row then changes more than
        the weights, and there is no closed form.
    process : tuple of TorchKernel, Tensor and nn.Module, optional
        A kernel, its hyperparameters, and the `Dense` or `Solved` V with psi = phi V; None without
        a remainder.
    scale : float, default=1.0
        Factor of variances and covariances.
    transform : nn.Module, optional
        Applied to rows before everything else.
    constant : Tensor of shape (t,), optional
        c, by default zero.

    Notes
    -----
    For each row a mean costs O(q) and a variance O(q^2). Without a remainder variances are sums of
    squares.
    """

    dtype = torch.float64

    def __init__(
        self,
        features: WeightFeatures | KernelFeatures,
        mean: Float64[Tensor, "q t"],
        root: Dense | Solved,
        learned: bool = False,
        process: tuple[TorchKernel, Tensor, Dense | Solved] | None = None,
        scale: float = 1.0,
        transform: nn.Module | None = None,
        constant: Float64[Tensor, " t"] | None = None,
    ):
        self.weights, self._root, self._learned, self._process = mean, root, learned, process
        self.scale, self.device, self.width = scale, mean.device, len(mean)
        whiten = None if process is None else process[2]
        plain = mean if whiten is None else whiten.times(mean)
        minus = None if whiten is None else nn.Identity()
        parts = whiten, minus, root, transform, scale, constant
        self.linear = LinearModule(features, plain, *parts).to(self.device)

    def psi(self, X: Float[Tensor, "m d"]) -> Float64[Tensor, "m q"]:
        """The features whose weights have the prior N(0, I)."""
        return self.linear.whiten(self.linear.features(self.linear.transform(X.double())))

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.linear.mean(X.double())

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        return self.linear.moments(X.double())

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.linear.features.noise(self.linear.transform(X.double()))

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        return self.linear.joint(X.double()).covariance

    def learned_variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance from the weights, without that of the remainder."""
        spread = self._root(self.psi(X)).square().sum(-1)
        return self.scale * (spread if spread.ndim == 1 else spread[0])

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance | None:
        """The remainder is no part of what the row has told the weights."""
        if self._learned or not self.likelihood.conjugate:
            return None
        mean, variance, white = self.moments(X)
        learned = variance if self._process is None else self.learned_variance(X)
        noise = known + white
        mean, left_out = without_own(Y, mean, learned / self.scale, noise)
        return mean, noise + self.scale * (left_out - noise) + variance - learned

    def low_rank_form(self) -> WeightCaches | None:
        return None if self.scale != 1 else WeightCaches(self)

    def precision(self) -> Float64[Tensor, "q q"]:
        """The inverse of the weights' posterior covariance."""
        return self._root.precision()

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With q x q matrices for variances."""
        return (self.linear if with_variance else self.linear.alone()).exported()

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """psi(x)' w for draws w of the weights, plus what draws g of the prior have beside them.

        That is g(x) - psi(x)' v for the weights v with g(Z) = phi(Z) V v at the points Z.
        """
        shape, linear = (self.weights.shape[1], n_samples), self.linear.alone().exported()
        features, constant = linear.features, linear.constant
        if self._process is None:
            drawn: nn.Module = WeightDraws(features, self._drawn(shape, generator), constant)
        else:
            kernel, theta, whiten = self._process
            prior, whiten = prior_draws(kernel, theta, shape, generator), deepcopy(whiten).cpu()
            w = self._drawn(shape, generator)
            with torch.no_grad():
                g = prior(features.Z).flatten(1)
            away = whiten.times(w.flatten(1) - whiten(g.mT).mT).reshape(w.shape)
            # The factor of variances multiplies the distance from the mean.
            mean, share = linear.weights[:, :, None], self.scale**0.5
            prior.weights *= share
            moved = WeightDraws(features, mean + share * (away - mean), constant)
            drawn = Moved(prior, moved)
        return nn.Sequential(linear.transform, drawn)

    def _drawn(
        self, shape: tuple[int, int], generator: torch.Generator
    ) -> Float64[Tensor, "q t s"]:
        """Draws of the weights, on the CPU."""
        eps = normal(len(self.weights), *shape, generator=generator)
        away = self._deviations(eps.flatten(1).to(self.device))
        return (self.weights[:, :, None] + away.reshape(eps.shape)).cpu()

    def _deviations(self, eps: Float64[Tensor, "q k"]) -> Float64[Tensor, "q k"]:
        """A root of the weights' covariance times standard normal numbers."""
        return self._root.times(eps)

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Draw weights, and thereby whole functions: O(q^2) a draw, and O(q) for each row.

        From the covariance if there is a remainder.
        """
        if self._process is not None:
            return super().sample(X, n_samples, random_state)
        t, generator = self.weights.shape[1], torch.Generator()
        generator.manual_seed(int(random_state.randint(2**31 - 1)))
        w = self._drawn((t, n_samples), generator).to(self.device)
        f = (self.psi(X) @ w.flatten(1)).reshape(len(X), t, n_samples)
        white = normal(*f.shape, generator=generator).to(self.device)
        return f + white * self.noise(X).sqrt()[:, None, None]


class WeightCaches(LowRankForm):
    """Low-rank variances of a posterior over weights; they are never below the exact ones.

    Parameters
    ----------
    below : LinearPosterior
        The posterior with the mean, the noise and the exact variances.
    """

    below: LinearPosterior

    def __init__(self, below: LinearPosterior):
        super().__init__(below, len(below.weights))

    def need(self, rank: int) -> float:
        return 8.0 * (4 * self.full**2 + self.full * rank)

    def _caches(self, held, probes, rank, most):
        below, exact = self.below, self.below.variance(held)
        precision = below.precision()
        inner = precision - torch.eye(self.full).to(precision)
        start = below.psi(probes[:_PROBE_ROWS]).mean(0)
        while True:
            yield self._measured(explained_weights(inner, start, rank), held, exact)
            if rank >= most:
                return
            rank = min(2 * rank, most)

    def _low(self, basis):
        return LOVEWeights(self.below, basis)


class LOVEWeights(LinearPosterior):
    """A posterior over weights with variances from k Lanczos vectors.

    ``variance(x) = prior(x) - |Y' psi(x)|^2``, O(q k) a row beside the features themselves.

    Parameters
    ----------
    below : LinearPosterior
        The posterior with the mean and the noise.
    explained : Tensor of shape (q, k)
        Y with I - Y Y' close to the weights' posterior covariance, from above.
    """

    leave_one_out, learned_variance = Posterior.leave_one_out, Posterior.learned_variance

    def __init__(self, below: LinearPosterior, explained: Float[Tensor, "q k"]):
        vars(self).update(vars(below))
        self._below, self.explained = below, explained
        self.linear = below.linear.low_rank(explained)

    def low_rank_form(self) -> WeightCaches | None:
        return self._below.low_rank_form()

    def _deviations(self, eps: Float64[Tensor, "q k"]) -> Float64[Tensor, "q k"]:
        """(I - Y Y')^1/2 = I - U (1 - (1 - s^2)^1/2) U' with Y = U s V'."""
        U, s, _ = torch.linalg.svd(self.explained, full_matrices=False)
        shrunk = 1 - (1 - s.square()).clamp_min(0).sqrt()
        return eps - U @ (shrunk[:, None] * (U.T @ eps))
