"""The posterior from a Cholesky factor."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...linalg.blocks import solve_triangular
from ...linalg.gradients import ExactEvaluation, GPProblem, exact_marginal_likelihood
from ...linalg.operators import KernelOperator
from ._base import KernelPosterior, MeanAndVariance, reported_variance

# Number of columns of the inverse factor in one block.
_COLUMNS = 500


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

    def mean_and_variance(self, X: Float[Tensor, "m d"]) -> MeanAndVariance:
        cross = self.cross(X)
        K, prior = cross.to_dense(), cross.prior_diag()
        explained = self._whitened(K).square().sum(0)
        return K @ self.weights, reported_variance(prior - explained, prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross = self.cross(X)
        V, covariance = self._whitened(cross.to_dense()), cross.prior_covariance()
        return covariance.addmm_(V.T, V, alpha=-1)

    def leave_one_out(self, rows, X, Y, noise) -> MeanAndVariance:
        """From the diagonal of H^-1, Rasmussen and Williams (2006), equation 5.12; O(n^2) a row."""
        inverse = torch.empty_like(noise)
        for part in torch.arange(len(rows), device=rows.device).split(_COLUMNS):
            first = int(rows[part[0]])  # these columns of L^-1 are zero above this row
            below = self.factor[first:, first:].mT.contiguous().mT
            units = below.new_zeros(len(below), len(part))
            units[rows[part] - first, torch.arange(len(part), device=rows.device)] = 1
            inverse[part] = solve_triangular(below, units).square().sum(0)
        return Y - self.weights[rows] / inverse[:, None], 1 / inverse
