"""Distributions of the number of terms that a series is cut after."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from typing import Any

import torch
from jaxtyping import Float64, Int
from sklearn.base import BaseEstimator
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer, check_number

# "auto" computes so many terms with weight 1: their increments are the largest.
AUTO_MIN_ITER = 20


@dataclass(frozen=True, eq=False)
class Truncation:
    """A distribution of J on the integers ``low..high``.

    Attributes
    ----------
    low, high : int
        Smallest and largest J.
    probabilities : Tensor of shape (high - low + 1,)
        P(J = low), ..., P(J = high), float64.
    tails : Tensor of shape (high - low + 1,)
        P(J >= low), ..., P(J >= high), from a formula rather than as 1 - cdf, which cancels.
    """

    low: int
    high: int
    probabilities: Float64[Tensor, " k"]
    tails: Float64[Tensor, " k"]

    def pmf(self, j: Int[Tensor, " *shape"] | int) -> Float64[Tensor, " *shape"]:
        """P(J = j), 0 outside the support."""
        j = torch.as_tensor(j)
        inside = (j >= self.low) & (j <= self.high)
        value = self.probabilities[(j - self.low).clamp(0, self.high - self.low)]
        return torch.where(inside, value, 0.0)

    def survival(self, j: Int[Tensor, " *shape"] | int) -> Float64[Tensor, " *shape"]:
        """P(J >= j): 1 up to ``low``, 0 beyond ``high``."""
        j = torch.as_tensor(j)
        value = self.tails[(j - self.low).clamp(0, self.high - self.low)]
        return torch.where(j > self.high, 0.0, value)

    @property
    def mean(self) -> float:
        """E[J], which is the expected cost."""
        return float((self._values() * self.probabilities).sum())

    def sample(
        self, size: int, generator: torch.Generator, stratified: bool = False
    ) -> Int[Tensor, " size"]:
        """Draws by inversion: independent, or one from each of equal parts; on the CPU."""
        u = torch.rand(size, generator=generator, dtype=torch.float64, device=generator.device)
        if stratified:
            u = (torch.arange(size, device=u.device) + u) / size
        cdf = self.probabilities.cumsum(0)
        return self.low + torch.searchsorted(cdf, u.cpu() * cdf[-1]).clamp_max(self.high - self.low)

    def _values(self) -> Float64[Tensor, " k"]:
        return torch.arange(self.low, self.high + 1, dtype=torch.float64)


class TruncationDistribution(BaseEstimator, ABC):
    """Settings of a distribution of truncation points."""

    @property
    def adapts(self) -> bool:
        """Whether the first term that may be the last is left open."""
        params = self.get_params(deep=False)
        return params.get("min_iter") == "auto" and params.get("expected_iter") is None

    @abstractmethod
    def on(self, n: int, start: int = 1) -> Truncation:
        """The distribution for a series of n terms.

        Parameters
        ----------
        n : int
            Number of terms; the support ends there at the latest, which keeps costs finite.
        start : int, default=1
            Where "auto" lets the support begin at the earliest.

        Raises
        ------
        ValueError
            For settings that do not fit n; names the parameter and a value that works.
        """


class ExponentialTruncation(TruncationDistribution):
    """P(J) proportional to exp(-rate J) on ``min_iter..n`` (Potapczynski et al. 2021, eq. 17).

    Parameters
    ----------
    rate : float, default=0.05
        Mean and standard deviation of J - min_iter are about 1 / rate.
    min_iter : int or "auto", default="auto"
        Terms that are always computed, with weight exactly 1. "auto" is what `expected_iter` asks
        for, else 20 or as many as there are.
    expected_iter : float or None, default=None
        E[J], met through `min_iter` as well as an integer can, to within one.
    max_iter : int or None, default=None
        Largest J; None is the number of terms. Below it terms are never reached and a bias is left.
    """

    def __init__(
        self,
        rate: Any = 0.05,
        *,
        min_iter: Any = "auto",
        expected_iter: Any = None,
        max_iter: Any = None,
    ):
        keep_settings(self, locals())

    def on(self, n: int, start: int = 1) -> Truncation:
        rate = self._decay()
        high = _highest(self.max_iter, n, start)
        if self.expected_iter is None:
            return _exponential(_lowest(self.min_iter, max(start, AUTO_MIN_ITER), high), high, rate)
        if not _is_auto(self.min_iter):
            raise ValueError(
                "min_iter and expected_iter determine each other: leave min_iter='auto', or set "
                "expected_iter=None."
            )
        example = (start + high) // 2
        mean = check_number("expected_iter", self.expected_iter, example=example, other=(None,))
        return self._with_mean(float(mean), start, high, rate)

    def _decay(self) -> float:
        return float(check_number("rate", self.rate, positive=True, example=0.05))

    def _with_mean(self, mean: float, start: int, high: int, rate: float) -> Truncation:
        """The support's beginning by bisection: E[J] grows with it."""
        least = _exponential(start, high, rate).mean
        if mean > high or mean < start:
            raise ValueError(
                f"expected_iter={self.expected_iter!r} must lie between {start} and {high}, the "
                f"terms there are: for example expected_iter={(start + high) // 2}."
            )
        if mean < least - 1:
            raise ValueError(
                f"expected_iter={self.expected_iter!r} is less than E[J]={least:.3g} of the whole "
                f"support: use {self._steeper(mean - start)}, or expected_iter={math.ceil(least)}."
            )
        below, above = start, high
        while above - below > 1:
            middle = (below + above) // 2
            if _exponential(middle, high, rate).mean <= mean:
                below = middle
            else:
                above = middle
        choices = [_exponential(low, high, rate) for low in (below, above)]
        return min(choices, key=lambda choice: abs(choice.mean - mean))

    def _steeper(self, excess: float) -> str:
        return f"rate={math.log1p(1 / max(excess, 1e-3)) * 1.01:.2g}"


class GeometricTruncation(ExponentialTruncation):
    """P(J) proportional to (1 - probability)^J on ``min_iter..n``: stop with that probability.

    The same family as `ExponentialTruncation`, with rate = -log(1 - probability).

    Parameters
    ----------
    probability : float, default=0.05
        Of stopping after each further term, between 0 and 1.
    min_iter, expected_iter, max_iter
        As in `ExponentialTruncation`.
    """

    def __init__(
        self,
        probability: Any = 0.05,
        *,
        min_iter: Any = "auto",
        expected_iter: Any = None,
        max_iter: Any = None,
    ):
        keep_settings(self, locals())

    def _decay(self) -> float:
        p = check_number("probability", self.probability, positive=True, below=1, example=0.05)
        return -math.log1p(-p)

    def _steeper(self, excess: float) -> str:
        return f"probability={1 / (1 + max(excess, 1e-3)) * 1.01:.2g}"


class ReciprocalTruncation(TruncationDistribution):
    """P(J) proportional to 1 / J on ``min_iter..n``: for series that converge slowly.

    Parameters
    ----------
    min_iter : int or "auto", default="auto"
        Smallest J; "auto" is the first term.
    max_iter : int or None, default=None
        Largest J; None is the number of terms. Without an end the expected cost is infinite.
    """

    def __init__(self, *, min_iter: Any = "auto", max_iter: Any = None):
        keep_settings(self, locals())

    def on(self, n: int, start: int = 1) -> Truncation:
        high = _highest(self.max_iter, n, start)
        low = _lowest(self.min_iter, start, high)
        weights = 1 / torch.arange(low, high + 1, dtype=torch.float64)
        # Summed from the small end: sums of positive numbers, nothing cancels.
        tails = weights.flip(0).cumsum(0).flip(0)
        return Truncation(low, high, weights / tails[0], tails / tails[0])


class FixedTruncation(TruncationDistribution):
    """J is always the same: plain early stopping, with its bias.

    Parameters
    ----------
    n_iter : int, default=20
        Terms that are summed, or all where there are fewer.
    """

    def __init__(self, n_iter: Any = 20):
        self.n_iter = n_iter

    def on(self, n: int, start: int = 1) -> Truncation:
        j = min(check_integer("n_iter", self.n_iter, example=20), n)
        one = torch.ones(1, dtype=torch.float64)
        return Truncation(j, j, one, one)


def _exponential(low: int, high: int, rate: float) -> Truncation:
    """Tails q^k (1 - q^(K - k)) / (1 - q^K), q = exp(-rate), each factor without cancellation."""
    k = torch.arange(high - low + 1, dtype=torch.float64)
    size = high - low + 1
    whole = math.expm1(-rate * size)
    tails = torch.exp(-rate * k) * torch.expm1(-rate * (size - k)) / whole
    return Truncation(low, high, torch.exp(-rate * k) * (math.expm1(-rate) / whole), tails)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _highest(max_iter: Any, n: int, start: int) -> int:
    if n < start:
        raise ValueError(f"A series of {n} terms has none from {start} on to draw from.")
    if max_iter is None:
        return n
    if isinstance(max_iter, Real) and math.isinf(max_iter):
        raise ValueError(
            f"max_iter={max_iter!r} makes the expected cost infinite: use None, which is the "
            f"number of terms ({n} here)."
        )
    return min(check_integer("max_iter", max_iter, start, example=n), n)


def _lowest(min_iter: Any, auto: int, high: int) -> int:
    if _is_auto(min_iter):
        return min(auto, high)
    low = check_integer("min_iter", min_iter, example=min(AUTO_MIN_ITER, high), other=("auto",))
    if low > high:
        raise ValueError(
            f"min_iter={min_iter!r} exceeds the {high} terms there are (rows, or max_iter): use at "
            f"most min_iter={high}, or min_iter='auto'."
        )
    return low
