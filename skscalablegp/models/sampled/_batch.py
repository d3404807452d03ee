"""The rows of a step's batch: gradients in the drawn weights and in the hyperparameters."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import RowSource
from ._basis import SampledBasis
from ._estimates import (
    BasisDraw,
    Control,
    Projection,
    SampledBatch,
    sampled_gradient,
    sampled_loss,
)
from ._noise import NoiseAtRows
from ._support import SupportRows

# Numbers in one evaluation of the basis.
NUMBERS = 2**24


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
class DrawnBlocks:
    """A draw of basis functions.

    Attributes
    ----------
    blocks : ndarray of int
    scale : float
        As in `BasisDraw`.
    """

    blocks: np.ndarray
    scale: float


@dataclass(frozen=True)
class StepPart(BasisDraw):
    """A draw whose estimate at the support rows is known, instead of the functions there.

    Attributes
    ----------
    at_support : Tensor of shape (s, k), optional
    """

    at_support: Float[Tensor, "s k"] | None = None

    def support(self) -> Float[Tensor, "s k"]:
        return self.at_support


@dataclass(frozen=True, eq=False)
class BatchTask:
    """What a step asks of the rows of its batch.

    Attributes
    ----------
    noise : NoiseAtRows
        Of no particular rows.
    left, right : DrawnBlocks
    third : DrawnBlocks or None
        A further draw, for the variance in the gradient of the hyperparameters; None without it.
    n : float
        Number of rows that the batch represents.
    size : int
        Number of rows of the whole batch.
    regression : bool
        Whether f at the rows is controlled by regression on the support rows.
    """

    noise: NoiseAtRows
    left: DrawnBlocks
    right: DrawnBlocks
    third: DrawnBlocks | None
    n: float
    size: int
    regression: bool


@dataclass(frozen=True, eq=False)
class BatchTensors:
    """The tensors of a task; see `BatchTask`.

    Attributes
    ----------
    theta : Tensor of shape (p,)
    left, right : Tensor of shape (u, k)
        The drawn weights.
    left_support, right_support, a : Tensor of shape (s, k)
        The draws' estimates at the support rows, and the values there.
    diagonal : tuple of Tensor of shape (q, u)
        Diagonals of C for the functions of the left draw, the right one and the third one. The
        first two are for likelihoods that are not Gaussian.
    whole : tuple of Tensor
        The weights (q, units, k) and the diagonal (q, units) of all functions, or nothing.
    """

    theta: Tensor
    left: Tensor
    right: Tensor
    left_support: Tensor
    right_support: Tensor
    a: Tensor
    diagonals: tuple[Tensor, ...] = ()
    whole: tuple[Tensor, ...] = ()


def batch_sums(
    rows: StepRows, own: np.ndarray, task: BatchTask, n_diagonals: int, *tensors: Tensor
) -> tuple[Tensor, ...]:
    """Sums over some rows: gradients of minus E_q log p in both draws' weights, and in theta.

    `tensors` are those of `BatchTensors` in order. The gradients are those of `sampled_gradient`
    without the control's pull, and are zeros without rows.
    """
    first, more = tensors[:6], tensors[6:]
    at = BatchTensors(*first, more[:n_diagonals], more[n_diagonals:])
    gradients = [torch.zeros_like(at.left), torch.zeros_like(at.right)]
    of_theta = torch.zeros_like(at.theta)
    if len(own):
        work = _BatchRows(rows, own, task, at)
        gradients = work.gradients()
        if task.third is not None:
            of_theta = work.of_theta()
    return tuple(part.detach().double() for part in (*gradients, of_theta))


class _BatchRows:
    """Some rows of one batch."""

    def __init__(self, rows: StepRows, own: np.ndarray, task: BatchTask, at: BatchTensors):
        source, support = rows.source, rows.support
        self.rows, self.task, self.at = rows, task, at
        some = source.take(own)
        self.X, Y, self.noise = some.X, some.Y, task.noise.at(some)
        control: Control = Control()
        if task.regression:
            control = Projection(support.regression(support.cross(self.X)), at.a)
        self.parts = [rows.basis.part(draw.blocks) for draw in (task.left, task.right)]
        values = [part.evaluate(at.theta, self.X) for part in self.parts]
        left = StepPart(values[0], at.left, task.left.scale, None, at.left_support)
        right = StepPart(values[1], at.right, task.right.scale, None, at.right_support)
        # Sums are scaled from the rows of the whole batch.
        n = task.n * len(own) / task.size
        self.batch = SampledBatch(Y, left, right, control, self._square(left, right), n)

    def _square(self, *draws: BasisDraw) -> Float[Tensor, "b 1"]:
        """An unbiased estimate of the variance of f from the diagonal of C."""
        if self.noise.gaussian:
            return torch.zeros(len(self.X), 1).to(draws[0].phi)
        parts = [
            draw.scale * (draw.phi.square() @ c.flatten().square())
            for draw, c in zip(draws, self.at.diagonals, strict=False)
        ]
        return (sum(parts) / len(parts))[:, None]

    def gradients(self) -> list[Tensor]:
        known = None
        if self.at.whole:
            known, square = self._function()
            self.batch = replace(self.batch, square=square)
        return list(sampled_gradient(self.noise, self.batch, known))

    def _function(self) -> tuple[Tensor, Tensor]:
        """All columns' values at the rows, and the diagonal's variance, from all functions."""
        f, square = 0.0, 0.0
        (coef, diagonal), basis = self.at.whole, self.rows.basis
        units = max(1, NUMBERS // (basis.per_unit * max(len(self.X), len(self.rows.support))))
        for part in basis.parts(units):
            phi = part.evaluate(self.at.theta, self.X)
            f = f + phi @ coef[:, part.index].flatten(0, 1)
            square = square + phi.square() @ diagonal[:, part.index].flatten().square()
        return f, square[:, None]

    def of_theta(self) -> Tensor:
        """The gradient of the sampled loss (empirical Bayes), zeros if there is none.

        The control variate keeps the basis of the start (appendix F.3), so that f at the support
        rows remains known.
        """
        task, kernel, X = self.task, self.rows.support.kernel, self.X
        third, c = self.rows.basis.part(task.third.blocks), self.at.diagonals[-1].flatten()
        with torch.enable_grad():
            theta = self.at.theta.detach().requires_grad_(True)
            left, right = (part.evaluate(theta, X) for part in self.parts)
            square = task.third.scale * (third.evaluate(theta, X).square() @ c.square())[:, None]
            batch = replace(
                self.batch,
                left=replace(self.batch.left, phi=left),
                right=replace(self.batch.right, phi=right),
                square=square,
            )
            variances = None
            if self.noise.gaussian:
                white = kernel.noise(theta, X[:1].double())[0]
                variances = (white + self.noise.known).expand(len(X)).to(X)
            loss = sampled_loss(self.noise, batch, variances)
            (gradient,) = torch.autograd.grad(loss, theta, allow_unused=True)
        return torch.zeros_like(self.at.theta) if gradient is None else gradient
