"""Samples, each with what is known of it; equal ones may have become one with a weight."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..operators import noise_of_means


@dataclass(frozen=True, eq=False)
class Rows:
    r"""Samples with targets, noise and weights, on one device and in one precision.

    A sample of weight k stands for k equal ones, whose targets have the mean Y. With noise variance
    v, the targets y_1..y_k depend on f through their mean alone, which has the noise variance
    v / k. The other factor of their density is
    (2 pi v)^(-(k - 1) / 2) k^(-1/2) exp(-sum_i (y_i - mean)^2 / (2 v)). Weights need not be whole
    numbers; the sum of squares is then weighted, too.

    Attributes
    ----------
    X : Tensor of shape (n, d)
    Y : Tensor of shape (n, t)
    noise : Tensor of shape (n,)
        Known noise variances of single samples, in the units of Y squared.
    weight : Tensor of shape (n,)
        k of each sample, positive.
    scatter : Tensor of shape (n,)
        The sum of squares of each sample, summed over targets.
    """

    X: Float[Tensor, "n d"]
    Y: Float[Tensor, "n t"]
    noise: Float[Tensor, " n"]
    weight: Float[Tensor, " n"]
    scatter: Float[Tensor, " n"]

    @classmethod
    def of(
        cls,
        X: Float[Tensor, "n d"],
        Y: Float[Tensor, "n t"],
        noise: Tensor | np.ndarray | float = 0.0,
        weight: Tensor | np.ndarray | float = 1.0,
        scatter: Tensor | np.ndarray | float = 0.0,
    ) -> Rows:
        """Samples in the precision of Y; a number stands for all, which takes no memory."""

        def filled(value: Any) -> Tensor:
            return torch.as_tensor(value, dtype=Y.dtype, device=Y.device).expand(len(Y))

        return cls(X, Y, filled(noise), filled(weight), filled(scatter))

    def __len__(self) -> int:
        return len(self.Y)

    def take(self, index: Tensor | slice) -> Rows:
        """Some of the samples."""
        return self._each(lambda part: _taken(part, index))

    def to(self, dtype: torch.dtype, device: torch.device | None = None) -> Rows:
        """The same in another precision, or on another device."""
        return self._each(lambda part: part.to(device or part.device, dtype, non_blocking=True))

    def blocks(self, size: int) -> Iterator[Rows]:
        """All samples in order, `size` at a time; of no samples one block, which is empty."""
        for start in range(0, max(len(self), 1), size):
            yield self.take(slice(start, start + size))

    @property
    def n_rows(self) -> float:
        """The number of samples before equal ones were merged: the sum of their weights."""
        return float(self.weight.sum(dtype=torch.float64))

    @cached_property
    def merged(self) -> bool:
        """Whether a sample stands for others, too."""
        return bool((self.weight != 1).any() or (self.scatter != 0).any())

    def noise_of_means(self, single: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Noise variances of Y, from those of single samples."""
        return noise_of_means(single, self.weight)

    def squares_of(self, Y: Float[Tensor, "n t"], centred: bool = False) -> Float[Tensor, ""]:
        """The sum of the squared targets of all samples before merging, whose means are Y.

        Those that are `centred` are measured from their mean over all samples.
        """
        if centred:
            Y = Y - (self.weight[:, None] * Y).sum(0) / self.weight.sum()
        return (self.weight[:, None] * Y.square()).sum() + self.scatter.sum()

    def log_density(self, single: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
        """The logarithm of the other factor, from the noise variances of single samples.

        Samples without noise have none, as their factor is zero or infinite.
        """
        noisy = single > 0
        v, k = torch.where(noisy, single, 1.0), self.weight
        of_noise = (k - 1) * (2 * math.pi * v).log() + k.log()
        density = self.Y.shape[1] * of_noise + self.scatter / v
        return torch.where(noisy, -0.5 * density, 0.0)

    def _each(self, change: Any) -> Rows:
        return Rows(*(change(getattr(self, name)) for name in self.__dataclass_fields__))


def _taken(part: Tensor, index: Tensor | slice) -> Tensor:
    # Random batches are small, and of several ways to read them this one takes the least time.
    if isinstance(index, slice) or index.dtype != torch.int64 or type(part) is not Tensor:
        return part[index]
    if part.stride(0) == 0:
        return part[:1].expand(len(index), *part.shape[1:])
    return part.index_select(0, index)
