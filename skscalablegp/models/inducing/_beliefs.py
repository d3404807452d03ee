"""Two ways in which training moves the belief about the inducing values."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch

from ._bound import NaturalBelief, RowStatistics, WhitenedBelief


class MovingBelief(ABC):
    """q(v) as a stepper changes it.

    Attributes
    ----------
    closed : bool
        Whether one step on all rows is the best belief.
    """

    closed: bool = False

    @abstractmethod
    def whitened(self) -> WhitenedBelief:
        """What it is now."""

    @abstractmethod
    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        """Follow the statistics of a batch, scaled to all n rows, after so many other steps."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy that later steps leave alone."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""


class NaturalSteps(MovingBelief):
    """Natural gradient steps, which are averages with what a batch says.

    Parameters
    ----------
    prior : NaturalBelief
    rate : float
        Weight of a batch.
    conjugate : bool
        Whether the likelihood is Gaussian.
    whole : bool
        Whether a batch is all rows.
    """

    def __init__(self, prior: NaturalBelief, rate: float, conjugate: bool, whole: bool):
        self.prior = self.belief = prior
        self.rate, self.closed, self.whole = rate, conjugate, whole

    def whitened(self) -> WhitenedBelief:
        return self.belief.whitened()

    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        # The first steps forget the prior; on all rows a Gaussian likelihood needs one.
        rate = max(self.rate, 1 / (n_steps + (1 if self.closed else 2)))
        if self.closed and self.whole:
            rate = 1.0
        self.belief = self.belief.towards(self.prior.plus(rows), rate)

    def snapshot(self) -> NaturalBelief:
        return self.belief

    def restore(self, snapshot: NaturalBelief) -> None:
        self.belief = snapshot


class AdamSteps(MovingBelief):
    """A mean and a Cholesky factor that Adam follows, from the prior on.

    Parameters
    ----------
    prior : NaturalBelief
        N(0, I).
    rate : float
        Adam's.
    """

    def __init__(self, prior: NaturalBelief, rate: float):
        self.mean, self.factor = prior.shift.clone(), prior.precision.clone()
        self.adam = torch.optim.Adam([self.mean, self.factor], lr=rate)

    def whitened(self) -> WhitenedBelief:
        C = self.factor
        log_det = 2 * C.diagonal(dim1=1, dim2=2).abs().log().sum(1)
        return WhitenedBelief(self.mean.clone(), C @ C.mT, log_det)

    def step(self, rows: RowStatistics, n: int, n_steps: int) -> None:
        """Ascend the bound; its gradient in S is (S^-1 - I - P) / 2 for each latent function."""
        C, shared = self.factor, self.mean.shape[1] // len(self.factor)
        inverse = torch.diag_embed(1 / C.diagonal(dim1=1, dim2=2))
        self.mean.grad = (self.mean - rows.d_mean) / n
        self.factor.grad = shared * (C + rows.precision @ C - inverse).tril() / n
        self.adam.step()

    def snapshot(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.mean.clone(), self.factor.clone()

    def restore(self, snapshot: tuple[torch.Tensor, torch.Tensor]) -> None:
        self.mean.copy_(snapshot[0])
        self.factor.copy_(snapshot[1])
