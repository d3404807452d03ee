"""Weights that make a sum cut short unbiased, for any stream of increments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ._distributions import Truncation


def roulette_weights(
    truncation: Truncation, draws: Int[Tensor, " k"]
) -> Float64[Tensor, "k terms"]:
    """Russian roulette: term j has weight 1 / P(J >= j) up to J, then 0.

    Terms up to the support's beginning have weight exactly 1, so that nothing but the tail of the
    sum is random. E[sum_j w_j d_j] = sum_j d_j for any terms that do not depend on J.

    Parameters
    ----------
    truncation : Truncation
    draws : Tensor of shape (k,)
        One J for each estimate.

    Returns
    -------
    weights : Tensor of shape (k, max(draws))
    """
    j = torch.arange(1, int(draws.max()) + 1)
    weights = 1 / truncation.survival(j)
    return torch.where(j <= draws[:, None], weights, 0.0)


class RouletteSum:
    """Weighted sums of terms that arrive one by one; any terms, any number of estimates at once.

    Parameters
    ----------
    weights : Tensor of shape (k, terms)
        For example of `roulette_weights`. Term j is multiplied by ``weights[:, j]`` along its last
        axis, so k is 1, the length of that axis, or, for terms whose last axis is 1, the number of
        independent estimates.
    """

    def __init__(self, weights: Float[Tensor, "k terms"]):
        self.weights = weights
        self.value: Tensor | None = None
        self._used = 0
        self._last = int(torch.nonzero(weights.any(0)).max()) + 1 if weights.any() else 0

    @property
    def finished(self) -> bool:
        """Whether all further weights are 0."""
        return self._used >= self._last

    def add(self, term: Float[Tensor, " *shape"]) -> None:
        """The next term of the sum."""
        if self.finished:
            return
        weight = self.weights[:, self._used].to(term)
        self._used += 1
        if self.value is None:
            self.value = term * weight
        else:
            self.value.addcmul_(term, weight)


def single_sample(
    base: Tensor, increment: Callable[[int], Tensor], truncation: Truncation, draw: int
) -> Tensor:
    """base + d_J / P(J = J): one importance-weighted term in the place of the whole sum.

    Parameters
    ----------
    base : Tensor
        What the sum begins with: everything below the support.
    increment : callable
        ``increment(j)`` is d_j.
    truncation : Truncation
        Its support has every term whose sum is estimated.
    draw : int
        J.
    """
    return base + increment(draw) / float(truncation.pmf(draw))
