"""Posteriors that are computed from covariances with the training rows, and low-rank variances."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...features import sample_prior_features
from ...kernels import NoSpectralDensity, NotExportable
from ...linalg.operators import CrossOperator, KernelOperator, prior_values
from ._base import Draws, Inputs, LowRankForm, Posterior
from ._draws import Moved, WeightDraws, normal, prior_draws
from ._low_rank import krylov_basis, whitened
from ._modules import Dense, KernelFeatures, LinearModule, PosteriorModule
from ._moments import Moments, reported_variance

# Lanczos starts with the average column of K over at most this many rows.
_PROBE_ROWS = 1000
# Number of start vectors of Lanczos when the rank has to grow.
_NEW_PROBES = 8
# Up to this number of rows samples come from a factorised covariance, and above it from random
# features.
JOINT_ROWS = 1000
_SAMPLE_PAIRS = 1000


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
        return RowCaches(self)

    def cross(self, X: Float[Tensor, "m d"]) -> CrossOperator:
        """k(X, training rows)."""
        return self.operator.cross(X)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.cross(X).matmul(self.weights)

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self.cross(X).prior_noise()

    def _linear(self, minus: Float[Tensor, "n k"] | None) -> PosteriorModule:
        """The module whose explained variance is ``|k(X, rows) minus|^2``."""
        op, root = self.operator, None if minus is None else Dense(minus)
        features = KernelFeatures(op.kernel, op.theta, op.X)
        return LinearModule(features, self.weights, minus=root).exported()

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """g(x) + k(x, rows) (weights - H^-1 (g(rows) + noise)) for draws g of the prior."""
        op, t = self.operator, self.weights.shape[1]
        prior = prior_draws(op.kernel, op.theta, (t, n_samples), generator)
        rows, noise = op.X.double().cpu(), op.noise.double().cpu()
        with torch.no_grad():
            g = prior(rows).flatten(1)
        g = g + noise.sqrt()[:, None] * normal(*g.shape, generator=generator)
        solved = self._inverse_times(g.to(op.device)).double().cpu()
        weights = self.weights.double().cpu()[:, :, None] - solved.unflatten(1, (t, n_samples))
        return Moved(prior, WeightDraws(KernelFeatures(op.kernel, op.theta, op.X), weights))

    def _inverse_times(self, B: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """H^-1 B."""
        raise NotExportable(
            "This model solves no linear systems, from which functions could be drawn."
        )


class RowCaches(LowRankForm):
    """Low-rank variances of a posterior over training rows, by H^-1 within a Krylov space.

    Parameters
    ----------
    below : KernelPosterior
    """

    below: KernelPosterior

    def __init__(self, below: KernelPosterior):
        super().__init__(below, below.operator.shape[0])

    def need(self, rank: int) -> float:
        return 4.0 * self.below.weights.element_size() * self.full * min(rank, self.full)

    def _caches(self, held, probes, rank, most):
        op, exact = self.below.operator, self.below.variance(held)
        cross = op.cross(held).to_dense()
        basis = krylov_basis(op, _average_column(op)[:, None], rank)
        while True:
            made = self._measured(whitened(op, basis), held, exact)
            yield made
            if (size := made.rank) >= most:
                return
            # New start vectors: covariances of the rows with the largest errors.
            errors = (made.posterior.variance(held) - exact).abs()
            more = min(size, most - size)
            worst = cross[errors.topk(min(_NEW_PROBES, more, len(held))).indices].T
            worst = worst - basis @ (basis.T @ worst)
            basis = krylov_basis(op, worst, max(1, more // worst.shape[1]), basis)
            if basis.shape[1] == size:
                return

    def _low(self, basis):
        return LOVEPosterior(self.below.operator, self.below.weights, basis)


class LOVEPosterior(KernelPosterior):
    """A posterior over rows with variances from k Lanczos vectors.

    ``variance(x) = k(x, x) - |B' k(X, x)|^2`` with B B' the Galerkin approximation of H^-1 in a
    Krylov space, O(n k) a row. It is never below the exact variance.

    Parameters
    ----------
    operator : KernelOperator
        H at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    basis : Tensor of shape (n, k)
        B.
    """

    def __init__(
        self, operator: KernelOperator, weights: Float[Tensor, "n t"], basis: Float[Tensor, "n k"]
    ):
        super().__init__(operator, weights)
        self.basis = basis

    def module(self, with_variance: bool = True) -> PosteriorModule:
        return self._linear(self.basis if with_variance else None)

    def _inverse_times(self, B: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return self.basis @ (self.basis.T @ B.to(self.basis))

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        cross, t = self.cross(X), self.weights.shape[1]
        prior = cross.prior_diag()
        both = cross.matmul(torch.cat([self.weights.to(self.basis), self.basis], 1))
        variance = reported_variance(prior - both[:, t:].square().sum(1), prior)
        return Moments(both[:, :t], variance, cross.prior_noise())

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross = self.cross(X)
        explained = cross.matmul(self.basis)
        return cross.prior_covariance().addmm_(explained, explained.T, alpha=-1)

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Joint draws: from the covariance up to 1,000 rows, then by Matheron's rule.

        A prior draw g through random features is moved by k(x, X) B B' (y - g(X) - noise), whose
        covariance is the one above: O((n k + (n + m) q) s) for q features, linear in the rows.
        """
        if len(X) <= JOINT_ROWS:
            return super().sample(X, n_samples, random_state)
        op, t = self.operator, self.weights.shape[1]
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        try:
            d, on = op.kernel.n_features, op.device
            features = sample_prior_features(
                op.kernel, d, _SAMPLE_PAIRS, generator, device=on, tails=True
            )
        except NoSpectralDensity:
            return super().sample(X, n_samples, random_state)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=op.dtype).to(op.device)

        w = normal(features.n_features, t * n_samples)
        at_rows, at_new = (prior_values(features, op.theta, rows, w) for rows in (op.X, X))
        at_rows = at_rows + op.noise.sqrt()[:, None] * normal(op.shape[0], t * n_samples)
        at_new = at_new - self.cross(X).matmul(self.basis @ (self.basis.T @ at_rows))
        at_new = at_new + self.noise(X).sqrt()[:, None] * normal(*at_new.shape)
        return self.mean(X)[:, :, None] + at_new.reshape(len(X), t, n_samples)


def _average_column(op: KernelOperator) -> Float[Tensor, " n"]:
    """The mean of (some) columns of H."""
    n = op.shape[0]
    chosen = torch.arange(0, n, max(1, n // _PROBE_ROWS), device=op.device)
    return op.rows(chosen).mean(0)
