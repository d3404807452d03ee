"""Randomised truncation: sums cut short at random without a bias.

A sum of n terms is cut after a random number J of them, and what is kept is given weights that
restore the expectation (Potapczynski et al. 2021, section 2.3). A distribution of J is settings
(``get_params``); ``on(n)`` binds it to a series of n terms.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any

import torch
from jaxtyping import Float, Float64, Int
from sklearn.base import BaseEstimator
from torch import Tensor

from .operators import LinearOperator
from .preconditioners import IdentityPreconditioner, Preconditioner
from .solvers import CG, CGState

__all__ = [
    "ExponentialTruncation",
    "FixedTruncation",
    "GeometricTruncation",
    "ReciprocalTruncation",
    "RouletteSum",
    "Truncation",
    "TruncationDistribution",
    "WeightedColumns",
    "WeightedSolve",
    "cg_stream",
    "roulette_cg",
    "roulette_weights",
    "single_sample",
]

# "auto" computes so many terms with weight 1: their increments are the largest.
AUTO_MIN_ITER = 20


# ---------------------------------------------------------------- distributions


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

    @property
    def variance(self) -> float:
        """E[(J - E[J])^2]."""
        return float(((self._values() - self.mean).square() * self.probabilities).sum())

    def sample(self, size: int, generator: torch.Generator) -> Int[Tensor, " size"]:
        """Independent draws by inversion, on the CPU."""
        u = torch.rand(size, generator=generator, dtype=torch.float64, device=generator.device)
        cdf = self.probabilities.cumsum(0)
        return self.low + torch.searchsorted(cdf, u.cpu() * cdf[-1]).clamp_max(self.high - self.low)

    def _values(self) -> Float64[Tensor, " k"]:
        return torch.arange(self.low, self.high + 1, dtype=torch.float64)


class TruncationDistribution(BaseEstimator, ABC):
    """Settings of a distribution of truncation points."""

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
        self.rate = rate
        self.min_iter = min_iter
        self.expected_iter = expected_iter
        self.max_iter = max_iter

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
        return self._with_mean(float(self.expected_iter), start, high, rate)

    def _decay(self) -> float:
        return _positive(self.rate, "rate", 0.05)

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
        self.probability = probability
        self.min_iter = min_iter
        self.expected_iter = expected_iter
        self.max_iter = max_iter

    def _decay(self) -> float:
        p = _positive(self.probability, "probability", 0.05)
        if p >= 1:
            raise ValueError(f"probability must be below 1, for example 0.05; got {p!r}.")
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
        self.min_iter = min_iter
        self.max_iter = max_iter

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
        j = min(_integer(self.n_iter, "n_iter", 1, 20), n)
        one = torch.ones(1, dtype=torch.float64)
        return Truncation(j, j, one, one)


def _exponential(low: int, high: int, rate: float) -> Truncation:
    """Tails q^k (1 - q^(K - k)) / (1 - q^K), q = exp(-rate), each factor without cancellation."""
    k = torch.arange(high - low + 1, dtype=torch.float64)
    size = high - low + 1
    whole = math.expm1(-rate * size)
    tails = torch.exp(-rate * k) * torch.expm1(-rate * (size - k)) / whole
    return Truncation(low, high, torch.exp(-rate * k) * (math.expm1(-rate) / whole), tails)


def _positive(value: Any, name: str, example: float) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < math.inf:
        raise ValueError(
            f"{name} must be a positive number, for example {example}; got {value!r}. At 0 every "
            "number of terms is as likely and nothing is saved."
        )
    return float(value)


def _integer(value: Any, name: str, least: int, example: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(
            f"{name} must be an integer of at least {least}, for example {example}; got {value!r}."
        )
    return int(value)


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
    return min(_integer(max_iter, "max_iter", start, n), n)


def _lowest(min_iter: Any, auto: int, high: int) -> int:
    if _is_auto(min_iter):
        return min(auto, high)
    low = _integer(min_iter, "min_iter", 1, min(AUTO_MIN_ITER, high))
    if low > high:
        raise ValueError(
            f"min_iter={min_iter!r} exceeds the {high} terms there are (rows, or max_iter): use at "
            f"most min_iter={high}, or min_iter='auto'."
        )
    return low


# ---------------------------------------------------------------- estimators of a sum


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


# ---------------------------------------------------------------- conjugate gradients as a series


def cg_stream(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    n_steps: int,
    *,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> Iterator[CGState]:
    """The states of one CG run from zero: term j of H^-1 B is ``gamma * direction`` of state j.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides.
    n_steps : int
        Most terms. The stream ends early when every column is solved to machine precision.
    preconditioner : Preconditioner, optional
    reorthogonalize : bool, default=False
        Keep all residuals orthogonal: O(n s) memory and O(n s j) operations more in step j.

    Yields
    ------
    CGState
        One and the same object, changed in place.
    """
    chosen = preconditioner or IdentityPreconditioner(len(B), B.dtype, B.device)
    if reorthogonalize:
        chosen = _Reorthogonalizer(chosen)
    # A refreshed residual would make the later terms those of another series.
    solver = CG(residual_refresh=None)
    state = solver.init(operator, B, None, chosen)
    while state.iteration < n_steps and bool((state.columns == 0).any()):
        state = solver.step(operator, state)
        yield state


class _Reorthogonalizer(Preconditioner):
    """P^-1 R after R was made orthogonal, in place, to all residuals before it.

    CG applies its preconditioner exactly once a step, to the new residual.
    """

    def __init__(self, inner: Preconditioner):
        self.inner, self.rank = inner, inner.rank
        self.basis: list[tuple[Tensor, Tensor]] = []

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        for _ in range(2):
            for Q, dual in self.basis:
                s = R.shape[1]
                R.addcmul_(Q[:, :s], (dual[:, :s] * R).sum(0), value=-1)
        Z = self.inner.solve(R)
        norms = (R * Z).sum(0).clamp_min(0).sqrt()
        scale = torch.where(norms > 0, 1 / norms, 0.0)
        self.basis.append((R * scale, Z * scale))
        return Z

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return self.inner.matmul(V)

    def log_det(self) -> float:
        return self.inner.log_det()

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        return self.inner.sample(s, generator)


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """Which right-hand sides get which weights; the same columns may appear more than once.

    Attributes
    ----------
    columns : slice
        Of B.
    weights : Tensor of shape (k, terms)
        As in `RouletteSum`.
    """

    columns: slice
    weights: Float64[Tensor, "k terms"]


@dataclass(frozen=True, eq=False)
class WeightedSolve:
    """What `roulette_cg` returns.

    Attributes
    ----------
    values : tuple of Tensor of shape (n, columns)
        One estimate of H^-1 B[:, columns] for each group.
    residuals : Tensor of shape (s,)
        Relative residuals of the unweighted iterates where each column was left, float64.
    n_iter : int
        Steps of the run.
    orthogonality_loss : float
        Largest inner product of a residual with the first one (in P^-1), relative to the first's
        square: 0 in exact arithmetic. Where it is not small, the terms are no longer those of the
        series while the residual still matters, and unbiasedness is lost.
    broken : bool
        Whether a column met a non-positive curvature.
    """

    values: tuple[Tensor, ...]
    residuals: Float64[Tensor, " s"]
    n_iter: int
    orthogonality_loss: float
    broken: bool


def roulette_cg(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    groups: list[WeightedColumns],
    *,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> WeightedSolve:
    """One CG run whose increments are summed with the weights of every group as they arrive.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides; those that need the fewest steps are best put last, since finished ones
        at the end leave the run.
    groups : list of WeightedColumns
    preconditioner, reorthogonalize
        As in `cg_stream`.

    Notes
    -----
    max(J) epochs; beside CG's blocks one block for each group, and one for the current increment.
    Potapczynski et al. (2021), equation 16.
    """
    sums = [RouletteSum(group.weights.to(B.device)) for group in groups]
    n_steps = max(group.weights.shape[1] for group in groups)
    residuals = torch.ones(B.shape[1], dtype=torch.float64, device=B.device)
    loss, broken, iteration = 0.0, False, 0
    stream = cg_stream(
        operator, B, n_steps, preconditioner=preconditioner, reorthogonalize=reorthogonalize
    )
    first = None
    for state in stream:
        iteration = state.iteration
        width = state.x.shape[1]
        if first is None:
            dual = preconditioner.solve(B) if preconditioner is not None else B
            first = (B * dual).sum(0, dtype=torch.float64)
        term = state.direction * state.gamma.to(B.dtype)
        for group, total in zip(groups, sums, strict=True):
            if not total.finished:
                total.add(term[:, group.columns])
        residuals[:width] = state.residual_norms
        loss = max(loss, _loss(state, first[:width]))
        broken = broken or bool((state.columns == 3).any())
        left = [g.columns.stop for g, total in zip(groups, sums, strict=True) if not total.finished]
        if not left:
            break
        if max(left) < width:
            _shrink(state, max(left))
    values = tuple(
        torch.zeros_like(B[:, group.columns]) if total.value is None else total.value
        for group, total in zip(groups, sums, strict=True)
    )
    return WeightedSolve(values, residuals, iteration, loss, broken)


def _loss(state: CGState, first: Float64[Tensor, " s"]) -> float:
    """Largest |r_0' P^-1 r_j| / |r_0|^2, which is 0 in exact arithmetic."""
    product = (state.B * state.Z).sum(0, dtype=torch.float64)
    return float((product.abs() / first.clamp_min(1e-300)).max())


def _shrink(state: CGState, width: int) -> None:
    """Let the columns from `width` on leave the run."""
    for name in (f.name for f in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., :width].contiguous())
