"""The exact log marginal likelihood and its gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..blocks import cholesky_inverse
from ..parallel import one_thread
from ..solvers import cholesky_with_jitter
from ._problem import GPProblem

# A factorisation of so many takes a hundredth of a second of one core.
_FEW_ROWS = 1000


@dataclass(frozen=True)
class ExactEvaluation:
    """Everything that one factorisation gives.

    Attributes
    ----------
    value : float
        Log marginal likelihood, summed over targets.
    grad : Tensor of shape (p,) or None
        Its gradient in theta, float64.
    factor : Tensor of shape (n, n)
        Lower Cholesky factor of H (+ jitter). Overwritten by the problem's next evaluation.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    jitter : float
        What had to be added to the diagonal, 0 when nothing.
    """

    value: float
    grad: Tensor | None
    factor: Tensor
    weights: Tensor
    jitter: float


def exact_marginal_likelihood(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    eval_gradient: bool = True,
    max_jitter: float = 1e-3,
) -> ExactEvaluation:
    r"""log p(Y) = -1/2 tr(Y' H^-1 Y) - t/2 log|H| - n t/2 log(2 pi), by Cholesky.

    The gradient is 1/2 sum_ij W_ij dH_ij with W = V V' - t H^-1, V = H^-1 Y: n^3 flops in all and
    two n x n matrices (Rasmussen and Williams 2006, equations 2.30 and 5.9).

    Parameters
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        Log hyperparameters.
    eval_gradient : bool, default=True
    max_jitter : float, default=1e-3
        As in `cholesky_with_jitter`.

    Raises
    ------
    torch.linalg.LinAlgError
        If H is not positive definite even with the largest jitter.
    """
    # Of few rows no operation is worth threads that wait for one another; tiles go to workers.
    with one_thread(len(problem.Y) <= _FEW_ROWS):
        operator = problem.operator(theta)
        L, jitter = cholesky_with_jitter(
            operator.release_dense(), max_jitter, rebuild=operator.release_dense
        )
        n, t = problem.Y.shape
        V = torch.cholesky_solve(problem.Y, L)
        quadratic = (problem.Y.double() * V.double()).sum()
        log_det = 2 * L.diagonal().double().log().sum()
        value = -0.5 * float(quadratic + t * log_det) - 0.5 * n * t * math.log(2 * math.pi)
        grad = None
        if eval_gradient:
            W = cholesky_inverse(L).mul_(-t).addmm_(V, V.T)
            grad = 0.5 * operator.bilinear_grad(W)
    return ExactEvaluation(value, grad, L, V, jitter)
