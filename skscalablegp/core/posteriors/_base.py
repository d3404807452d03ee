"""What answers predictions, in the units of the model's own (normalised) target."""

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

MeanAndVariance = tuple[Float[Tensor, "m t"], Float[Tensor, " m"]]


class Posterior(ABC):
    """A frozen posterior over noise-free functions; has `variance`, `mean_and_variance`, or both.

    Attributes
    ----------
    dtype : torch.dtype
        Of the rows that it takes.
    device : torch.device
        Where it answers.
    width : int
        Numbers held for each row of a prediction.
    likelihood : Likelihood
        Of an observation given the function; Gaussian where a subclass says nothing else.
    """

    likelihood: Likelihood = Gaussian()
    dtype: torch.dtype
    device: torch.device
    width: int

    @abstractmethod
    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        """The posterior mean; never pays for variances."""

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The latent posterior variance, the same for every target."""
        return self.mean_and_variance(X)[1]

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        """Both; one evaluation of what they share, where a subclass says how."""
        return self.mean(X), self.variance(X)

    @abstractmethod
    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        """The latent posterior covariance of the rows of X."""

    @abstractmethod
    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m t s"]:
        """Joint draws of the latent functions plus the kernel's own white noise at X.

        A new tensor, which the caller may overwrite.
        """

    @abstractmethod
    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """What the kernel's white noise adds to a new observation's variance."""

    def sample_noisy(
        self,
        X: Float[Tensor, "m d"],
        known: Float[np.ndarray, "m t"] | None,
        n_samples: int,
        random_state: np.random.RandomState,
    ) -> Float[Tensor, "m t s"]:
        """Joint draws of observations, with known noise variances beside the kernel's white noise.

        O(m^3) where noise is not Gaussian: it is then drawn by the likelihood.
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
        """Quantiles of a new observation, or of the function without noise.

        Parameters
        ----------
        X : Tensor of shape (m, d)
        q : ndarray of shape (k,)
            Probabilities.
        include_noise : bool
            Whether the noise counts: the kernel's white noise, and what is known beside it.
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
        """Means and variances of training targets, each as the other rows predict it.

        At the trained hyperparameters; None where there is no closed form.

        Parameters
        ----------
        rows : Tensor of shape (k,)
            Places in the training table, rising.
        X, Y : Tensor of shape (k, d) and (k, t)
            These rows and their targets.
        noise : Tensor of shape (k,)
            All of their noise variance, which is in the answer.
        """
        return None

    def weight_form(self) -> WeightForm | None:
        """Features and a precision of their weights, where the posterior is made of such."""
        return None

    def low_rank_form(self) -> LowRankForm | None:
        """How variances of low rank are made, where there are fast products for them."""
        # Low-rank posteriors are posteriors, so that their module imports this one.
        from ._low_rank import WeightCaches

        form = self.weight_form()
        return None if form is None else WeightCaches(self, form)

    def take_unfinished(self) -> list[SolveSummary]:
        """The solves since the last call that ended above their tolerance; forgets them."""
        return []


class KernelPosterior(Posterior):
    """A posterior that is made of k(X, training rows).

    Parameters
    ----------
    operator : KernelOperator
        H at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        H^-1 Y.
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
    """Means and variances of targets that linear predictions leave out.

    A row's leverage is its share in its own mean, the variance of f there over the noise's:
    y - mean and f's variance grow by 1 / (1 - leverage) once it is left out.

    Parameters
    ----------
    Y : Tensor of shape (k, t)
        The targets.
    mean, variance : Tensor of shape (k, t) and (k,)
        Of f at these rows, given all rows.
    noise : Tensor of shape (k,)
        Of these targets, positive.
    """
    left = (1 - variance / noise).clamp_min(torch.finfo(noise.dtype).eps ** 0.5)
    return Y - (Y - mean) / left[:, None], noise + variance / left


def reported_variance(variance: Tensor, scale: Tensor) -> Float[Tensor, " m"]:
    """Variances that rounding left below zero become zero; a larger deficit is an error.

    Parameters
    ----------
    variance : Tensor of shape (m,)
        Computed variances.
    scale : Tensor of shape (m,)
        Prior variances, the scale of the rounding error.

    Raises
    ------
    FloatingPointError
        If a variance is more negative than rounding explains: the factor is then wrong, and a
        clipped zero would hide it.
    """
    limit = -(torch.finfo(variance.dtype).eps ** 0.5) * scale.clamp_min(
        torch.finfo(scale.dtype).tiny
    )
    if bool((variance < limit).any()):
        worst = float((variance / scale).min())
        raise FloatingPointError(
            f"A posterior variance came out at {worst:.1e} of the prior variance, which rounding "
            "does not explain. Raise the noise (alpha or a WhiteKernel) or use dtype='float64'."
        )
    return variance.clamp_min(0)


def joint_normal(
    posterior: Posterior,
    X: Float[Tensor, "m d"],
    n_samples: int,
    random_state: np.random.RandomState,
) -> Float[Tensor, "m t s"]:
    """Draws of a new observation from the posterior's mean and covariance; O(m^3)."""
    covariance = posterior.covariance(X).cpu().double().numpy()
    covariance[np.diag_indices_from(covariance)] += posterior.noise(X).cpu().double().numpy()
    means = posterior.mean(X).cpu().double().numpy()
    # The same call as scikit-learn's, so that equal seeds give equal draws.
    draws = [random_state.multivariate_normal(mean, covariance, n_samples).T for mean in means.T]
    return torch.as_tensor(np.stack(draws, 1))
