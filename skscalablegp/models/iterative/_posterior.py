"""The posterior without a factorisation: by pathwise samples, or by further solves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.posteriors import Draws, KernelPosterior, MeanAndVariance, Rows, reported_variance
from ...features import PriorFeatures
from ...linalg.operators import KernelOperator, prior_values
from ...linalg.preconditioners import Preconditioner, build_preconditioner
from ...linalg.solvers import Solution, SolveSummary, preconditioner_for, solve


@dataclass(frozen=True)
class PathwiseSamples:
    """Posterior deviations g_j(x) = phi(x)' w_j - k(x, X) zhat_j, each a draw of f - mean.

    Attributes
    ----------
    features : PriorFeatures
        Frozen random features of the prior draws.
    prior_weights : Tensor of shape (q, s)
        w, standard normal.
    representer_weights : Tensor of shape (n, s)
        zhat_j = H^-1 (phi(X)' w_j + noise_j).
    """

    features: PriorFeatures
    prior_weights: Float[Tensor, "q s"]
    representer_weights: Float[Tensor, "n s"]


class IterativePosterior(KernelPosterior):
    """Mean from solved weights, variances from pathwise samples or from further solves.

    Parameters
    ----------
    operator : KernelOperator
        H at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    samples : PathwiseSamples or None
        Solved prior draws (Lin et al. 2024, section 3). Without them, a variance costs a solve.
    solver, stopping :
        The method and the stopping rule of further solves: for covariances, for variances without
        samples, and for more samples than were drawn in the fit. The solver's preconditioner is
        built at the first solve and kept.

    Notes
    -----
    With s samples the standard deviation has a relative standard error of 1 / sqrt(2 s).
    """

    def __init__(
        self,
        operator: KernelOperator,
        weights: Float[Tensor, "n t"],
        samples: PathwiseSamples | None,
        *,
        solver: Any,
        stopping: Any,
    ):
        super().__init__(operator, weights)
        self.samples = samples
        self._solver = solver
        self._stopping = stopping
        self._unfinished: list[SolveSummary] = []

    def take_unfinished(self) -> list[SolveSummary]:
        """Return and clear the list of solves that ended above their tolerance."""
        taken, self._unfinished = self._unfinished, []
        return taken

    def _solve(self, B: Float[Tensor, "n s"]) -> Solution:
        solution = solve(
            self.operator, B, self._solver, stopping=self._stopping, preconditioner=self._built
        )
        if not solution.converged:
            self._unfinished.append(solution.summary())
        return solution

    @cached_property
    def _built(self) -> Preconditioner:
        """The solver's preconditioner; seed 0 makes predictions repeatable."""
        chosen = preconditioner_for(self._solver)
        return build_preconditioner(chosen, self.operator, torch.Generator().manual_seed(0))

    def _mean_and_deviations(
        self, X: Float[Tensor, "m d"], samples: PathwiseSamples
    ) -> tuple[Float[Tensor, "m t"], Float[Tensor, "m s"]]:
        """The mean and the deviations g_j at X, from one product with k(X, training rows)."""
        t, zhat = self.weights.shape[1], samples.representer_weights.to(self.weights)
        both = self.cross(X).matmul(torch.cat([self.weights, zhat], 1))
        prior = prior_values(samples.features, self.operator.theta, X, samples.prior_weights)
        return both[:, :t], prior - both[:, t:]

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        if self.samples is None:
            solved = self._solved_cross(X)
            return solved[0].T @ self.weights, self._solved_variance(X, *solved)
        mean, deviations = self._mean_and_deviations(X, self.samples)
        return mean, deviations.square().mean(1)

    def _solved_variance(
        self, X: Float[Tensor, "m d"], cross: Tensor, V: Tensor, R: Tensor
    ) -> Float[Tensor, " m"]:
        prior = self.cross(X).prior_diag()
        return reported_variance(prior - (V * (cross + R)).sum(0), prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross, V, R = self._solved_cross(X)
        covariance = self.cross(X).prior_covariance()
        covariance.addmm_(V.T, cross + R, alpha=-1)
        return (covariance + covariance.T) / 2

    def _solved_cross(self, X: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor, Tensor]:
        """B = k(training rows, X), V near H^-1 B, and R = B - H V; one epoch more than the solve.

        B'V + V'R = B'V + V'B - V'HV is smaller than B' H^-1 B by R' H^-1 R, which is positive
        semidefinite and of second order in R. Even if the solve ended early, variances are never
        too small and covariances never indefinite.
        """
        cross = self.cross(X).to_dense().T.contiguous()
        V = self._solve(cross).value.to(cross.dtype)
        return cross, V, cross - self.operator.matmul(V)

    def leave_one_out(self, rows, X, Y, noise) -> MeanAndVariance | None:
        """From the diagonal of H^-1, which is estimated by the mean squares of the solved samples.

        With s samples a variance has a relative standard error of sqrt(2 / s).
        """
        if self.samples is None:
            return None
        inverse = self.samples.representer_weights[rows].square().mean(1).to(noise)
        return Y - self.weights[rows].to(Y) / inverse[:, None], 1 / inverse

    def sample(self, X: Rows, n_samples: int, random_state: np.random.RandomState) -> Draws:
        if self.samples is None:
            # The joint covariance needs no spectral density.
            return super().sample(X, n_samples, random_state)
        stored = self.samples.prior_weights.shape[1]
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        t = self.weights.shape[1]
        if n_samples * t <= stored:
            chosen = torch.randperm(stored, generator=generator)[: n_samples * t]
            samples = PathwiseSamples(
                self.samples.features,
                self.samples.prior_weights[:, chosen],
                self.samples.representer_weights[:, chosen],
            )
        else:
            samples = self._draw(n_samples * t, generator)
        mean, deviations = self._mean_and_deviations(X, samples)
        deviations = deviations.reshape(len(X), t, n_samples)
        white = torch.randn(deviations.shape, generator=generator, dtype=deviations.dtype)
        white = white.to(deviations.device) * self.noise(X).sqrt()[:, None, None]
        return mean[:, :, None] + deviations + white

    def _draw(self, n_samples: int, generator: torch.Generator) -> PathwiseSamples:
        """New prior draws, solved."""
        op, features = self.operator, self.samples.features
        shape = (features.n_features, n_samples)
        w = torch.randn(shape, generator=generator, dtype=op.dtype).to(op.device)
        eps = torch.randn(op.shape[0], n_samples, generator=generator, dtype=op.dtype)
        prior = prior_values(features, op.theta, op.X, w)
        xi = prior + op.noise.sqrt()[:, None] * eps.to(op.device)
        return PathwiseSamples(features, w, self._solve(xi).value)
