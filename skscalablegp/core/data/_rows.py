"""Training rows that may be larger than memory: scaled and handed out a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...linalg.gradients import Rows
from ...workers import Workers
from ._merging import have_merged
from ._subsets import RandomOrder

# Number of rows in one block of a pass over the data.
BLOCK_ROWS = 16_384
# Number of rows from which robust limits of the columns are taken, the share of them beyond each
# end of the usual range, and the width of the limits in units of that range.
_LIMIT_ROWS, _TAIL, WIDTH = 20_000, 0.01, 3.0
# The same width for entries that are moved, which changes more than a scale does.
MOVED = 10.0
# With fewer rows no entry counts as far.
_FEWEST_LIMITED = 20
# Tables up to this size are held as tensors; larger ones are read batch by batch.
_RESIDENT_BYTES = 2**28
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Scaling:
    """Means and scales that convert a table to the units of a model.

    Attributes
    ----------
    x_mean, x_scale : ndarray of shape (d,)
        Column means and standard deviations, 1 for constant columns.
    y_mean, y_scale : ndarray of shape (t,)
        Means and scales of the targets; 0 and 1 if they are not normalised.
    """

    x_mean: np.ndarray
    x_scale: np.ndarray
    y_mean: np.ndarray
    y_scale: np.ndarray

    def inputs(
        self, X: np.ndarray, dtype: torch.dtype, device: torch.device
    ) -> Float[Tensor, "m d"]:
        """Standardised rows."""
        return torch.as_tensor(_scaled(X, self.x_mean, self.x_scale)).to(device, dtype)


def column_limits(X: np.ndarray, width: float = WIDTH) -> tuple[np.ndarray, np.ndarray]:
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


def column_ranges(X: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest entry of each column that is not very far (`column_limits`)."""
    return ranges_within(X, column_limits(X, MOVED))


def ranges_within(
    X: np.ndarray, limits: tuple[np.ndarray, np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest entry of each column that is within the limits."""
    ends = []
    for start in range(0, max(len(X), 1), BLOCK_ROWS):
        part = np.asarray(X[start : start + BLOCK_ROWS], dtype=np.float64)
        near = (part >= limits[0]) & (part <= limits[1])
        ends.append(
            (
                np.min(part, axis=0, where=near, initial=np.inf),
                np.max(part, axis=0, where=near, initial=-np.inf),
            )
        )
    low, high = zip(*ends, strict=True)
    return np.min(low, axis=0), np.max(high, axis=0)


def limited(X: np.ndarray) -> np.ndarray:
    """The rows, with very far entries moved to the range of the others (`column_ranges`)."""
    return np.clip(X, *column_ranges(X))


def far_rows(X: np.ndarray) -> np.ndarray:
    """Numbers of the rows with an entry beyond the limits of its column (`column_limits`)."""
    return rows_beyond(X, column_limits(X))


def rows_beyond(X: np.ndarray, limits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Numbers of the rows with an entry beyond limits of its column."""
    low, high = limits
    blocks = range(0, len(X), BLOCK_ROWS)
    parts = (np.asarray(X[start : start + BLOCK_ROWS]) for start in blocks)
    return np.flatnonzero(
        np.concatenate(
            [((part < low) | (part > high)).any(1) for part in parts] or [np.zeros(0, dtype=bool)]
        )
    )


def column_spread(X: np.ndarray, counts: np.ndarray | float = 1.0) -> np.ndarray:
    """The robust standard deviation of the columns, 1 where a column is constant."""
    return column_moments(X, robust=True, counts=counts)[1]


def column_moments(
    X: np.ndarray,
    block: int = BLOCK_ROWS,
    robust: bool = False,
    counts: np.ndarray | float = 1.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation of the columns in one pass, 1 where a column is constant.

    With `robust` far entries count as the limit (`column_limits`) beyond which they are. `counts`
    are the numbers of rows that each row stands for.
    """
    return Moments.of(X, column_limits(X) if robust else None, block, counts).scales()


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
        return self.mean, _scale(np.sqrt(self.squares / self.n), self.mean)


def target_scales(
    moments: Moments | None, t: int, shared: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Means and scales of t targets from their moments; 0 and 1 without moments."""
    if moments is None:
        return np.zeros(t), np.ones(t)
    mean, std = moments.scales()
    return mean, _of_all(std) if shared else std


def weighted_moments(
    Y: np.ndarray,
    counts: np.ndarray,
    normalize: bool,
    shared: bool = False,
    robust: bool = False,
    within: np.ndarray | float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Means and scales of (n, t) targets of merged rows; 0 and 1 if they are not normalised.

    Parameters
    ----------
    counts : ndarray of shape (n,)
        How many rows each row stands for.
    shared : bool, default=False
        Whether all targets have the same scale, as noise known in the units of y requires.
    robust : bool, default=False
        Whether far targets count as limits, as likelihoods with heavy tails require; counts are not
        used then.
    within : ndarray of shape (n, t), default=0
        Sums of squares in the targets that have been merged.
    """
    if not normalize:
        return target_scales(None, Y.shape[1])
    if robust:
        return target_scales(Moments.of(Y, column_limits(Y)), Y.shape[1], shared)
    found = Moments.of(Y, counts=counts)
    found = replace(found, squares=found.squares + np.sum(within, 0))
    return target_scales(found, Y.shape[1], shared)


def _of_all(std: np.ndarray) -> np.ndarray:
    """One scale in place of those of several targets: the root of their mean square."""
    return np.full_like(std, np.sqrt(np.mean(np.square(std))))


def _scale(std: np.ndarray, mean: np.ndarray) -> np.ndarray:
    """Standard deviations, 1 where a column is constant: its rounding errors are no scale."""
    constant = std <= 10 * np.finfo(np.float64).eps * np.abs(mean)
    return np.where(constant, 1.0, std)


def _scaled(rows: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Standardised rows in C order."""
    return (np.ascontiguousarray(rows) - mean) / scale


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of one fit, in a model's units.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Inputs in their own units; may be an `np.memmap`, of which only batches are read.
    Y : ndarray of shape (n, t)
        Targets in their own units.
    scaling : Scaling
    dtype : torch.dtype
        Precision of the tensors.
    device : torch.device
    noise : ndarray of shape (n,)
        Known noise variances in the model's units.
    weight : ndarray of shape (n,)
        How many equal rows each row stands for.
    """

    X: np.ndarray
    Y: np.ndarray
    scaling: Scaling
    dtype: torch.dtype
    device: torch.device
    noise: np.ndarray
    weight: np.ndarray
    _resident: Rows | None = None

    @classmethod
    def of(
        cls,
        X: np.ndarray,
        Y: np.ndarray,
        scaling: Scaling,
        dtype: torch.dtype = torch.float32,
        device: torch.device = _CPU,
        noise: np.ndarray | float = 0.0,
        weight: np.ndarray | float = 1.0,
    ) -> RowSource:
        """The rows of a table; one number stands for all."""
        # Where all rows have the same noise, it takes no memory. torch takes no such weights.
        noise = np.broadcast_to(np.float64(noise), len(X))
        weight = np.full(len(X), weight, dtype=np.float64)
        return cls(X, Y, scaling, dtype, device, noise, weight)

    @property
    def n_rows(self) -> float:
        """The number of rows before they were merged: the sum of their weights."""
        return float(self.weight.sum())

    def __len__(self) -> int:
        return len(self.X)

    def resident(self) -> RowSource:
        """The same rows, held as tensors if they are small enough."""
        size = torch.finfo(self.dtype).bits // 8
        if self._resident is not None or (self.X.size + self.Y.size) * size > _RESIDENT_BYTES:
            return self
        on: dict = {"dtype": self.dtype, "device": self.device}
        X, Y = torch.empty(self.X.shape, **on), torch.empty(self.Y.shape, **on)
        for start in range(0, len(self), BLOCK_ROWS):
            some = slice(start, start + BLOCK_ROWS)
            rows = self.take(some)
            X[some], Y[some] = rows.X, rows.Y
        # One number for all rows takes no time in batches.
        noise = torch.tensor(self.noise) if self.noisy else 0.0
        weight = torch.tensor(self.weight) if have_merged(self.weight) else 1.0
        return replace(self, _resident=Rows.of(X, Y, noise, weight))

    def converted(self, dtype: torch.dtype, device: torch.device | None = None) -> RowSource:
        """The same rows in another precision, held as tensors no more."""
        device = self.device if device is None else device
        return replace(self, dtype=dtype, device=device, _resident=None)

    def here(self) -> RowSource:
        """The rows in this process."""
        return self

    def held(self, make: Callable[..., Any], *args: Any, tensors: Sequence[Tensor] = ()) -> Workers:
        """``make(source, *args, *tensors)``, which answers for the rows."""
        return Workers(make(self, *args, *tensors))

    def subset(self, index: np.ndarray) -> RowSource:
        """Some of the rows, in the same units."""
        names = ("X", "Y", "noise", "weight")
        parts = {name: getattr(self, name)[index] for name in names}
        return replace(self, _resident=None, **parts)

    def labels(self) -> tuple[Float[np.ndarray, "n t"], Float[np.ndarray, " n"]]:
        """The targets of a classifier, and how many rows each row of them stands for."""
        return self.Y, self.weight

    def take(self, index: np.ndarray | Tensor | slice) -> Rows:
        """Some rows, scaled, as tensors."""
        if self._resident is not None:
            at = index if isinstance(index, slice) else torch.as_tensor(index, device=self.device)
            return self._resident.take(at)
        if isinstance(index, Tensor):
            index = index.cpu().numpy()
        s = self.scaling
        X = _scaled(self.X[index], s.x_mean, s.x_scale)
        Y = _scaled(self.Y[index], s.y_mean, s.y_scale)
        parts = X, Y, np.array(self.noise[index]), np.array(self.weight[index])
        return Rows.of(*(torch.as_tensor(part).to(self.device, self.dtype) for part in parts))

    def originals(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Some rows in their own units, and their targets."""
        return np.array(self.X[index]), np.array(self.Y[index])

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest entry of each column, as `column_ranges`."""
        return column_ranges(self.X)

    def far(self) -> np.ndarray:
        """Numbers of the rows with an entry far from those of other rows."""
        return far_rows(self.X)

    @cached_property
    def noisy(self) -> bool:
        """Whether there is known noise."""
        return bool(self.noise.any())

    def blocks(self, size: int = BLOCK_ROWS) -> Iterator[Rows]:
        """All rows in order, `size` at a time."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))

    def batches(self, size: int, generator: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Numbers and weights of rows, as `counted_batches` draws them."""
        return counted_batches(torch.tensor(self.weight).to(self.device), size, generator)

    @property
    def most_noise(self) -> float:
        """The largest known noise variance."""
        return float(np.max(self.noise, initial=0.0))


class _Shuffled(Iterator[tuple[Tensor, Tensor]]):
    """Batches of `size` of n rows in a new order in each epoch; each stands for n / size rows."""

    moving = ("_order", "_at", "_generator")

    def __init__(self, n: int, size: int, generator: Generator):
        self._n, self._size, self._generator = n, size, generator
        # The state of an order; before the first batch there is none.
        self._order, self._at = torch.empty(0, dtype=torch.int64), n
        self._weights = torch.full((size,), n / size, dtype=torch.float64)

    def __next__(self) -> tuple[Tensor, Tensor]:
        if self._at + self._size > self._n:
            self._order, self._at = RandomOrder.drawn(self._n, self._generator).state, 0
        self._at += self._size
        index = RandomOrder(self._n, self._order)[self._at - self._size : self._at]
        return index, self._weights


def counted_batches(
    counts: Float[Tensor, " n"], size: int, generator: Generator
) -> Iterator[tuple[Tensor, Tensor]]:
    """An endless sequence of batches of a table whose equal rows were merged.

    Sums over merged rows that are all drawn equally often would vary much from batch to batch if
    few rows have most of the weight. Here the probability of a row is proportional to its count,
    and a row for which that would be above one is in every batch. Rows that all count once are in a
    random order, each at most once in an epoch.

    Parameters
    ----------
    counts : Tensor of shape (n,)
        How many rows each merged row stands for.
    size : int
        Number of merged rows of a batch, at most n.
    generator : Generator

    Returns
    -------
    batches : iterator of (index, weights)
        Numbers of the merged rows, and for how many rows each stands: its count divided by its
        probability. The weights of every batch sum to the number of all rows.
    """
    if bool((counts == 1).all()):
        return _Shuffled(len(counts), min(size, len(counts)), generator)
    return _Counted(counts, min(size, len(counts)), generator)


class _Counted(Iterator[tuple[Tensor, Tensor]]):
    """Systematic samples of rows in random orders.

    The rows that are not in every batch lie behind one another, each as long as its count. A batch
    has the rows at points of equal distance, and those of an epoch shift these points. Madow
    (1949), On the theory of systematic sampling, II.
    """

    moving = ("_order", "_ends", "_shifts", "_at", "_generator")

    def __init__(self, counts: Tensor, size: int, generator: Generator):
        self._counts, self._generator = counts.double(), generator
        every, drawn = _of_every_batch(self._counts, size)
        self._every, self._drawn, self._n_drawn = every, drawn, size - len(every)
        self._step = float(self._counts[drawn].sum()) / max(self._n_drawn, 1)
        # Before the first batch there are neither an order nor shifts of its points.
        self._order, self._at = torch.empty(0, dtype=torch.int64), 0
        self._ends = self._shifts = self._counts[:0]

    def __next__(self) -> tuple[Tensor, Tensor]:
        if not self._n_drawn:
            return self._every, self._counts[self._every]
        if self._at == len(self._shifts):
            self._begin_epoch()
        points = torch.arange(self._n_drawn).to(self._counts) + self._shifts[self._at]
        self._at += 1
        places = torch.searchsorted(self._ends, points * self._step, right=True)
        rows = self._order[places.clamp_max(len(self._order) - 1)]
        weights = self._counts[self._every], torch.full_like(points, self._step)
        return torch.cat([self._every, rows]), torch.cat(weights)

    def _begin_epoch(self) -> None:
        n, device = len(self._drawn), self._counts.device
        self._order = self._drawn[RandomOrder.drawn(n, self._generator)[:].to(device)]
        self._ends, self._at = self._counts[self._order].cumsum(0), 0
        n_batches = -(-n // self._n_drawn)
        turns = RandomOrder.drawn(n_batches, self._generator)[:].double()
        within = torch.rand(1, generator=self._generator, device=turns.device)
        self._shifts = ((turns + within) / n_batches).to(self._counts)


def _of_every_batch(counts: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Rows that are in every batch of `size` rows, and the others."""
    ordered, order = counts.sort(descending=True, stable=True)
    if size >= len(counts):
        return order.sort().values, order[:0]
    # The distance of points if the k largest counts are in every batch.
    left = ordered.flip(0).cumsum(0).flip(0)[:size]
    distances = left / torch.arange(size, 0, -1).to(left)
    k = int((ordered[:size] <= distances).nonzero()[0])
    return order[:k].sort().values, order[k:].sort().values
