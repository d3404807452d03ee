"""The base class of likelihoods p(y | f), which computes expectations by quadrature."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.optimize import minimize_scalar
from sklearn.base import BaseEstimator
from torch import Generator, Tensor

from ..._validation import check_integer

# Variance of the normal prior of a latent constant around the value that explains the targets, in
# squared units of the latent function.
CONSTANT_VARIANCE = 1.0
# Latent constants are searched up to this absolute value, and as far as targets reach.
_MOST = 30.0
# Quadrature nodes are left out if their weight relative to the largest is smaller.
_NEGLIGIBLE = 1e-12


class LikelihoodTerms(NamedTuple):
    """E log p(y | f) for f ~ N(mean, variance) of each row, with its derivatives.

    Attributes
    ----------
    value : Tensor of shape (b,)
        The expectation, summed over targets; differentiable in mean and variance by autograd.
    d_mean : Tensor of shape (b, q)
        Derivatives with respect to the means of the q latent functions.
    d_variance : Tensor of shape (b, s)
        Derivatives with respect to their variances; s is 1 if they share a variance.
    d_noise : Tensor of shape (b,)
        Derivative with respect to the noise variance; zero if the likelihood has none.
    """

    value: Tensor
    d_mean: Tensor
    d_variance: Tensor
    d_noise: Tensor


class Predictive(NamedTuple):
    """Moments of a new observation y; its variance is ``variance + noise``.

    Attributes
    ----------
    mean : Tensor of shape (b, t)
        The mean of y.
    variance : Tensor of shape (b, t)
        The variance of E[y | f], which comes from the uncertainty of the latent function.
    noise : Tensor of shape (b, t)
        The mean of Var[y | f], which remains if the latent function is known.
    """

    mean: Tensor
    variance: Tensor
    noise: Tensor


# The likelihoods that have a name, by name.
LIKELIHOODS: dict[str, type[Likelihood]] = {}


class Likelihood(BaseEstimator, ABC):
    """p(y | f), the distribution of an observation given the latent function.

    A subclass defines `log_density`, and for regression `moments`; `sample_y` also needs `draw`,
    and quantiles need `cdf`. The base class computes expectations by Gauss-Hermite quadrature and
    derivatives by autograd. A likelihood with closed forms overrides `derivatives` or `expected`.
    A likelihood whose latent functions interact, such as a softmax, overrides `n_latent`,
    `expected` and `probabilities`. ``class Counts(Likelihood, name="counts")`` also has a name.

    Attributes
    ----------
    log_concave : bool
        Whether log p(y | f) is concave in f, which sampled models require.
    additive : bool
        Whether y = f + noise, where the kernel's white noise is the variance of the noise.
        Otherwise white noise is a part of the latent function, and targets are not normalised.
    conjugate : bool
        Whether one natural gradient step on all rows finds the optimal variational distribution,
        as for Gaussian noise.
    classes : bool
        Whether y is the number of a class, counted from 0.
    n_nodes : int
        Number of quadrature nodes.

    Notes
    -----
    In elementwise methods the last axis of the tensors belongs to the quadrature nodes.
    """

    log_concave: bool = False
    additive: bool = False
    conjugate: bool = False
    classes: bool = False
    n_nodes: int = 32

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if name is not None:
            LIKELIHOODS[name] = cls

    @abstractmethod
    def log_density(self, y: Tensor, f: Tensor, noise: Tensor) -> Tensor:
        """Elementwise log p(y | f), in torch functions.

        Parameters
        ----------
        y, f, noise : Tensor
            Observations, latent values and noise variances (in squared units of y), of shapes that
            broadcast. Likelihoods that are not additive do not use the noise.

        Returns
        -------
        value : Tensor
        """

    def moments(self, f: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Elementwise mean and variance of y given f, for regression.

        Parameters
        ----------
        f, noise : Tensor
            As in `log_density`.

        Returns
        -------
        mean, variance : Tensor
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no moments(f, noise), the mean and the variance of y given "
            "f, which predictions of a regressor need: define it."
        )

    def draw(
        self, f: np.ndarray, noise: np.ndarray, random_state: np.random.RandomState
    ) -> np.ndarray:
        """Elementwise draws of y given f, for `sample_y`.

        Parameters
        ----------
        f, noise : ndarray
            Latent values, and noise variances that broadcast to them.
        random_state : RandomState

        Returns
        -------
        y : ndarray
            An array of the shape of f.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no draw(f, noise, random_state), draws of y given f, which "
            "sample_y needs: define it."
        )

    def cdf(self, y: np.ndarray, f: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Elementwise cumulative distribution function of y given f, for quantiles.

        Parameters
        ----------
        y, f, noise : ndarray
            Values of y, latent values and noise variances, of shapes that broadcast.

        Returns
        -------
        p : ndarray
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no cdf(y, f, noise), the probability of at most y given f, "
            "which predict_quantiles and predict_interval need: define it."
        )

    def noise_scales(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The noise as a scale mixture of normal distributions, for additive likelihoods.

        Returns
        -------
        scales, weights : ndarray of shape (c,)
            Variances of the components relative to that of the noise, and their probabilities.
            None if there is no such form; `cdf` is then used.
        """
        return None

    def variance_factor(self) -> float:
        """Ratio of the variance of additive noise to the argument `noise`."""
        one = torch.ones(1, dtype=torch.float64)
        return float(self.moments(0 * one, one)[1])

    def n_latent(self, n_outputs: int) -> int:
        """Number of latent functions: one for each target, or one for all classes.

        Parameters
        ----------
        n_outputs : int
            Number of targets or classes.

        Raises
        ------
        ValueError
            For invalid settings, or a number of targets or classes that the likelihood does not
            support.
        """
        return 1 if self.classes else n_outputs

    def start_targets(self, Y: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
        """Targets for an initial fit with Gaussian noise, near the values of the latent function.

        Parameters
        ----------
        Y : Tensor of shape (n, t)
        """
        return clipped(Y) if self.heavy_tails else Y

    def constant(
        self, Y: Float[Tensor, "n t"], n_outputs: int, counts: np.ndarray | None = None
    ) -> Float[Tensor, " q"]:
        """Latent constants that explain the targets without a function of the rows.

        Each maximises the weighted log likelihood of its targets plus the log density of a normal
        prior with variance 100, which bounds it if all targets are equal.

        Parameters
        ----------
        Y : Tensor of shape (n, t)
        n_outputs : int
            Number of targets or classes.
        counts : array-like of shape (n,), optional
            Weights of the rows.
        """
        weights = torch.ones(len(Y)) if counts is None else torch.as_tensor(counts)
        at = self.start_targets(Y)
        bounds = min(-_MOST, float(at.min())), max(_MOST, float(at.max()))

        def loss(y: Tensor, f: float) -> float:
            density = self.log_density(y, torch.full_like(y, f), torch.zeros_like(y))
            value = float(weights.to(density) @ density) - f**2 / 200
            return -value if math.isfinite(value) else math.inf

        if self.n_latent(n_outputs) != Y.shape[1]:
            return Y.new_zeros(self.n_latent(n_outputs))
        found = [minimize_scalar(partial(loss, y), bounds=bounds, method="bounded") for y in Y.T]
        return Y.new_tensor([each.x for each in found])

    @property
    def heavy_tails(self) -> bool:
        """Whether this is additive noise with heavy tails, so that outliers have little weight."""
        return self.additive and not self.conjugate

    def curvature(self, Y: Float[Tensor, "n t"], noise: Float[Tensor, " n"]) -> float:
        """Typical second derivative of -log p in f, which scales the steps of sampled models.

        For additive noise it is that of Gaussian noise, otherwise the mean at `start_targets`.

        Parameters
        ----------
        Y : Tensor of shape (n, t)
            Targets of some rows.
        noise : Tensor of shape (n,)
        """
        if self.additive:
            return float((1 / noise).mean())
        return -float(self.derivatives(Y, self.start_targets(Y), noise[:, None])[2].mean())

    def derivatives(
        self, y: Tensor, f: Tensor, noise: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Elementwise log p, its first two derivatives in f, and its derivative in the noise.

        Parameters
        ----------
        y, f, noise : Tensor
            As in `log_density`.
        """
        with torch.enable_grad():
            at, scale = f.detach().requires_grad_(), noise.detach().expand_as(f).clone()
            value = self.log_density(y, at, scale.requires_grad_())
            slope, d_noise = torch.autograd.grad(
                value.sum(), (at, scale), create_graph=True, materialize_grads=True
            )
            # Adding 0 * at gives a graph to slopes that do not depend on f.
            (curvature,) = torch.autograd.grad(slope.sum() + 0 * at.sum(), at)
        value = self.log_density(y, f, noise) if f.requires_grad else value.detach()
        return value, slope.detach(), curvature, d_noise.detach()

    def expected(
        self,
        Y: Float[Tensor, "b t"],
        mean: Float[Tensor, "b q"],
        variance: Float[Tensor, "b s"],
        noise: Float[Tensor, " b"],
        generator: Generator | None = None,
    ) -> LikelihoodTerms:
        """E log p(y | f) for f ~ N(mean, variance), each latent function with its own target.

        Derivatives in mean and variance are expectations of derivatives (Bonnet's and Price's
        theorems), so that curvatures never have the wrong sign.

        Parameters
        ----------
        Y : Tensor of shape (b, t)
        mean : Tensor of shape (b, q)
        variance : Tensor of shape (b, s)
            s is q, or 1 if the latent functions share their variance.
        noise : Tensor of shape (b,)
        generator : Generator, optional
            Generator for likelihoods that draw random numbers.
        """
        f, weights = hermite_points(mean, variance, self.n_nodes)
        value, slope, curvature, d_noise = self.derivatives(
            Y[:, :, None], f, noise.to(f)[:, None, None]
        )
        d_variance = 0.5 * (curvature @ weights)
        return LikelihoodTerms(
            (value @ weights).sum(1),
            slope @ weights,
            shared_sum(d_variance, variance),
            (d_noise @ weights).sum(1),
        )

    def predictive(
        self, mean: Float[Tensor, "b q"], variance: Float[Tensor, "b s"], noise: Float[Tensor, " b"]
    ) -> Predictive:
        """Moments of a new observation whose latent value is N(mean, variance).

        Parameters
        ----------
        mean, variance, noise : Tensor
            As in `expected`.
        """
        f, weights = hermite_points(mean, variance, self.n_nodes)
        given, spread = self.moments(f, noise.to(f)[:, None, None])
        given, spread = given.expand_as(f), spread.expand_as(f)
        centre = given @ weights
        between = (given - centre[:, :, None]).square() @ weights
        return Predictive(centre, between, spread @ weights)

    def probabilities(
        self,
        mean: Float[Tensor, "b q"],
        variance: Float[Tensor, "b s"],
        n_classes: int,
        draws: Float[Tensor, "k q"] | None = None,
    ) -> Float[Tensor, "b c"]:
        """Class probabilities, averaged over the uncertainty of the latent functions.

        Parameters
        ----------
        mean, variance : Tensor
            As in `expected`.
        n_classes : int
        draws : Tensor of shape (k, q), optional
            Standard normal draws, for likelihoods of several latent functions.
        """
        f, weights = hermite_points(mean, variance, self.n_nodes)
        classes = [torch.full_like(f, k) for k in range(n_classes)]
        p = [torch.exp(self.log_density(y, f, torch.zeros_like(f))) @ weights for y in classes]
        return torch.cat(p, 1)


def without_own_target(
    terms: LikelihoodTerms, mean: Float[Tensor, "b q"], variance: Float[Tensor, "b s"]
) -> tuple[Float[Tensor, "b q"], Float[Tensor, "b s"]]:
    """Moments of the latent functions at rows, each without its own target.

    The row's approximate likelihood, N(r / w, 1 / w) with the expected curvature w, is divided out
    of N(mean, variance), which is what all rows say. This takes one pass instead of n fits. Vehtari
    et al. (2016), Bayesian leave-one-out cross-validation approximations, section 3.2.
    """
    w = (-2 * terms.d_variance).clamp_min(0) * (variance.shape[1] / mean.shape[1])
    share = (1 - w * variance).clamp_min(0.05)
    return (mean - variance * (terms.d_mean + w * mean)) / share, variance / share


def shared_sum(terms: Float[Tensor, "b q"], variance: Float[Tensor, "b s"]) -> Tensor:
    """Sum derivatives over latent functions if these share their variance."""
    return terms if variance.shape[1] == terms.shape[1] else terms.sum(1, keepdim=True)


def hermite_points(
    mean: Float[Tensor, "b q"], variance: Float[Tensor, "b s"], n_nodes: Any
) -> tuple[Float[Tensor, "b q k"], Float[Tensor, " k"]]:
    """Points and weights with which a sum is E g(f) for f ~ N(mean, variance)."""
    nodes, weights = _hermite_rule(check_integer("n_nodes", n_nodes))
    std = variance.clamp_min(0).sqrt()
    nodes, weights = (torch.as_tensor(part).to(mean) for part in (nodes, weights))
    return mean[:, :, None] + std[:, :, None] * nodes, weights


@lru_cache(maxsize=8)
def gamma_rule(shape: float) -> tuple[np.ndarray, np.ndarray]:
    """Points and weights with which a sum is E g(u) for u ~ Gamma(shape, 1) and smooth g.

    The trapezoid rule in log u converges exponentially, since the density there falls exponentially
    on the left and faster on the right. Weights down to 1e-20 are kept for extreme quantiles.
    """
    spread = max(1.0, 1 / shape) / math.sqrt(max(shape, 1.0))
    step = 0.2 * min(1.0, 2 / math.sqrt(shape))
    x = math.log(shape) + np.arange(-50 / shape - 14 * spread, 14 * spread, step)
    log_weight = shape * x - np.exp(x)
    log_weight -= log_weight.max()
    x, weights = x[log_weight > -60], np.exp(log_weight[log_weight > -60])
    return np.exp(x), weights / weights.sum()


@lru_cache(maxsize=8)
def _hermite_rule(n_nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Arrays, because tensors that are made while a module is traced are of no use later."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(n_nodes)
    keep = weights > _NEGLIGIBLE * weights.max()
    nodes, weights = nodes[keep], weights[keep]
    return nodes, weights / weights.sum()


def clipped(Y: Float[Tensor, "n t"]) -> Float[Tensor, "n t"]:
    """The targets, clipped to three robust standard deviations around the median."""
    middle = Y.median(0).values
    spread = 1.4826 * (Y - middle).abs().median(0).values
    return torch.where(spread > 0, Y.clamp(middle - 3 * spread, middle + 3 * spread), Y)
