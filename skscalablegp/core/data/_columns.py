"""Robust statistics of the columns of samples, which may be at several ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

import numpy as np

# Number of rows in one block of a pass over the data.
BLOCK_ROWS = 16_384
# Number of rows from which robust limits of the columns are taken, the share of them beyond each
# end of the usual range, and the width of the limits in units of that range.
_LIMIT_ROWS, _TAIL, WIDTH = 20_000, 0.01, 3.0
# The same width for entries that are moved, which changes more than a scale does.
MOVED = 10.0
# With fewer rows no entry counts as far.
_FEWEST_LIMITED = 20

# The lowest and the highest of something in each column.
Ends = tuple[np.ndarray, np.ndarray]


class Columns:
    """Samples whose columns are described, in this process or at ranks that each have some.

    Attributes
    ----------
    X : ndarray of shape (n, d)
        All rows. Of ranks, evenly spaced ones, or an array with a shape only; `sample` returns
        the rows themselves.
    weight : ndarray of shape (n,) or float
        How many equal rows each row stands for.
    noise : ndarray of shape (n,)
        Known noise variances.
    """

    noise: Any

    def __init__(self, X: np.ndarray, weight: np.ndarray | float = 1.0):
        self.X, self.weight = X, weight

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """The answers ``work(part, *args)`` for each part of the samples.

        Samples in one process are one part. If ranks have some each, every rank answers for its
        own, so that `work` is a function of a module.
        """
        return [work(self, *args)]

    def sample(self) -> Any:
        """The rows that stand for all in limits: all, or evenly spaced ones of ranks."""
        return self

    def limits(self, width: float = WIDTH) -> Ends:
        """Limits beyond which an entry of a column counts as far (`column_limits`)."""
        return column_limits(self.sample().X, width)

    def robust_moments(self) -> Ends:
        """Means and standard deviations of the columns, in which far entries count as limits."""
        return reduce(add, self.each(moments, self.limits())).scales()

    def ranges(self) -> Ends:
        """The lowest and the highest entry of each column that is not very far."""
        return joint_ends(self.each(_ranges, self.limits(MOVED)))

    def far_rows(self) -> np.ndarray:
        """Numbers of the rows with an entry beyond the limits of its column."""
        sizes, found = zip(*self.each(_far, self.limits()), strict=True)
        first = np.cumsum([0, *sizes[:-1]])
        return np.concatenate([rows + start for rows, start in zip(found, first, strict=True)])

    def noise_range(self) -> tuple[float, float]:
        """The smallest and the largest known noise variance of a row."""
        low, high = zip(*self.each(_noises), strict=True)
        return min(low), max(high)


def moments(part: Columns, limits: Ends) -> Moments:
    """Moments of the columns of one part; entries beyond the limits count as these."""
    return Moments.of(part.X, limits, counts=part.weight)


def _ranges(part: Columns, limits: Ends) -> Ends:
    """The lowest and the highest entry of each column that is within the limits."""
    ends = []
    for rows in _blocks(part.X):
        near = (rows >= limits[0]) & (rows <= limits[1])
        low = np.min(rows, axis=0, where=near, initial=np.inf)
        ends.append((low, np.max(rows, axis=0, where=near, initial=-np.inf)))
    return joint_ends(ends)


def _far(part: Columns, limits: Ends) -> tuple[int, np.ndarray]:
    """The number of rows, and those with an entry beyond the limits."""
    far = [((rows < limits[0]) | (rows > limits[1])).any(1) for rows in _blocks(part.X)]
    return len(part.X), np.flatnonzero(np.concatenate(far))


def _noises(part: Columns) -> tuple[float, float]:
    return float(np.min(part.noise, initial=np.inf)), float(np.max(part.noise, initial=0.0))


def _blocks(X: np.ndarray) -> Iterator[np.ndarray]:
    """All rows in float64, some at a time; of no rows one block, which is empty."""
    for start in range(0, max(len(X), 1), BLOCK_ROWS):
        yield np.asarray(X[start : start + BLOCK_ROWS], dtype=np.float64)


def joint_ends(parts: Iterable[Ends]) -> Ends:
    """The lowest and the highest of all parts."""
    low, high = zip(*parts, strict=True)
    return np.min(low, axis=0), np.max(high, axis=0)


def column_limits(X: np.ndarray, width: float = WIDTH) -> Ends:
    """Limits beyond which an entry of a column counts as far, infinite where there are none.

    They are `width` times as far from the median as the first and the last hundredth of the
    entries; three times are seven standard deviations of a normal column. A single entry of 1e6
    thus does not decide the scale of its column, and the entries of most columns all lie within the
    limits. A column without a range between its hundredths, such as a rare indicator, has none.
    """
    some = np.asarray(X[limit_rows(len(X))], dtype=np.float64)
    if len(some) < _FEWEST_LIMITED:
        return np.full(X.shape[1], -np.inf), np.full(X.shape[1], np.inf)
    ordered, tail = np.sort(some, axis=0), max(1, round(_TAIL * len(some)))
    middle, low, high = np.median(ordered, axis=0), ordered[tail], ordered[-1 - tail]
    wide = high > low
    below = np.where(wide, middle - width * np.maximum(middle - low, 0.1 * (high - low)), -np.inf)
    above = np.where(wide, middle + width * np.maximum(high - middle, 0.1 * (high - low)), np.inf)
    return below, above


def limit_rows(n: int) -> slice:
    """The rows of a table of n rows that decide `column_limits`; they decide their own limits."""
    return slice(0, n, max(1, n // _LIMIT_ROWS))


def standardised_limits(
    X: np.ndarray, mean: np.ndarray, scale: np.ndarray
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """`column_limits` in units of the columns, as networks take them."""
    low, high = ((end - mean) / scale for end in column_limits(X))
    return tuple(low.tolist()), tuple(high.tolist())


def limited(X: np.ndarray) -> np.ndarray:
    """The rows, with very far entries moved to the range of the others."""
    return np.clip(X, *Columns(X).ranges())


def column_spread(X: np.ndarray, counts: np.ndarray | float = 1.0) -> np.ndarray:
    """The robust standard deviation of the columns, 1 where a column is constant."""
    return Columns(X, counts).robust_moments()[1]


@dataclass(frozen=True)
class Moments:
    """The number of rows, the means of their columns and the sums of squares around these.

    Moments of parts of a table are added by Chan, Golub and LeVeque's update, so that large means
    do not cancel.
    """

    n: float
    mean: np.ndarray
    squares: np.ndarray

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        limits: tuple[np.ndarray, np.ndarray] | None = None,
        block: int = BLOCK_ROWS,
        counts: np.ndarray | float = 1.0,
    ) -> Moments:
        """Those of some rows, read a block at a time; entries beyond `limits` count as these."""
        merged, counts = bool(np.any(counts != 1)), np.broadcast_to(counts, len(X))
        found = cls(0, np.zeros(X.shape[1]), np.zeros(X.shape[1]))
        for start in range(0, len(X), block):
            # The last digits of sums depend on the memory layout, which would change training.
            part = np.ascontiguousarray(X[start : start + block], dtype=np.float64)
            part = part if limits is None else np.clip(part, *limits)
            # The sum of 1,000 equal numbers has rounding errors of more than ten of their last
            # digits, which would be the scale of a constant column.
            constant, n, k = (part == part[:1]).all(0), len(part), 1.0
            if merged:
                k = counts[start : start + block, None]
                n = float(k.sum())
            mean = np.where(constant, part[0], (k * part).sum(0) / n if merged else part.mean(0))
            found += cls(n, mean, (k * np.square(part - mean)).sum(0))
        return found

    def __add__(self, other: Moments) -> Moments:
        n, m = self.n, other.n
        delta = other.mean - self.mean
        squares = self.squares + (other.squares + np.square(delta) * (n * m / (n + m)))
        return Moments(n + m, self.mean + delta * (m / (n + m)), squares)

    def scales(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the columns, 1 where a column is constant."""
        std = np.sqrt(self.squares / self.n)
        # The rounding errors of a constant column are no scale.
        constant = std <= 10 * np.finfo(np.float64).eps * np.abs(self.mean)
        return self.mean, np.where(constant, 1.0, std)


def target_scales(moments: Moments | None, t: int, shared: bool = False) -> Ends:
    """Means and scales of t targets from their moments; 0 and 1 without moments.

    With `shared` all have the same scale, the root of their mean square, as noise known in the
    units of y requires.
    """
    if moments is None:
        return np.zeros(t), np.ones(t)
    mean, std = moments.scales()
    return mean, np.full_like(std, np.sqrt(np.mean(np.square(std)))) if shared else std
