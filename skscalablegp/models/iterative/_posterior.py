"""The posterior without a factorisation: by samples, nearest neighbours or further solves."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.posteriors import (
    JOINT_ROWS,
    Draws,
    Inputs,
    JointMoments,
    KernelFeatures,
    KernelPosterior,
    LinearModule,
    MeanAndVariance,
    MeanDraws,
    Moments,
    Moved,
    PosteriorModule,
    WeightDraws,
    normal,
    prior_draws,
    report_unfinished,
    reported_variance,
)
from ...features import PriorFeatures
from ...kernels import NotExportable
from ...linalg.operators import KernelOperator, prior_values
from ...linalg.preconditioners import Preconditioner, build_preconditioner
from ...linalg.solvers import Solution, preconditioner_for, solve
from ._nearest import NearestModule, coefficients, with_factors

# Rows whose covariances with all rows are held in memory at a time when rows are left out.
_ROWS = 512


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

    def scaled(self, scale: float) -> PathwiseSamples:
        """The samples under `scale` times the kernel and the noise.

        H grows by this factor, and draws of the prior and of the noise by its root.
        """
        return replace(self, representer_weights=self.representer_weights / scale**0.5)

    def drawn(self, n_draws: int, generator: torch.Generator) -> PathwiseSamples:
        """Normal combinations sum_j z_j g_j(x) / s^1/2, whose covariance is that of the samples."""
        s = self.prior_weights.shape[1]
        z = normal(s, n_draws, generator=generator) / s**0.5
        weights = self.prior_weights, self.representer_weights
        return PathwiseSamples(self.features, *(w @ z.to(w) for w in weights))


class IterativePosterior(KernelPosterior):
    """Mean from solved weights; variances from samples, nearest neighbours or further solves.

    Parameters
    ----------
    operator : KernelOperator
        H at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    samples : PathwiseSamples or None
        Solved prior draws (Lin et al. 2024, section 3). Without them, a variance costs a solve.
    solver, stopping :
        The method and the stopping rule of further solves, which variances, covariances and draws
        without samples and neighbours need. The solver's preconditioner is built at the first solve
        and kept.
    n_nearest : int, optional
        Number of training rows from which the variance of a row is computed: those with the largest
        covariances. None takes all rows, by samples or solves.
    residual : Tensor of shape (n, t), optional
        Y - H weights, where the solve ended early or without some rows. Neighbours then correct
        the mean.

    Notes
    -----
    Variances, covariances, samples and functions describe one distribution of f - mean.

    - Without samples and neighbours it is the exact posterior.
    - With s samples g_j it is normal with the covariance sum_j g_j(x) g_j(x') / s. Standard
      deviations have a relative standard error of 1 / sqrt(2 s), correlations one of up to
      1 / sqrt(s), and draws are combinations of the samples. Half of the random frequencies are
      high ones: where the data explain nearly all of the prior variance, the rest is theirs.
    - With k neighbours N of x it is that of g(x) - k_N' H_NN^-1 (g(N) + noise) for draws g of the
      prior. Variances are never below the exact ones, up to rounding, and cost O(n + k^3) a row.
      Correlations differ from the exact ones where variances do.

    With a residual r, the mean is k' w + k_N' H_NN^-1 r_N, where N are the neighbours: the process
    of the neighbours predicts what the weights have left. It is the mean of the neighbours alone
    for w = 0, and that of all rows after a solve that has converged.
    """

    def __init__(
        self,
        operator: KernelOperator,
        weights: Float[Tensor, "n t"],
        samples: PathwiseSamples | None,
        *,
        solver: Any,
        stopping: Any,
        n_nearest: int | None = None,
        residual: Float[Tensor, "n t"] | None = None,
    ):
        super().__init__(operator, weights)
        self.samples, self._n_nearest = samples, n_nearest
        self._residual = residual
        self._solver = solver
        self._stopping = stopping

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """The mean, and variances from nearest rows or stored samples."""
        mean = self._linear(None)
        if self._n_nearest is not None and (with_variance or self._residual is not None):
            return self._nearest(self._residual)
        if not with_variance:
            return mean
        if self.samples is None:
            raise NotExportable(
                "Variances of this model come from a linear solve for every row, which cannot "
                "become part of a torch module: export the mean with return_std=False, fit again "
                "with posterior='neighbors', or wrap the model in "
                "LOVEPredictor(max_variance_rank=...), whose low-rank variances can."
            )
        return PathwiseModule(mean, self.samples, self.operator)

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """Combinations of stored samples, or draws of the prior that are moved to the data.

        By the nearest rows of each row, if variances come from them, and by all rows otherwise.
        """
        op, t = self.operator, self.weights.shape[1]
        if self.samples is not None:
            drawn = self.samples.drawn(t * n_samples, generator)
            prior, moved = (
                part.double().cpu().unflatten(1, (t, n_samples))
                for part in (drawn.prior_weights, drawn.representer_weights)
            )
            weights = self.weights.double().cpu()[:, :, None] - moved
            rows = KernelFeatures(op.kernel, op.theta, op.X)
            features = drawn.features.module(op.theta)
            return Moved(WeightDraws(features, prior), WeightDraws(rows, weights))
        if self._n_nearest is None:
            return super().functions(n_samples, generator)
        draws, rows = prior_draws(op.kernel, op.theta, (t, n_samples), generator), op.X.double()
        with torch.no_grad():
            g = draws(rows.cpu())
        noise = op.noise.double().cpu().sqrt()[:, None, None]
        left = -g - noise * normal(*g.shape, generator=generator)
        if self._residual is not None:
            left += self._residual.double().cpu()[:, :, None]
        return Moved(draws, MeanDraws(self._nearest(left.flatten(1)), (t, n_samples)))

    def _nearest(self, residual: Float[Tensor, "n s"] | None) -> NearestModule:
        return NearestModule(self._linear(None), self.operator, self._n_nearest, residual)

    def _inverse_times(self, B: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return self._solve(B.to(self.operator.dtype)).value

    def _solve(self, B: Float[Tensor, "n s"]) -> Solution:
        solution = solve(
            self.operator, B, self._solver, stopping=self._stopping, preconditioner=self._built
        )
        if not solution.converged:
            report_unfinished(solution.summary())
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

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return super().mean(X) if self._residual is None else self._mean_and_variance(X)[0]

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        return Moments(*self._mean_and_variance(X), self.noise(X))

    def _mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        if self._n_nearest is not None:
            K, near = self._neighbours(X)
            prior = self.cross(X).prior_diag()
            left = None if self._residual is None else self._residual[near]
            explained, correction = self._explained(K, near, left)
            return K @ self.weights + correction, reported_variance(prior - explained, prior)
        if self.samples is None:
            (cross, V, R), prior = self._solved_cross(X), self.cross(X).prior_diag()
            variance = reported_variance(prior - (V * (cross + R)).sum(0), prior)
            return cross.T @ self.weights, variance
        mean, deviations = self._mean_and_deviations(X, self.samples)
        return mean, deviations.square().mean(1)

    def _neighbours(
        self, X: Float[Tensor, "m d"]
    ) -> tuple[Float[Tensor, "m n"], Int[Tensor, "m k"]]:
        """k(X, training rows), and the rows with the largest ones."""
        K = self.cross(X).to_dense()
        return K, K.abs().topk(min(self._n_nearest, K.shape[1]), 1, sorted=False).indices

    def _explained(
        self,
        K: Float[Tensor, "m n"],
        near: Int[Tensor, "m k"],
        left: Float[Tensor, "m k t"] | None,
        sizes: list[int] | None = None,
    ) -> tuple[Float[Tensor, " m"], Tensor | float]:
        """By how much the rows `near` reduce the prior variance, and what `left` adds to the mean.

        O(k^3) a row. Of the rows near a row, the first so many of `sizes` count, all by default.
        """
        B = K.gather(1, near)[:, :, None]
        B = (B if left is None else torch.cat([B, left], 2)).double()

        def explained(i: int, L: Tensor) -> Tensor:
            half = torch.linalg.solve_triangular(L, B[i, : len(L)], upper=False)
            return half[:, 0] @ half

        sets = list(near) if sizes is None else [N[:k] for N, k in zip(near, sizes, strict=True)]
        found = with_factors(self.operator, sets, explained)
        parts = torch.stack(found).to(K) if found else K.new_zeros(0, B.shape[2])
        return parts[:, 0], 0.0 if left is None else parts[:, 1:]

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        """The joint covariance of the distribution of single rows.

        By neighbours, O(m k^3) and one product of H with m vectors: those are the rows of A, whose
        entries at the neighbours of a row are H_NN^-1 k_N.
        """
        if self.samples is not None:
            deviations = self._mean_and_deviations(X, self.samples)[1]
            return deviations @ deviations.T / deviations.shape[1]
        if self._n_nearest is None:
            cross, V, R = self._solved_cross(X)
            covariance = self.cross(X).prior_covariance()
            covariance.addmm_(V.T, cross + R, alpha=-1)
            return (covariance + covariance.T) / 2
        (K, near), prior = self._neighbours(X), self.cross(X).prior_diag()
        A = torch.zeros_like(K)
        A.scatter_(1, near, coefficients(self.operator, K, near).to(A))
        half = A @ (0.5 * self.operator.matmul(A.T) - K.T)
        covariance = self.cross(X).prior_covariance().add_(half).add_(half.T)
        covariance.diagonal().copy_(reported_variance(prior - (A * K).sum(1), prior))
        return covariance

    def _solved_cross(self, X: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor, Tensor]:
        """B = k(training rows, X), V near H^-1 B, and R = B - H V; one epoch more than the solve.

        B'V + V'R = B'V + V'B - V'HV is smaller than B' H^-1 B by R' H^-1 R, which is positive
        semidefinite and of second order in R. Even if the solve ended early, variances are never
        too small and covariances never indefinite.
        """
        cross = self.cross(X).to_dense().T.contiguous()
        V = self._solve(cross).value.to(cross.dtype)
        return cross, V, cross - self.operator.matmul(V)

    def leave_one_out(self, rows, X, Y, known, held=None) -> MeanAndVariance | None:
        """From the diagonal of H^-1: by neighbours, or the mean squares of the solved samples.

        With s samples a variance has a relative standard error of sqrt(2 / s). With the numbers
        `held` of rows without weights, `rows` are some of them. Neighbours of each are then the
        other rows and those of `held` before it, so that the log densities of all are the terms of
        the chain rule.
        """
        if self._n_nearest is not None:
            if len(rows) > _ROWS:
                parts = zip(*(part.split(_ROWS) for part in (rows, X, Y, known)), strict=True)
                found = zip(*(self.leave_one_out(*part, held) for part in parts), strict=True)
                return tuple(map(torch.cat, found))
            cross = self.cross(X)
            K, own = cross.to_dense(), torch.arange(len(X), device=rows.device)
            score = K.abs()
            score[own, rows] = -1  # A row is no neighbour of its own.
            if held is not None:
                score[:, held] = score[:, held].masked_fill_(held >= rows[:, None], -1)
            k = min(self._n_nearest, K.shape[1] - 1)
            scores, near = score.topk(k, 1)
            sizes = (scores >= 0).sum(1).tolist()
            prior, own_weights, left = cross.prior_diag(), self.weights[rows], None
            if self._residual is not None:
                # What the others have left, without the weight of the row itself.
                left = self._residual[near] + K.gather(1, near)[:, :, None] * own_weights[:, None]
            explained, correction = self._explained(K, near, left, sizes)
            variance = reported_variance(prior - explained, prior) + known + cross.prior_noise()
            if left is None:
                return Y - own_weights * variance[:, None], variance
            mean = K @ self.weights - K[own, rows, None] * own_weights + correction
            return mean, variance
        if self.samples is None:
            return None
        solved = self.samples.representer_weights.to(known)
        inverse = solved[rows].square().mean(1)
        return Y - self.weights[rows].to(Y) / inverse[:, None], 1 / inverse

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        if self.samples is None and (self._n_nearest is None or len(X) <= JOINT_ROWS):
            # The joint covariance needs no spectral density, and no random frequencies.
            return super().sample(X, n_samples, random_state)
        t = self.weights.shape[1]
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        if self.samples is not None:
            drawn = self.samples.drawn(t * n_samples, generator)
            mean, deviations = self._mean_and_deviations(X, drawn)
            f = mean[:, :, None] + deviations.reshape(len(X), t, n_samples)
        else:
            try:
                functions = self.functions(n_samples, generator)
            except NotExportable:
                return super().sample(X, n_samples, random_state)
            with torch.no_grad():
                f = functions(X.double().cpu())
        white = normal(*f.shape, generator=generator).to(f)
        return f + self.noise(X).to(f).sqrt()[:, None, None] * white


class PathwiseModule(PosteriorModule):
    """A mean over training rows, and variances as mean squares of stored deviations.

    Parameters
    ----------
    mean : LinearModule
    samples : PathwiseSamples
    operator : KernelOperator
    """

    def __init__(self, mean: LinearModule, samples: PathwiseSamples, operator: KernelOperator):
        super().__init__()
        self.linear, self.prior = mean, samples.features.module(operator.theta)
        for name in ("prior_weights", "representer_weights"):
            self.register_buffer(name, getattr(samples, name).double().cpu())

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.linear.mean(X)

    def _parts(self, X: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor, Tensor]:
        """The mean, the deviations of the samples, and the noise."""
        features = self.linear.features
        K = features(X)
        deviations = self.prior(X) @ self.prior_weights - K @ self.representer_weights
        return K @ self.linear.weights, deviations, features.noise(X)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        mean, deviations, noise = self._parts(X)
        return Moments(mean, deviations.square().mean(1), noise)

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        parts = self._parts(X.flatten(0, 1))
        mean, deviations, noise = (part.unflatten(0, X.shape[:2]) for part in parts)
        return JointMoments(mean, deviations @ deviations.mT / deviations.shape[2], noise)
