"""Two methods to train the belief about the inducing values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...core.likelihoods import CONSTANT_VARIANCE
from ...core.training import TensorAdam
from ._bound import NaturalBelief, RowStatistics, WhitenedBelief


class MovingBelief(ABC):
    """The belief q(v) in training.

    Attributes
    ----------
    closed : bool
        Whether one step on all rows gives the optimal belief.
    """

    closed: bool = False
    prior: NaturalBelief

    @abstractmethod
    def whitened(self) -> WhitenedBelief:
        """The current belief."""

    @abstractmethod
    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        """Update from the statistics of a batch, scaled to all n rows, after `n_steps` steps."""

    def _moved(self, constant: Tensor, rows: RowStatistics) -> Tensor:
        """The constants after a Newton step towards the maximum of the bound plus log prior.

        The prior is normal around the value that explains the targets without the kernel. A
        Gaussian likelihood has no constants, since its targets are normalised.
        """
        away = (constant - self.prior.constant) / CONSTANT_VARIANCE
        return constant + (rows.slope - away) / (rows.curvature + 1 / CONSTANT_VARIANCE)

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy that later steps do not change."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Return to a copy."""


class NaturalSteps(MovingBelief):
    """Natural-gradient steps, which are weighted averages with a batch's statistics.

    Parameters
    ----------
    prior : NaturalBelief
    rate : float
        Weight of a batch.
    conjugate : bool
        Whether the likelihood is Gaussian.
    whole : bool
        Whether a batch has all rows.
    learns_constant : bool
        Whether the constants are trained, too.
    """

    moving = ("belief",)

    def __init__(
        self, prior: NaturalBelief, rate: float, conjugate: bool, whole: bool, learns_constant: bool
    ):
        self.prior = self.belief = prior
        self.learns_constant = learns_constant
        self.rate, self.closed, self.whole = rate, conjugate, whole

    def whitened(self) -> WhitenedBelief:
        return self.belief.whitened()

    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        # Large first steps forget the prior; for a Gaussian likelihood, one step on all rows is
        # enough.
        rate = max(self.rate, 1 / (n_steps + (1 if self.closed else 2)))
        if self.closed and self.whole:
            rate = 1.0
        target = self.prior.plus(rows)
        if self.learns_constant:
            target = replace(target, constant=self._moved(self.belief.constant, rows))
        self.belief = self.belief.towards(target, rate)

    def snapshot(self) -> NaturalBelief:
        return self.belief

    def restore(self, snapshot: NaturalBelief) -> None:
        self.belief = snapshot


class AdamSteps(MovingBelief):
    """A mean and a Cholesky factor that Adam trains, starting at the prior.

    Parameters
    ----------
    prior : NaturalBelief
        N(0, I).
    rate : float
        Learning rate of Adam.
    learns_constant : bool
        Whether the constants are trained, too.
    """

    moving = ("mean", "factor", "constant", "adam")

    def __init__(self, prior: NaturalBelief, rate: float, learns_constant: bool):
        self.prior, self.rate, self.learns_constant = prior, rate, learns_constant
        self.mean, self.factor = prior.shift.clone(), prior.precision.clone()
        self.constant = prior.constant.clone()
        self.adam = TensorAdam([([self.mean, self.factor], rate)])

    def whitened(self) -> WhitenedBelief:
        C = self.factor
        log_det = 2 * C.diagonal(dim1=1, dim2=2).abs().log().sum(1)
        return WhitenedBelief(self.mean.clone(), C @ C.mT, log_det, self.constant.clone())

    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        """Ascend the bound, whose gradient in S is (S^-1 - I - P) / 2 per latent function."""
        C, shared = self.factor, self.mean.shape[1] // len(self.factor)
        inverse = torch.diag_embed(1 / C.diagonal(dim1=1, dim2=2))
        self.mean.grad = (self.mean - rows.d_mean) / n
        self.factor.grad = shared * (C + rows.precision @ C - inverse).tril() / n
        self.adam.step()
        if self.learns_constant:
            self.constant.lerp_(self._moved(self.constant, rows), self.rate)

    def snapshot(self) -> tuple[Tensor, ...]:
        return self.mean.clone(), self.factor.clone(), self.constant.clone()

    def restore(self, snapshot: tuple[Tensor, ...]) -> None:
        for kept, value in zip((self.mean, self.factor, self.constant), snapshot, strict=True):
            kept.copy_(value)
