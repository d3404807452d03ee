"""The protocol of posteriors, which answer in units of the normalised target."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...kernels import NotExportable
from ...linalg.operators import noise_of_means
from ..likelihoods import Gaussian, Likelihood
from ._modules import PosteriorModule
from ._moments import Moments

# Largest rank that is tried if the user has set no limit.
AUTO_RANK = 1600

Inputs = Float[Tensor, "m d"]
Draws = Float[Tensor, "m t s"]
MeanAndVariance = tuple[Float[Tensor, "m t"], Float[Tensor, " m"]]
# Deviation of a covariance from a positive semidefinite matrix of which draws do not warn. NumPy's
# own is the first. The difference of two matrices in single precision has rounding errors of about
# 1e-7 of the prior variance.
_ROUNDING = {torch.float64: 1e-8, torch.float32: 1e-4}


class Posterior(ABC):
    """A posterior over noise-free functions, which does not change after it was built.

    A subclass defines `mean`, `moments` and `covariance`; `noise` unless it is a part of the
    moments; and `variance` if variances alone are cheaper than all moments.

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

    @abstractmethod
    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        """The mean, the variance and the noise, from one evaluation of the kernel."""

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance of the noise-free functions."""
        return self.moments(X).variance

    def learned_variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The part of `variance` that further targets reduce; here all."""
        return self.variance(X)

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        """The variance that the kernel's white noise adds to a new observation."""
        return self.moments(X).noise

    @abstractmethod
    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        """The covariance of the noise-free functions at the rows of X."""

    @property
    def is_normal(self) -> bool:
        """Whether observations have a joint normal distribution."""
        return self.likelihood.conjugate

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Joint draws of the latent functions plus the kernel's own white noise at X.

        Here from the mean and the covariance of all rows; O(m^3). A new tensor, which the caller
        may overwrite.
        """
        covariance = self.covariance(X).cpu().double().numpy()
        covariance[np.diag_indices_from(covariance)] += self.noise(X).cpu().double().numpy()
        means = self.mean(X).cpu().double().numpy()
        # The same call as in scikit-learn, so that equal seeds give equal draws.
        draws = [
            random_state.multivariate_normal(one, covariance, n_samples, tol=_ROUNDING[self.dtype])
            for one in means.T
        ]
        return torch.as_tensor(np.stack([part.T for part in draws], 1))

    def joint_need(self, X: Float[Tensor, "m d"], what: str) -> tuple[float, str, str]:
        """Peak memory of "return_cov=True" or "sample_y" for all rows of X: see `check_memory`."""
        m, n = len(X), self.width
        return (
            8 * m * (3 * m + 2 * n),
            f"{what} for {m} rows (an {m} x {m} covariance beside {m} x {n} cross-covariances)",
            "ask for fewer rows at a time, or for return_std, which works in chunks",
        )

    def leave_one_out(
        self,
        rows: Int[Tensor, " k"],
        X: Float[Tensor, "k d"],
        Y: Float[Tensor, "k t"],
        known: Float[Tensor, " k"],
    ) -> MeanAndVariance | None:
        """Leave-one-out means and variances of training targets at the trained hyperparameters.

        None if there is no closed form.

        Parameters
        ----------
        rows : Tensor of shape (k,)
            Row numbers in the training table, in increasing order.
        X, Y : Tensor of shape (k, d) and (k, t)
            These rows and their targets.
        known : Tensor of shape (k,)
            Their noise variances besides the kernel's white noise. The returned variances include
            both.
        """
        return None

    def leave_copies_out(
        self,
        rows: Int[Tensor, " k"],
        X: Float[Tensor, "k d"],
        Y: Float[Tensor, "k t"],
        known: Float[Tensor, " k"],
        copies: Copies,
    ) -> MeanAndVariance | None:
        """As `leave_one_out`, for single ones (m) of the rows that k rows have been merged from.

        Y are the means of the merged rows' targets, and `known` the noise of single rows. So are
        the returned variances.
        """
        white = self._noise_left_out(rows, X)
        noise = white + known
        of_means = noise_of_means(noise, copies.counts)
        found = self.leave_one_out(rows, X, Y, of_means - white)
        if found is None:
            return None
        mean, total = (part[copies.place] for part in (found[0], found[1] - of_means))
        noise = noise[copies.place]
        mean, variance = copies.others_seen(mean, total.clamp_min(0), noise, Y)
        return mean, variance + noise

    def _noise_left_out(
        self, rows: Int[Tensor, " k"], X: Float[Tensor, "k d"]
    ) -> Float[Tensor, " k"]:
        """The kernel's noise of single rows, as `leave_one_out` has it."""
        return self.noise(X)

    def low_rank_form(self) -> LowRankForm | None:
        """The form from which low-rank variances are computed; None without fast products."""
        return None

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """The same moments as a torch module, which can be traced, exported and differentiated.

        Parameters
        ----------
        with_variance : bool, default=True
            Whether variances are needed; without them the module may have only a mean.

        Raises
        ------
        NotExportable
            If there is no such form.
        """
        raise NotExportable("This model has no form as a torch module.")

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """Draws of whole functions without noise, as a torch module: (m, d) -> (m, t, n_samples).

        Raises
        ------
        NotExportable
            If there is no such form.
        """
        raise NotExportable(
            "This model defines no distribution of whole functions: use sample_y at fixed rows."
        )


@dataclass(frozen=True, eq=False)
class LowRank:
    """A posterior with low-rank caches, and its measured error.

    Attributes
    ----------
    posterior : Posterior
    rank : int
        Number of Lanczos vectors.
    error : float
        Largest absolute error of the variance at the rows `held`.
    basis : ndarray or None
        The array from which `LowRankForm.posterior` makes the posterior; None for exact variances.
    """

    posterior: Posterior
    rank: int
    error: float
    basis: np.ndarray | None


class LowRankForm:
    """Low-rank variances of a posterior; this base class always uses the exact variances.

    Parameters
    ----------
    below : Posterior
        The posterior with the mean, the noise and the exact variances.
    full : int
        The rank at which low-rank variances would be exact.
    """

    def __init__(self, below: Posterior, full: int):
        self.below, self.full = below, full

    def need(self, rank: int) -> float:
        """Peak memory of computing the caches, in bytes."""
        return 0.0

    def growing(
        self,
        held: Float[Tensor, "h d"],
        probes: Float[Tensor, "p d"],
        rank: int,
        max_rank: int | None,
    ) -> Iterator[LowRank]:
        """Yield caches of growing rank with their errors, then the exact variances.

        The exact variances follow above half of `full`, where low-rank variances cost as much, and
        without a limit above `AUTO_RANK`.

        Parameters
        ----------
        held : Tensor of shape (h, d)
            Rows at which variances are compared with exact ones.
        probes : Tensor of shape (p, d)
            Training rows whose average features start Lanczos over weights.
        rank : int
            Number of Lanczos vectors at the beginning.
        max_rank : int or None
            Largest rank; None for no limit.
        """
        most = self.full // 2
        limit = max(rank, AUTO_RANK) if max_rank is None else max_rank
        if rank <= most:
            yield from self._caches(held, probes, rank, min(limit, most))
            if max_rank is not None and max_rank <= most:
                return
        yield LowRank(self.below, self.full, 0.0, None)

    def _caches(self, held: Tensor, probes: Tensor, rank: int, most: int) -> Iterator[LowRank]:
        """Caches of growing rank, from `rank` to `most`; at least one."""
        return iter((LowRank(self.below, self.full, 0.0, None),))

    def posterior(self, basis: Tensor | None) -> Posterior:
        """The posterior of a `LowRank` again."""
        return self.below if basis is None else self._low(basis)

    def _low(self, basis: Tensor) -> Posterior:
        raise NotImplementedError

    def _measured(self, basis: Tensor, held: Tensor, exact: Tensor) -> LowRank:
        made = self._low(basis)
        error = float((made.variance(held) - exact).abs().max())
        return LowRank(made, basis.shape[1], error, basis.cpu().numpy())


class Copies(NamedTuple):
    """Single rows (m) that have been merged into k rows, each of which is to be left out alone.

    Attributes
    ----------
    counts : Tensor of shape (k,)
        How many single rows each merged row stands for.
    stay : Tensor of shape (k,)
        How many of them stay where one is left out.
    place : Tensor of shape (m,)
        The merged row of each single row.
    Y : Tensor of shape (m, t)
        Targets of the single rows.
    """

    counts: Float[Tensor, " k"]
    stay: Float[Tensor, " k"]
    place: Int[Tensor, " m"]
    Y: Float[Tensor, "m t"]

    def others_seen(
        self,
        mean: Float[Tensor, "... m t"],
        variance: Float[Tensor, "... m"],
        noise: Float[Tensor, " m"],
        Y: Float[Tensor, "k t"],
    ) -> tuple[Tensor, Tensor]:
        """Moments of f that have seen none of the equal rows, once they have seen those that stay.

        `noise` is that of single rows, and Y the means of the merged rows' targets.
        """
        counts, stay = self.counts[self.place], self.stay[self.place]
        spread = torch.where(stay > 0, stay * variance + noise, 1.0)
        gain = torch.where(stay > 0, variance / spread, 0.0)
        others = counts[:, None] * Y[self.place] - self.Y
        mean = mean + gain[..., None] * (others - stay[:, None] * mean)
        return mean, variance * (1 - stay * gain)


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
