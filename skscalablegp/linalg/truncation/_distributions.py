"""Distributions of the number of terms after which a series is truncated."""

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

from ..._named import keep_settings, named
from ..._validation import check_integer, check_number

# With min_iter="auto" this many terms always get weight 1, because early terms are the largest.
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
        P(J >= low), ..., P(J >= high), from a formula, since 1 - cdf would lose digits.
    """

    low: int
    high: int
    probabilities: Float64[Tensor, " k"]
    tails: Float64[Tensor, " k"]

    def pmf(self, j: Int[Tensor, " *shape"] | int) -> Float64[Tensor, " *shape"]:
        """P(J = j), which is 0 outside the support."""
        j = torch.as_tensor(j)
        inside = (j >= self.low) & (j <= self.high)
        value = self.probabilities[(j - self.low).clamp(0, self.high - self.low)]
        return torch.where(inside, value, 0.0)

    def survival(self, j: Int[Tensor, " *shape"] | int) -> Float64[Tensor, " *shape"]:
        """P(J >= j), which is 1 up to ``low`` and 0 beyond ``high``."""
        j = torch.as_tensor(j)
        value = self.tails[(j - self.low).clamp(0, self.high - self.low)]
        return torch.where(j > self.high, 0.0, value)

    @property
    def mean(self) -> float:
        """E[J], the expected number of steps."""
        return float((self._values() * self.probabilities).sum())

    def sample(
        self, size: int, generator: torch.Generator, stratified: bool = False
    ) -> Int[Tensor, " size"]:
        """Draws by inversion, on the CPU.

        Parameters
        ----------
        size : int
            Number of draws.
        generator : torch.Generator
        stratified : bool, default=False
            Whether to take one draw from each of `size` equally probable parts of the distribution,
            rather than independent draws.
        """
        u = torch.rand(size, generator=generator, dtype=torch.float64, device=generator.device)
        if stratified:
            u = (torch.arange(size, device=u.device) + u) / size
        cdf = self.probabilities.cumsum(0)
        return self.low + torch.searchsorted(cdf, u.cpu() * cdf[-1]).clamp_max(self.high - self.low)

    def _values(self) -> Float64[Tensor, " k"]:
        return torch.arange(self.low, self.high + 1, dtype=torch.float64)


class TruncationDistribution(BaseEstimator, ABC):
    """Settings of a distribution of the truncation point J.

    A subclass defines `on`, which returns a `Truncation`.
    """

    @property
    def adapts(self) -> bool:
        """Whether the settings leave the smallest J open, so that training may raise it.

        By default they do if they have ``min_iter="auto"`` and no `expected_iter`. `on` then takes
        the smallest J in question as `start`; otherwise `start` is 1.
        """
        params = self.get_params(deep=False)
        return params.get("min_iter") == "auto" and params.get("expected_iter") is None

    @abstractmethod
    def on(self, n: int, start: int = 1) -> Truncation:
        """The distribution for a series of n terms.

        Parameters
        ----------
        n : int
            Number of terms, which is the largest possible J.
        start : int, default=1
            Lower limit of the smallest J that "auto" chooses.

        Raises
        ------
        ValueError
            For settings that do not fit n. The message names the parameter and a value that works.
        """


class ExponentialTruncation(TruncationDistribution):
    """P(J) proportional to exp(-rate J) on ``min_iter..n`` (Potapczynski et al. 2021, eq. 17).

    Parameters
    ----------
    rate : float, default=0.05
        The mean and the standard deviation of J - min_iter are about 1 / rate.
    min_iter : int or "auto", default="auto"
        Number of terms that are always computed and have weight 1. "auto" chooses it to meet
        `expected_iter`. If that is None, it is 20, or the number of terms if there are fewer.
    expected_iter : float or None, default=None
        The desired E[J], which the choice of `min_iter` meets to within one.
    max_iter : int or None, default=None
        Largest J; None means the number of terms. If it is smaller than the number of terms, later
        terms are never computed, which leaves a bias.
    """

    def __init__(
        self,
        rate=0.05,
        *,
        min_iter="auto",
        expected_iter=None,
        max_iter=None,
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
        """Find the smallest J by bisection, since E[J] grows with it."""
        least = _exponential(start, high, rate).mean
        if mean > high or mean < start:
            raise ValueError(
                f"expected_iter={self.expected_iter!r} must lie between {start} and the number of "
                f"terms, {high}: for example expected_iter={(start + high) // 2}."
            )
        if mean < least - 1:
            raise ValueError(
                f"expected_iter={self.expected_iter!r} is below {least:.3g}, the smallest E[J] at "
                f"this rate: use {self._steeper(mean - start)}, or "
                f"expected_iter={math.ceil(least)}."
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
    """P(J) proportional to (1 - probability)^J on ``min_iter..n``.

    This is the family of `ExponentialTruncation` with rate = -log(1 - probability).

    Parameters
    ----------
    probability : float, default=0.05
        Probability of stopping after each further term, between 0 and 1.
    min_iter, expected_iter, max_iter
        As in `ExponentialTruncation`.
    """

    def __init__(
        self,
        probability=0.05,
        *,
        min_iter="auto",
        expected_iter=None,
        max_iter=None,
    ):
        keep_settings(self, locals())

    def _decay(self) -> float:
        p = check_number("probability", self.probability, positive=True, below=1, example=0.05)
        return -math.log1p(-p)

    def _steeper(self, excess: float) -> str:
        return f"probability={1 / (1 + max(excess, 1e-3)) * 1.01:.2g}"


class ReciprocalTruncation(TruncationDistribution):
    """P(J) proportional to 1 / J on ``min_iter..n``, for series that converge slowly.

    Parameters
    ----------
    min_iter : int or "auto", default="auto"
        Smallest J; "auto" starts with the first term.
    max_iter : int or None, default=None
        Largest J; None means the number of terms. On an infinite support E[J] would be infinite.
    """

    def __init__(self, *, min_iter="auto", max_iter=None):
        keep_settings(self, locals())

    def on(self, n: int, start: int = 1) -> Truncation:
        high = _highest(self.max_iter, n, start)
        low = _lowest(self.min_iter, start, high)
        weights = 1 / torch.arange(low, high + 1, dtype=torch.float64)
        # Sums of positive numbers, the smallest first, so that no digits are lost.
        tails = weights.flip(0).cumsum(0).flip(0)
        return Truncation(low, high, weights / tails[0], tails / tails[0])


class FixedTruncation(TruncationDistribution):
    """A constant J, which gives the biased sum of plain early stopping.

    Parameters
    ----------
    n_iter : int, default=20
        Number of terms that are summed; all of them if there are fewer.
    """

    def __init__(self, n_iter=20):
        self.n_iter = n_iter

    def on(self, n: int, start: int = 1) -> Truncation:
        j = min(check_integer("n_iter", self.n_iter, example=20), n)
        one = torch.ones(1, dtype=torch.float64)
        return Truncation(j, j, one, one)


def _exponential(low: int, high: int, rate: float) -> Truncation:
    """Tails q^k (1 - q^(K - k)) / (1 - q^K) with q = exp(-rate), computed without cancellation."""
    k = torch.arange(high - low + 1, dtype=torch.float64)
    size = high - low + 1
    whole = math.expm1(-rate * size)
    tails = torch.exp(-rate * k) * torch.expm1(-rate * (size - k)) / whole
    return Truncation(low, high, torch.exp(-rate * k) * (math.expm1(-rate) / whole), tails)


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == "auto"


def _highest(max_iter: Any, n: int, start: int) -> int:
    if n < start:
        raise ValueError(f"A series of {n} terms cannot be truncated at term {start} or later.")
    if max_iter is None:
        return n
    if isinstance(max_iter, Real) and math.isinf(max_iter):
        raise ValueError(
            f"max_iter={max_iter!r} makes the expected cost infinite: use None, which means the "
            f"number of terms ({n} here)."
        )
    return min(check_integer("max_iter", max_iter, start, example=n), n)


def _lowest(min_iter: Any, auto: int, high: int) -> int:
    if _is_auto(min_iter):
        return min(auto, high)
    low = check_integer("min_iter", min_iter, example=min(AUTO_MIN_ITER, high), other=("auto",))
    if low > high:
        raise ValueError(
            f"min_iter={min_iter!r} exceeds the number of terms, which is {high} (the number of "
            f"rows, or max_iter): use at most min_iter={high}, or min_iter='auto'."
        )
    return low


# The names of the distributions.
TRUNCATIONS = {
    "exponential": ExponentialTruncation,
    "geometric": GeometricTruncation,
    "reciprocal": ReciprocalTruncation,
    "fixed": FixedTruncation,
}


def resolve_truncation(truncation: Any, more: tuple[str, ...] = ()) -> TruncationDistribution:
    """Return the distribution that a name stands for; objects are returned unchanged.

    Parameters
    ----------
    truncation : str or TruncationDistribution
    more : tuple of str
        Further names for the message, which the caller resolves.

    Raises
    ------
    ValueError
        For an unknown name, or an object of another class; the message lists the known ones.
    """
    others = (
        "or an object such as ExponentialTruncation(rate=0.1); a distribution of your own is a "
        "subclass of skscalablegp.truncation.TruncationDistribution"
    )
    kinds = TruncationDistribution
    return named("truncation", truncation, TRUNCATIONS, others, kinds=kinds, more=more)
