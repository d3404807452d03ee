"""Rows that stand for several equal rows of a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Repeats:
    r"""How many equal rows each row stands for, and what their mean leaves out of the likelihood.

    The targets y_1..y_k of k equal rows with noise variance v depend on f through their mean alone,
    which has the noise variance v / k. The other factor of their density is
    (2 pi v)^(-(k - 1) / 2) k^(-1/2) exp(-sum_i (y_i - mean)^2 / (2 v)). With weights in place of
    numbers of rows, k is their sum, and the sum of squares is weighted.

    Attributes
    ----------
    counts : Tensor of shape (n,)
        k of each row, positive.
    within : Tensor of shape (n,)
        The sum of squares of each row, summed over targets.
    share : float
        Weight of the other factor's logarithm. In random rows of the original table pairs of equal
        rows are rarer than rows, by the share of the rows that are drawn.
    """

    counts: Float[Tensor, " n"]
    within: Float[Tensor, " n"]
    share: float = 1.0

    @classmethod
    def none(cls, n: int, dtype: torch.dtype, device: torch.device) -> Repeats:
        """Those of n rows that stand for themselves: ones and zeros, which take no memory."""
        one, zero = torch.tensor([[1.0], [0.0]], dtype=dtype, device=device).expand(2, n)
        return cls(one, zero)

    @cached_property
    def merged(self) -> bool:
        """Whether a row stands for others, too."""
        return bool((self.counts != 1).any() or (self.within != 0).any())

    def __getitem__(self, rows: Tensor | slice) -> Repeats:
        return replace(self, counts=self.counts[rows], within=self.within[rows])

    def to(self, dtype: torch.dtype) -> Repeats:
        """The same in another precision."""
        return replace(self, counts=self.counts.to(dtype), within=self.within.to(dtype))

    def thinned(self, share: float) -> Repeats:
        """The same rows as a random part of a table, in which equal rows are rarer."""
        return replace(self, share=share * self.share)

    def noise(self, single: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Noise variances of the means, from those of single rows."""
        return single / self.counts

    def squares(self, noise: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """`within` in units of the noise variances of single rows; 0 for rows without noise."""
        noisy = noise > 0
        return torch.where(noisy, self.within / torch.where(noisy, noise, 1.0), 0.0)

    def log_density(self, noise: Float[Tensor, " n"], t: int) -> Float[Tensor, " n"]:
        """The weighted logarithm of that factor for t targets, and noise variances of single rows.

        Rows without noise have none, as their factor is zero or infinite.
        """
        noisy = noise > 0
        v, k = torch.where(noisy, noise, 1.0), self.counts
        density = t * ((k - 1) * (2 * math.pi * v).log() + k.log()) + self.within / v
        return torch.where(noisy, -0.5 * self.share * density, 0.0)
