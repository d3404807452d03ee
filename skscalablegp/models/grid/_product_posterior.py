"""Posteriors of interpolated models by products: exact, or of low rank (LOVE)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..._end import End
from ...core.posteriors import LowRank, LowRankForm, Moments, report_unfinished
from ...kernels import NotExportable
from ...linalg.solvers import cholesky_with_jitter, lanczos
from ._module import Outside
from ._posterior import _CUT_SHARE, GridPosterior
from ._products import PREDICTED, GridOperator, ProductEvaluation

# Number of right-hand sides in one solve for exact variances.
_COLUMNS = 64
# The smallest explained share of a direction's prior variance that low-rank variances keep.
_LEAST_SHARE = 1e-9
# Number of the worst rows for further Lanczos starts.
_NEW_STARTS = 8
# Points of the longest axis whose covariance is decomposed for samples, and the smallest trace of
# the posterior, as a share of the prior's, that samples resolve.
_LONGEST_AXIS, _SMALLEST_SHARE = 2000, 1e-6
# Columns of the first sampling root, and the share of the trace below which a doubling is the last.
_SAMPLE_RANK, _SAMPLE_SHARE = 256, 1e-4


class ProductPosterior(GridPosterior):
    """The posterior of an interpolated model by products: exact, or of low rank (LOVE).

    ``variance(x) = k(x, x) - k_x' (I + G K)^-1 G k_x`` with k_x = K w(x), by conjugate gradients
    for every row. With a root E = K D of the explained covariance (Pleiss et al. 2018, section 3.2)
    it is ``k(x, x) - |w(x)' E|^2`` and never below the exact one; E E' is a polynomial in each cell
    of a product grid, as in `GridPosterior`.

    Parameters
    ----------
    grid_kernel : GridKernel
    theta : Tensor of shape (p,)
    evaluation : ProductEvaluation
    dual : Tensor of shape (m, k) or None
        D; None for exact variances.
    """

    def __init__(self, grid_kernel, theta, evaluation: ProductEvaluation, dual=None):
        super().__init__(grid_kernel, theta, evaluation)
        self.dual = None if dual is None else dual.to(grid_kernel.device)

    def low_rank_form(self) -> LowRankForm:
        return GridCaches(self)

    _explains = True

    def _outside_module(self, with_variance: bool) -> Outside:
        if with_variance and self.dual is None:
            raise NotExportable(
                "Variances of this model come from a linear solve for every row, which cannot "
                "become part of a torch module: export the mean with return_std=False, or wrap the "
                "model in LOVEPredictor(max_variance_rank=...), whose low-rank variances can."
            )
        return Outside(self.weights, self.dual)

    def functions(self, n_samples: int, generator: torch.Generator) -> NoReturn:
        """Raise: without a factor of the grid's covariance there are no draws beyond the grid."""
        raise NotExportable(
            "This model has no factor of the covariance of its grid, from which functions could be "
            "drawn: use sample_y at fixed rows, or fit with solver='cholesky'."
        )

    @property
    def mean_on_grid(self) -> Float[Tensor, "m t"]:
        return self.evaluation.mean

    @cached_property
    def _rounding(self) -> float:
        """Solves multiply rounding by the condition of I + G K, at most the sum of k / noise."""
        condition = self.evaluation.operator.sum_of_inverse_noise * float(self._prior())
        return max(1.0, torch.finfo(torch.float64).eps ** 0.5 * condition)

    @cached_property
    def root(self) -> Float[Tensor, "m k"]:
        """E, a root of the explained covariance; in the base class, of the posterior's."""
        return self.evaluation.operator.dual(self.dual)

    def root_variance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        return self.interpolate(X.numpy(), self.root).square().sum(1).cpu()

    def moments(self, X: Float[Tensor, "n d"]) -> Moments:
        return Moments(self.mean(X), self.variance(X), self.noise(X))

    def variance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, " n"]:
        rows, inside = self._split(X)
        with torch.no_grad():
            variance = self.grid_kernel.cross(self.theta, rows).numpy()
        if self.dual is None:
            for k in range(0, len(rows), _COLUMNS):
                left, right = self._explained(rows[k : k + _COLUMNS])
                variance[k : k + _COLUMNS] -= (left * right).sum(1).cpu().numpy()
            return self._reported(variance)
        variance[inside] -= self._variance_inside(rows, inside)[inside]
        for part, row in self._outside(rows, inside):
            variance[part] -= (row @ self.dual).square().sum(1).cpu().numpy()
        return self._reported(variance)

    def _explained(self, rows: np.ndarray) -> tuple[Tensor, Tensor]:
        """Two matrices (n, 2 m), whose product is the explained covariance C' G (I + K G)^-1 C.

        C' U for an approximate solution U of (I + G K) U = G C has an error that is linear in the
        residual R = G C - (I + G K) U. Adding (C - K U)' R makes it quadratic, |R|^2 in the norm
        of K at most, which is a gain after a solve that ended.
        """
        operator = self.evaluation.operator
        with torch.no_grad():
            C = self.grid_kernel.rows(self.theta, rows).T.contiguous()
        B = operator.gram(C)
        U, converged = self._solved(B)
        KU = operator.dual(U)
        R = B - U - operator.gram(KU)
        if not converged:
            R = torch.zeros_like(R)
        return torch.cat([C, -KU]).T, torch.cat([U + R, R]).T

    def _solved(self, B: Float[Tensor, "m s"]) -> tuple[Float[Tensor, "m s"], bool]:
        """(I + G K)^-1 B, and whether the solve reached its tolerance."""
        solution, summary = self.evaluation.operator.inverse(B, PREDICTED)
        converged = summary.status is End.CONVERGED
        if not converged:
            report_unfinished(summary)
        return solution, converged

    def covariance(self, X: Float[Tensor, "n d"]) -> Float[Tensor, "n n"]:
        rows, _ = self._split(X)
        with torch.no_grad():
            prior = self.grid_kernel.cross(self.theta, rows, rows)
            if self.dual is None:
                left, right = self._explained(rows)
                explained = (left @ right.T).cpu()
            else:
                Y = self.grid_kernel.rows(self.theta, rows) @ self.dual
                explained = (Y @ Y.T).cpu()
        return prior - (explained + explained.T) / 2 + self._missed(rows)

    @cached_property
    def _sampling_root(self) -> tuple[Float[Tensor, "m k"], float]:
        """S with S S' close to the posterior covariance C of the grid's points (equation 13).

        From a factor K = F F' of the prior, whose axes have small eigenvalue problems. The trace
        that F leaves out is a share of the posterior's trace. O(m r k) for r columns of F.
        """
        if max(size for shape in self.grid_kernel.grid.shapes for size in shape) > _LONGEST_AXIS:
            return self._range_root().cpu(), 1.0
        with torch.no_grad():
            left = float(self.grid_kernel.prior(self.theta)) * self.grid_kernel.n_points
        smallest = _SMALLEST_SHARE * left
        while True:
            try:
                with torch.no_grad():
                    F = self.grid_kernel.factor(self.theta, _CUT_SHARE * left).F
            except MemoryError:  # Rough kernels have factors of nearly full rank.
                return self._range_root().cpu(), 1.0
            S = self._conditioned(F)
            trace = max(float(S.square().sum()), smallest)
            if left <= trace:
                return S.float().cpu(), 1.0
            left = trace

    def _conditioned(self, F: Float[Tensor, "m r"]) -> Float[Tensor, "m r"]:
        """S with S S' = F (I - A) F', the posterior covariance for a prior K = F F'."""
        if self.dual is None:
            inner = F.T @ self.evaluation.operator.gram(F)
            inner.diagonal().add_(1)
            L, _ = cholesky_with_jitter((inner + inner.T) / 2)
            return torch.linalg.solve_triangular(L, F.T, upper=False).T
        B = F.T @ self.dual
        squares, turn = torch.linalg.eigh(B.T @ B)
        BV = B @ turn
        # The root of I - B B' is I - B V (1 + (1 - s^2)^1/2)^-1 V' B' for singular values s of B.
        return F - (F @ BV) / (1 + (1 - squares).clamp_min(0).sqrt()) @ BV.T

    def _range_root(self) -> Float[Tensor, "m k"]:
        """S S' = C Q (Q' C Q)^-1 Q' C for an orthonormal Q in the range of C^2.

        Its rank doubles until the trace no longer changes.
        """
        m, before, rank = self.grid_kernel.n_points, 0.0, _SAMPLE_RANK
        generator = torch.Generator().manual_seed(0)
        while True:
            rank = min(rank, m)
            Q = torch.randn(m, rank, generator=generator, dtype=torch.float64)
            Q = Q.to(self.weights.device)
            Q = torch.linalg.qr(self._times(self._times(Q))).Q
            image = self._times(Q)
            inner = Q.T @ image
            L, _ = cholesky_with_jitter((inner + inner.T) / 2)
            S = torch.linalg.solve_triangular(L, image.T, upper=False).T
            trace = float(S.square().sum())
            if rank == m or trace - before <= _SAMPLE_SHARE * trace:
                return S.float()
            before, rank = trace, 2 * rank

    def _times(self, V: Float[Tensor, "m s"]) -> Float[Tensor, "m s"]:
        """C V."""
        operator = self.evaluation.operator
        if self.dual is None:
            return operator.dual(self._solved(V)[0])
        return operator.dual(V) - self.root @ (self.root.T @ V)

    @property
    def _columns(self) -> int:
        return self.dual.shape[1]

    def _covariances(self, rows: np.ndarray) -> Float[Tensor, "n m"]:
        return self.grid_kernel.rows(self.theta, rows)


class GridCaches(LowRankForm):
    """Low-rank variances of a posterior by products: Lanczos in grid space."""

    def __init__(self, below: ProductPosterior):
        super().__init__(below, below.grid_kernel.n_points)

    def need(self, rank: int) -> float:
        return 8.0 * 6 * self.full * rank

    def _caches(self, held, probes, rank, most) -> Iterator[LowRank]:
        below, operator = self.below, self.below.evaluation.operator
        exact = below.variance(held)
        start = torch.ones(self.full, 1, dtype=torch.float64, device=operator.device)
        U = P = start[:, :0]
        while True:
            before = U.shape[1]
            U, P = _extended(operator, U, P, start, rank - before)
            dual = _dual_root(operator, P)
            made = self._measured(dual, held, exact)
            yield made
            if made.rank >= most or U.shape[1] == before:
                return
            errors = (made.posterior.variance(held) - exact).abs()
            worst = held[errors.topk(min(_NEW_STARTS, len(held))).indices].numpy()
            # The basis holds the first Krylov vectors of these rows: their residuals lead on.
            with torch.no_grad():
                C = below.grid_kernel.rows(below.theta, worst).T.contiguous()
            solved = dual @ (dual.T @ C)
            start = operator.gram(C - operator.dual(solved)) - solved
            rank = min(2 * U.shape[1], most)

    def _low(self, basis):
        below = self.below
        return ProductPosterior(below.grid_kernel, below.theta, below.evaluation, basis)


def _extended(operator: GridOperator, U, P, start, more: int) -> tuple[Tensor, Tensor]:
    """U and P = K U with U' P = I, extended by the Krylov spaces of further start vectors."""
    start = start[:, :more]
    made = lanczos(operator, start, -(-more // start.shape[1]))
    V = made.basis.transpose(0, 1).flatten(0, 1).T[:, :more]
    Q = operator.dual(V)
    for _ in range(2):
        c = P.T @ V
        V, Q = V - U @ c, Q - P @ c
        values, vectors = torch.linalg.eigh((V.T @ Q + Q.T @ V) / 2)
        kept = values > 1e-10 * values[-1].clamp_min(1e-300)
        turn = vectors[:, kept] / values[kept].sqrt()
        V, Q = V @ turn, Q @ turn
    return torch.cat([U, V], 1), torch.cat([P, Q], 1)


def _dual_root(operator: GridOperator, P: Float[Tensor, "m k"]) -> Float[Tensor, "m r"]:
    """D such that K D D' K is the Galerkin approximation of the explained covariance, from below.

    Q = D^-1/2 W P spans the Krylov space over rows: Q' Q = P' G P, Q' (H - I) Q = (G P)' K G P.
    Made orthonormal, Q keeps the condition number of Q' H Q at that of H. The data explain at most
    a share of P's direction v of v' P' G P v, so that very small ones are left out.
    """
    R = operator.gram(P)
    squares, turn = torch.linalg.eigh((P.T @ R + R.T @ P) / 2)
    kept = squares > max(_LEAST_SHARE, 1e-14 * float(squares[-1]))
    R = R @ (turn[:, kept] / squares[kept].sqrt())
    inner = R.T @ operator.dual(R)
    inner = (inner + inner.T) / 2
    inner.diagonal().add_(1)
    return torch.linalg.solve_triangular(torch.linalg.cholesky(inner), R.T, upper=False).T
