"""The protocol of posteriors, which answer in units of the normalised target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.operators import CrossOperator, KernelOperator
from ...linalg.solvers import SolveSummary
from ..likelihoods import Gaussian, Likelihood
from ._quantiles import additive_quantiles
from ._weights import WeightForm

if TYPE_CHECKING:
    from ._low_rank import LowRankForm

Rows, Draws = Float[Tensor, "m d"], Float[Tensor, "m t s"]
MeanAndVariance = tuple[Float[Tensor, "m t"], Float[Tensor, " m"]]


class Posterior(ABC):
    """A posterior over noise-free functions, which does not change.

    A subclass defines `variance`, `mean_and_variance`, or both.

    Attributes
    ----------
    dtype : torch.dtype
        Precision of its rows.
    device : torch.device
        Device on which it computes.
    width : int
        Number of floating-point numbers that a prediction holds for each row.
    likelihood : Likelihood
        Likelihood of an observation given the function; Gaussian by default.
    """

    likelihood: Likelihood = Gaussian()
    dtype: torch.dtype
    device: torch.device
    width: int

    @abstractmethod
    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        """The posterior mean, without the cost of variances."""

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The latent posterior variance, the same for every target."""
        return self.mean_and_variance(X)[1]

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        """Mean and variance; a subclass may evaluate the kernel only once for both."""
        return self.mean(X), self.variance(X)

    @abstractmethod
    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        """The latent posterior covariance of the rows of X."""

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Joint draws of the latent functions plus the kernel's own white noise at X.

        Here from the mean and the covariance of all rows; O(m^3). A new tensor, which the caller
        may overwrite.
        """
        covariance = self.covariance(X).cpu().double().numpy()
        covariance[np.diag_indices_from(covariance)] += self.noise(X).cpu().double().numpy()
        means = self.mean(X).cpu().double().numpy()
        # The same call as in scikit-learn, so that equal seeds give equal draws.
        draws = [random_state.multivariate_normal(one, covariance, n_samples).T for one in means.T]
        return torch.as_tensor(np.stack(draws, 1))

    @abstractmethod
    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance that the kernel's white noise adds to a new observation."""

    def training_noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance of the kernel's white noise in training; that of new observations here."""
        return self.noise(X)

    def observed_variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance of new observations without known noise."""
        return self.variance(X) + self.noise(X)

    def mean_and_observed_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        """The mean, and `observed_variance`."""
        mean, variance = self.mean_and_variance(X)
        return mean, variance + self.noise(X)

    def sample_noisy(
        self,
        X: Float[Tensor, "m d"],
        known: Float[np.ndarray, "m t"] | None,
        n_samples: int,
        random_state: np.random.RandomState,
    ) -> Float[Tensor, "m t s"]:
        """Joint draws of observations, with known noise variances besides the kernel's white noise.

        O(m^3) if the noise is not Gaussian; it is then drawn by the likelihood.
        """
        if self.likelihood.conjugate:
            draws = self.sample(X, n_samples, random_state)
            if known is None:
                return draws
            white = random_state.standard_normal(draws.shape)
            return draws.cpu().double().add_(torch.as_tensor(np.sqrt(known)[:, :, None] * white))
        covariance = self.covariance(X).cpu().double().numpy()
        means, noise = (part.cpu().double().numpy() for part in (self.mean(X), self.noise(X)))
        size = (means.shape[1], n_samples)
        f = random_state.multivariate_normal(np.zeros(len(means)), covariance, size)
        f = means[:, :, None] + f.transpose(2, 0, 1)
        scale = (
            noise[:, None] + (0 if known is None else known)
        ) / self.likelihood.variance_factor()
        return torch.as_tensor(self.likelihood.draw(f, scale[:, :, None], random_state))

    def quantiles(
        self,
        X: Float[Tensor, "m d"],
        q: Float[np.ndarray, " k"],
        include_noise: bool,
        known: Float[np.ndarray, "m t"] | None,
    ) -> Float[np.ndarray, "m t k"]:
        """Quantiles of new observations, or of the latent function.

        Parameters
        ----------
        X : Tensor of shape (m, d)
        q : ndarray of shape (k,)
            Probabilities.
        include_noise : bool
            Whether to include the kernel's white noise and the known noise.
        known : ndarray of shape (m, t), optional
            Known noise variances.
        """
        mean, variance = (part.cpu().double().numpy() for part in self.mean_and_variance(X))
        variance, noise = np.repeat(variance[:, None], mean.shape[1], 1), None
        if include_noise:
            noise = np.zeros_like(mean) if known is None else known
            noise = noise + self.noise(X).cpu().double().numpy()[:, None]
        return additive_quantiles(self.likelihood, mean, variance, noise, q)

    def leave_one_out(
        self,
        rows: Int[Tensor, " k"],
        X: Float[Tensor, "k d"],
        Y: Float[Tensor, "k t"],
        noise: Float[Tensor, " k"],
    ) -> MeanAndVariance | None:
        """Leave-one-out means and variances of training targets at the trained hyperparameters.

        None if there is no closed form.

        Parameters
        ----------
        rows : Tensor of shape (k,)
            Row numbers in the training table, in increasing order.
        X, Y : Tensor of shape (k, d) and (k, t)
            These rows and their targets.
        noise : Tensor of shape (k,)
            Their total noise variances, which the returned variances include.
        """
        return None

    def weight_form(self) -> WeightForm | None:
        """Features and the precision matrix of their weights; None for other posteriors."""
        return None

    def low_rank_form(self) -> LowRankForm | None:
        """The form from which low-rank variances are computed; None without fast products."""
        # The module of low-rank posteriors imports this one.
        from ._low_rank import WeightCaches

        form = self.weight_form()
        return None if form is None else WeightCaches(self, form)

    def take_unfinished(self) -> list[SolveSummary]:
        """Return and clear the list of solves that did not reach their tolerance."""
        return []


class KernelPosterior(Posterior):
    """A posterior that is computed from k(X, training rows).

    Parameters
    ----------
    operator : KernelOperator
        H, the kernel matrix plus noise, at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        The solution H^-1 Y.
    """

    def __init__(self, operator: KernelOperator, weights: Float[Tensor, "n t"]):
        self.operator = operator
        self.weights = weights
        self.dtype, self.device, self.width = operator.dtype, operator.device, operator.shape[0]

    def low_rank_form(self) -> LowRankForm:
        from ._low_rank import RowCaches

        return RowCaches(self)

    def cross(self, X: Float[Tensor, "m d"]) -> CrossOperator:
        """k(X, training rows)."""
        return self.operator.cross(X)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.cross(X).matmul(self.weights)

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.cross(X).prior_noise()


def without_own(
    Y: Float[Tensor, "k t"],
    mean: Float[Tensor, "k t"],
    variance: Float[Tensor, " k"],
    noise: Float[Tensor, " k"],
) -> MeanAndVariance:
    """Leave-one-out means and variances of targets, for linear models with fixed features.

    The leverage of a row is the variance of f there divided by the noise variance. Leaving out the
    row multiplies y - mean and the variance of f by 1 / (1 - leverage).

    Parameters
    ----------
    Y : Tensor of shape (k, t)
        The targets.
    mean, variance : Tensor of shape (k, t) and (k,)
        Mean and variance of f at these rows, given all rows.
    noise : Tensor of shape (k,)
        Positive noise variances of these targets.
    """
    left = (1 - variance / noise).clamp_min(torch.finfo(noise.dtype).eps ** 0.5)
    return Y - (Y - mean) / left[:, None], noise + variance / left


def reported_variance(variance: Tensor, scale: Tensor) -> Float[Tensor, " m"]:
    """Replace variances that are negative by rounding by zero; raise for more negative ones.

    Parameters
    ----------
    variance : Tensor of shape (m,)
        Computed variances.
    scale : Tensor of shape (m,)
        Prior variances, the scale of the rounding error.

    Raises
    ------
    FloatingPointError
        If a variance is more negative than rounding explains. The factor is then wrong, and
        clipping would hide the error.
    """
    limit = -(torch.finfo(variance.dtype).eps ** 0.5) * scale.clamp_min(
        torch.finfo(scale.dtype).tiny
    )
    if bool((variance < limit).any()):
        worst = float((variance / scale).min())
        raise FloatingPointError(
            f"A posterior variance is {worst:.1e} times the prior variance, which rounding does "
            "not explain. Raise the noise (alpha or a WhiteKernel) or use dtype='float64'."
        )
    return variance.clamp_min(0)
