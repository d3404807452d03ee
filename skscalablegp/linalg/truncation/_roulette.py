"""Weights that make a truncated sum unbiased, for any series of increments."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from ._distributions import Truncation


def roulette_weights(
    truncation: Truncation, draws: Int[Tensor, " k"]
) -> Float64[Tensor, "k terms"]:
    """Weights of Russian roulette: 1 / P(J >= j) for the terms j up to J, and 0 for later ones.

    Terms before the support of J have weight exactly 1, so that only the tail of the sum is random.
    E[sum_j w_j d_j] = sum_j d_j for any terms d_j that do not depend on J.

    Parameters
    ----------
    truncation : Truncation
        The distribution of J.
    draws : Tensor of shape (k,)
        A draw of J for each estimate.

    Returns
    -------
    weights : Tensor of shape (k, max(draws))
    """
    j = torch.arange(1, int(draws.max()) + 1)
    weights = 1 / truncation.survival(j)
    return torch.where(j <= draws[:, None], weights, 0.0)


class RouletteSum:
    """Weighted sums of terms that arrive one by one, for several estimates at once.

    Parameters
    ----------
    weights : Tensor of shape (k, terms)
        For example from `roulette_weights`. Term j is multiplied by ``weights[:, j]`` along its
        last axis. So k is 1, or the length of that axis, or the number of independent estimates if
        the last axis of the terms has length 1.
    """

    def __init__(self, weights: Float[Tensor, "k terms"]):
        self.weights = weights
        self.value: Tensor | None = None
        self._used = 0
        self._last = int(torch.nonzero(weights.any(0)).max()) + 1 if weights.any() else 0

    @property
    def finished(self) -> bool:
        """Whether all remaining weights are 0."""
        return self._used >= self._last

    def add(self, term: Float[Tensor, " *shape"]) -> None:
        """Add the next term."""
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
    """base + d_j / P(J = j) for a draw j, an estimate of a sum from a single term.

    Parameters
    ----------
    base : Tensor
        The sum of all terms before the support of J.
    increment : callable
        ``increment(j)`` returns the term d_j.
    truncation : Truncation
        The distribution of J. Its support contains every term that is not part of `base`.
    draw : int
        The draw j.
    """
    return base + increment(draw) / float(truncation.pmf(draw))
