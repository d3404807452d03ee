"""The rows of a step's batch: gradients in the drawn weights and in the hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import RowSource
from ._basis import BasisPart, SampledBasis
from ._estimates import BasisDraw, SampledBatch, sampled_gradient, sampled_loss
from ._noise import NoiseAtRows
from ._support import SupportRows


@dataclass(frozen=True, eq=False)
class StepRows:
    """Rows that batches are drawn from, and what does not change from step to step.

    Attributes
    ----------
    source : RowSource
    basis : SampledBasis
    support : SupportRows
    """

    source: RowSource
    basis: SampledBasis
    support: SupportRows


@dataclass(frozen=True, eq=False)
class BatchTask:
    """What a step asks of the rows of its batch.

    Attributes
    ----------
    noise : NoiseAtRows
        Of no particular rows.
    draws : list of (ndarray of int, float)
        Blocks of basis functions, with the scale of their sums: the left draw, the right one, and
        one for the variance in the gradient of the hyperparameters, if that is wanted.
    n : float
        Number of rows that the batch represents.
    size : int
        Number of rows of the whole batch.
    regression : bool
        Whether f at the rows is controlled by regression on the support rows.
    """

    noise: NoiseAtRows
    draws: list[tuple[np.ndarray, float]]
    n: float
    size: int
    regression: bool


def batch_sums(  # noqa: PLR0913 (ranks get tensors one by one)
    rows: StepRows,
    own: np.ndarray,
    task: BatchTask,
    theta: Float[Tensor, " p"],
    left: Float[Tensor, "u k"],
    right: Float[Tensor, "u k"],
    left_support: Float[Tensor, "s k"],
    right_support: Float[Tensor, "s k"],
    a: Float[Tensor, "s k"],
    *more: Tensor,
) -> tuple[Tensor, ...]:
    """Sums over some rows: gradients of minus E_q log p in both draws' weights, and in theta.

    The gradients are those of `sampled_gradient`, and are zeros without rows.

    Parameters
    ----------
    rows : StepRows
    own : ndarray of int
        The numbers of the rows.
    task : BatchTask
    theta : Tensor of shape (p,)
    left, right : Tensor of shape (u, k)
        The drawn weights.
    left_support, right_support, a : Tensor of shape (s, k)
        The draws' estimates at the support rows, and the values there.
    more : Tensor
        Diagonals of C (q, u) for the functions of the left draw and the right one, under a
        likelihood that is not Gaussian; that for the third draw, if there is one; and the weights
        (q, units, k) and the diagonal (q, units) of all functions, if f is to come from these.
    """
    if not len(own):
        return tuple(torch.zeros_like(part).double() for part in (left, right, theta))
    some = rows.source.take(own)
    X, noise, draws = some.X, task.noise.at(some), []
    parts = [(rows.basis.part(blocks), scale) for blocks, scale in task.draws]
    A = rows.support.regression(rows.support.cross(X)) if task.regression else None
    given = (left, left_support), (right, right_support)
    for (part, scale), (w, known) in zip(parts[:2], given, strict=True):
        correction = 0.0 if A is None else A @ (a - known)
        draws.append(BasisDraw(part.evaluate(theta, X), w, scale, correction))
    n_diagonals = len(parts) - (2 if noise.gaussian else 0)
    diagonals, whole = more[:n_diagonals], more[n_diagonals:]
    square, f = draws[0].phi.new_zeros(len(X), 1), None
    if not noise.gaussian:
        # An unbiased estimate of the variance of f from the diagonal of C.
        both = [
            draw.scale * (draw.phi.square() @ c.flatten().square())
            for draw, c in zip(draws, diagonals, strict=False)
        ]
        square = (sum(both) / len(both))[:, None]
    if whole:
        f, square, (coef, c) = 0.0, 0.0, whole
        for index, phi in rows.basis.evaluations(theta, X):
            f = f + phi @ coef[:, index].flatten(0, 1)
            square = square + (phi.square() @ c[:, index].flatten().square())[:, None]
    # Sums are scaled from the rows of the whole batch.
    n = task.n * len(own) / task.size
    batch = SampledBatch(some.Y, *draws, square, n, task.regression)
    gradients = sampled_gradient(noise, batch, f)
    of_theta = torch.zeros_like(theta)
    if len(parts) > 2:
        of_theta = _of_theta(rows, noise, batch, parts, diagonals[-1], X, theta)
    return tuple(part.detach().double() for part in (*gradients, of_theta))


def _of_theta(
    rows: StepRows,
    noise: NoiseAtRows,
    batch: SampledBatch,
    parts: list[tuple[BasisPart, float]],
    c: Float[Tensor, "q u"],
    X: Float[Tensor, "b d"],
    theta: Float[Tensor, " p"],
) -> Float[Tensor, " p"]:
    """The gradient of the sampled loss (empirical Bayes), zeros if there is none.

    The control variate keeps the basis of the start (appendix F.3), so that f at the support rows
    remains known.
    """
    with torch.enable_grad():
        theta = theta.detach().requires_grad_(True)
        left, right, third = (part.evaluate(theta, X) for part, _ in parts)
        batch = replace(
            batch,
            left=replace(batch.left, phi=left),
            right=replace(batch.right, phi=right),
            square=parts[2][1] * (third.square() @ c.flatten().square())[:, None],
        )
        variances = None
        if noise.gaussian:
            white = rows.support.kernel.noise(theta, X[:1].double())[0]
            variances = (white + noise.known).expand(len(X)).to(X)
        loss = sampled_loss(noise, batch, variances)
        (gradient,) = torch.autograd.grad(loss, theta, allow_unused=True)
    return torch.zeros_like(theta) if gradient is None else gradient
