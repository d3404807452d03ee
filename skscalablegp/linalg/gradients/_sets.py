"""The exact log marginal likelihoods of many sets of rows, factorised together."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...kernels import TorchKernel
from ..operators import kernel_of_sets, slope
from ._problem import GPProblem

# Matrix entries that are factorised at a time.
_BLOCK = 2**26


class SetsEvaluation(NamedTuple):
    """The results of one batch of factorisations.

    Attributes
    ----------
    values : Tensor of shape (s,)
        Log marginal likelihood of each set, summed over targets, on the CPU.
    grad : Tensor of shape (p,) or None
        The gradient of their sum in theta, on the CPU.
    factor : Tensor of shape (s, k, k) or None
        Lower Cholesky factors of H (+ jitter); None with a gradient.
    weights : Tensor of shape (s, k, t)
        H^-1 Y.
    jitter : float
        The largest number that was added to a diagonal, usually 0.
    """

    values: Float[Tensor, " s"]
    grad: Float[Tensor, " p"] | None
    factor: Float[Tensor, "s k k"] | None
    weights: Float[Tensor, "s k t"]
    jitter: float


def sets_marginal_likelihood(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    sets: Int[Tensor, "s k"],
    eval_gradient: bool = True,
    max_jitter: float = 1e-3,
) -> SetsEvaluation:
    """`exact_marginal_likelihood` of each of s sets of k rows, in O(s k^3) operations.

    The numbers of operations on a device and of waits for it do not depend on s, except that sets
    of more than 2**26 entries together are cut into batches.

    Parameters
    ----------
    problem : GPProblem
        Holds the rows.
    theta : Tensor of shape (p,)
        Log hyperparameters, the same for all sets.
    sets : Tensor of shape (s, k)
        Numbers of the rows of each set.
    eval_gradient : bool, default=True
        Whether to compute the gradient.
    max_jitter : float, default=1e-3
        As in `cholesky_with_jitter`.

    Raises
    ------
    torch.linalg.LinAlgError
        If a matrix is not positive definite even with the largest jitter.
    """
    there = theta.detach().double().to(sets.device, non_blocking=True)
    size = max(1, _BLOCK // sets.shape[1] ** 2)
    parts = [
        _evaluate(problem, there, some, eval_gradient, max_jitter) for some in sets.split(size)
    ]
    values, grads, factors, weights, jitters = zip(*parts, strict=True)
    return SetsEvaluation(
        torch.cat(values).cpu(),
        torch.stack(grads).sum(0).cpu() if eval_gradient else None,
        None if eval_gradient else torch.cat(factors),
        torch.cat(weights),
        max(jitters),
    )


def _evaluate(
    problem: GPProblem, theta: Tensor, sets: Tensor, eval_gradient: bool, max_jitter: float
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor, float]:
    """One batch, with the gradient on the device."""
    kernel, Y = problem.kernel, problem.Y[sets]
    at = theta.clone().requires_grad_(eval_gradient)
    with torch.set_grad_enabled(eval_gradient):
        K, noise = _covariances(problem, kernel, at, sets)
        more = problem.repeated_at(at, sets.flatten()).reshape(sets.shape).sum(1)
    with torch.no_grad():
        H = K.detach().clone()
        H.diagonal(dim1=1, dim2=2).add_(noise)
        L, jitter = _factors(H, max_jitter)
        V = torch.cholesky_solve(Y, L)
        t, k = Y.shape[2], Y.shape[1]
        quadratic = (Y.double() * V.double()).sum((1, 2))
        log_det = 2 * L.diagonal(dim1=1, dim2=2).double().log().sum(1)
        values = -0.5 * (quadratic + t * log_det + k * t * math.log(2 * math.pi))
        values = values + more.detach()
        if not eval_gradient:
            return values, None, L, V, jitter
        W = 0.5 * (V @ V.mT - t * torch.cholesky_inverse(L))
    slopes = (W * K).sum() + (W.diagonal(dim1=1, dim2=2) * noise).sum() + more.sum()
    return values, slope(slopes, at), None, V, jitter


def _covariances(
    problem: GPProblem, kernel: TorchKernel, theta: Tensor, sets: Tensor
) -> tuple[Float[Tensor, "s k k"], Float[Tensor, "s k"]]:
    """The kernel matrix of each set, with exact diagonals, and the noise of each row."""
    Z = problem.X[sets]
    noise = problem.noise(theta, sets.flatten()).to(Z.dtype).reshape(sets.shape)
    return kernel_of_sets(kernel, theta, Z, Z.dtype), noise


def _factors(H: Float[Tensor, "s k k"], max_jitter: float) -> tuple[Float[Tensor, "s k k"], float]:
    """Their factors, and the largest jitter; the matrices without a factor are tried again."""
    L, info = torch.linalg.cholesky_ex(H)
    failed = info > 0
    if not failed.any():
        return L, 0.0
    mean, fraction = H.diagonal(dim1=1, dim2=2).mean(1), 10 * torch.finfo(H.dtype).eps
    while True:
        some = H[failed]
        some.diagonal(dim1=1, dim2=2).add_((fraction * mean[failed])[:, None])
        L[failed], info = torch.linalg.cholesky_ex(some)
        if not (info > 0).any():
            return L, float((fraction * mean).max())
        if fraction >= max_jitter:
            raise torch.linalg.LinAlgError(
                f"{int((info > 0).sum())} of {len(H)} sets of rows have no Cholesky factor with a "
                f"jitter of {fraction:.3g} of their mean variance: increase the noise."
            )
        fraction = min(10 * fraction, max_jitter)
