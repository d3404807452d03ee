"""The exact log marginal likelihood and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from ...workers import one_thread
from ..blocks import cholesky_inverse, cholesky_solve, look_up
from ..solvers import cholesky_with_jitter
from ._base import GradientEstimate, GradientEstimator, GradientState
from ._problem import GPProblem

# Rows of a pass over a matrix, between which interrupts are served.
_ROWS = 1024


@dataclass(frozen=True)
class ExactEvaluation:
    """The results of one factorisation.

    Attributes
    ----------
    value : float
        Log marginal likelihood, summed over targets.
    grad : Tensor of shape (p,) or None
        Its gradient in theta, float64.
    factor : Tensor of shape (n, n)
        Lower Cholesky factor of H (+ jitter). The problem's next evaluation overwrites it.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    jitter : float
        The number that was added to the diagonal, usually 0.
    """

    value: float
    grad: Tensor | None
    factor: Tensor
    weights: Tensor
    jitter: float


def log_density(
    factor: Float[Tensor, "n n"], Y: Float[Tensor, "n t"], weights: Float[Tensor, "n t"]
) -> float:
    """log p(Y) under N(0, H), summed over targets, from the factor of H and H^-1 Y."""
    n, t = Y.shape
    quadratic = (Y.double() * weights.double()).sum()
    log_det = 2 * factor.diagonal().double().log().sum()
    return -0.5 * float(quadratic + t * log_det) - 0.5 * n * t * math.log(2 * math.pi)


def exact_marginal_likelihood(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    eval_gradient: bool = True,
    max_jitter: float = 1e-3,
) -> ExactEvaluation:
    r"""log p(Y) = -1/2 tr(Y' H^-1 Y) - t/2 log|H| - n t/2 log(2 pi), by Cholesky.

    The gradient is 1/2 sum_ij W_ij dH_ij with W = V V' - t H^-1 and V = H^-1 Y (Rasmussen and
    Williams 2006, equations 2.30 and 5.9). Merged rows add what `Rows` says.

    Parameters
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        Log hyperparameters.
    eval_gradient : bool, default=True
        Whether to compute the gradient.
    max_jitter : float, default=1e-3
        As in `cholesky_with_jitter`.

    Raises
    ------
    torch.linalg.LinAlgError
        If H is not positive definite even with the largest jitter.

    Notes
    -----
    n^3 operations and two n x n matrices.
    """
    # All large operations are shared among the workers; torch's own threads would get in their way.
    with one_thread():
        operator = problem.operator(theta)
        L, jitter = cholesky_with_jitter(
            operator.release_dense(), max_jitter, rebuild=operator.release_dense
        )
        n, t = problem.Y.shape
        V = cholesky_solve(problem.Y, L)
        value = log_density(L, problem.Y, V)
        grad = None
        if eval_gradient:
            W = cholesky_inverse(L)
            for start in range(0, n, _ROWS):
                if start:
                    look_up()
                rows = slice(start, start + _ROWS)
                W[rows].addmm_(V[rows], V.T, beta=-t)
            grad = 0.5 * operator.bilinear_grad(W)
    more, slope = problem.repeated(theta, eval_gradient)
    value, grad = value + more, None if grad is None else grad + slope
    return ExactEvaluation(value, grad, L, V, jitter)


class ExactGradient(GradientEstimator):
    """The exact value and gradient, from one Cholesky factorisation.

    Parameters
    ----------
    max_jitter : float, default=1e-3
        Largest multiple of H's mean diagonal entry that may be added to its diagonal.

    Notes
    -----
    O(n^3) time and two n x n matrices.
    """

    exact = True

    def __init__(self, max_jitter: float = 1e-3):
        self.max_jitter = max_jitter

    def estimate(
        self, problem: GPProblem, theta: Tensor, state: GradientState
    ) -> tuple[GradientEstimate, GradientState]:
        result = exact_marginal_likelihood(problem, theta, max_jitter=self.max_jitter)
        assert result.grad is not None
        return GradientEstimate(result.grad, result.value, None, result.jitter), state

    def on_subset(self) -> GradientEstimator:
        return self
