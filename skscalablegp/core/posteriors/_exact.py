"""The posterior from a Cholesky factor."""

from __future__ import annotations

from bisect import bisect_left

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.blocks import addmm_, solve_triangular
from ...linalg.gradients import ExactEvaluation, GPProblem, exact_marginal_likelihood
from ...linalg.operators import KernelOperator
from ._base import MeanAndVariance
from ._kernel import KernelPosterior
from ._modules import PosteriorModule, inverse_root
from ._moments import Moments, reported_variance

# Number of columns of the inverse factor that are computed together, in blocks of this many rows.
_COLUMNS, _BLOCK = 512, 512


class ExactPosterior(KernelPosterior):
    """Mean, variance and covariance by triangular solves.

    Parameters
    ----------
    operator : KernelOperator
        H, the kernel matrix plus noise, at the trained hyperparameters.
    weights : Tensor of shape (n, t)
        The solution H^-1 Y.
    factor : Tensor of shape (n, n)
        Lower Cholesky factor of H.

    Notes
    -----
    Rasmussen and Williams (2006), algorithm 2.1; a variance costs n^2 operations for each row.
    """

    def __init__(
        self, operator: KernelOperator, weights: Float[Tensor, "n t"], factor: Float[Tensor, "n n"]
    ):
        super().__init__(operator, weights)
        # The factor is in the memory of H, which products of the operator must not overwrite.
        operator.leave_workspace()
        self.factor = factor

    @classmethod
    def of(
        cls, problem: GPProblem, theta: Float[Tensor, " p"], max_jitter: float = 1e-3
    ) -> tuple[ExactPosterior, ExactEvaluation]:
        """The posterior at theta, and the evaluation with its factor; O(n^3)."""
        evaluation = exact_marginal_likelihood(problem, theta, False, max_jitter)
        operator = problem.operator(theta)
        return cls(operator, evaluation.weights, evaluation.factor), evaluation

    def _whitened(self, K: Float[Tensor, "m n"]) -> Float[Tensor, "n m"]:
        return solve_triangular(self.factor, K.T)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        cross = self.cross(X)
        K, prior = cross.to_dense(), cross.prior_diag()
        explained = self._whitened(K).square().sum(0)
        variance = reported_variance(prior - explained, prior)
        return Moments(K @ self.weights, variance, cross.prior_noise())

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross = self.cross(X)
        V, covariance = self._whitened(cross.to_dense()), cross.prior_covariance()
        return covariance.addmm_(V.T, V, alpha=-1)

    def module(self, with_variance: bool = True) -> PosteriorModule:
        """With the inverse factor, n x n, for variances; without them with the rows alone."""
        return self._linear(inverse_root(self.factor.double()) if with_variance else None)

    def _inverse_times(self, B: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return torch.cholesky_solve(B.to(self.factor), self.factor)

    def leave_one_out(self, rows, X, Y, known) -> MeanAndVariance:
        """From the diagonal of H^-1, Rasmussen and Williams (2006), equation 5.12; O(n^2) a row."""
        inverse = torch.empty_like(known)
        for start in range(0, len(rows), _COLUMNS):
            part = slice(start, start + _COLUMNS)
            inverse[part] = self._inverse_columns(rows[part]).square().sum(0)
        return Y - self.weights[rows] / inverse[:, None], 1 / inverse

    def _inverse_columns(self, rows: Int[Tensor, " s"]) -> Float[Tensor, "k s"]:
        """Columns of L^-1 in increasing order, from the row on where the first is not zero.

        Block row by block row, in which only the columns that have begun take part.
        """
        L, numbers = self.factor, rows.tolist()
        first, n, s = numbers[0], len(L), len(numbers)
        V = L.new_zeros(n - first, s)
        V[rows - first, torch.arange(s, device=rows.device)] = 1
        for start in range(first, n, _BLOCK):
            own = slice(start, min(start + _BLOCK, n))
            begun = bisect_left(numbers, own.stop)
            here = V[start - first : own.stop - first, :begun]
            addmm_(here, L[own, first:start], V[: start - first, :begun], alpha=-1)
            here.copy_(solve_triangular(L[own, own], here))
        return V
