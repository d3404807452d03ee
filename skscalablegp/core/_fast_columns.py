"""A column over whose range the target varies many times, found by neighbours in that column.

Half-hourly values of half a year go up and down 187 times. Three hundred random rows of them hold
no neighbours: whatever the length scales, their covariance matrix is diagonal, and boosted trees
have too few leaves. Rows that follow each other in time predict each other all the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from scipy.spatial.distance import cdist

from ..linalg.gradients import GPProblem
from .data import column_spread

# Fewest rows, number of rows up to which all are looked at, and largest numbers of entries and of
# targets.
_FEWEST, _MOST, _ENTRIES, _TARGETS = 200, 2000, 1_000_000, 3
# A window is short up to this share of the rows, and long from the other share on.
_SHORT, _LONG = 1 / 24, 1 / 16
# The errors of short windows have to be smaller than those of long ones by this share of the
# target's variance, and by so many standard errors. Of 300 drawn tables of noise or of smooth
# functions none had a fast column; of the sixty of benchmarks/starts.py four had one: both periodic
# ones of one column, steps of one column, and a draw with length scale .05.
_GAIN, _CLEAR = 0.02, 5.0
# Random rows stand for a table if as many of them lie in a window.
_RESOLVED = 3.0
# Neighbours are rows that span at most this many times the width of the best windows.
_NEAR = 3.0
# Starting length scales of a fast column in units of the width of its best windows, and of the
# other columns in units of their spread times the root of their number.
_OF_FAST, _OF_SLOW = (1.0, 2.0, 4.0, 8.0), (1.0, 4.0)
# Number of nearest rows of a local process, its length scales of other columns, and its noises in
# units of its amplitude. On five drawn tables of one to eight columns its errors were within .001
# of those of the exact process, .05 to .1 of the variance, and so they were by 64 or 128 rows; up
# to .011 larger without the longest length scale, and up to a tenth by fewer noises.
NEAREST, _OF_OTHERS, _NOISES = 32, (1.0, 4.0, 16.0), (0.01, 0.03, 0.1)
# Windows of neighbouring rows have this many times the rows of the best one for a mean.
_BLOCK, _MOST_BLOCKS = 16, 8


class FastColumn(NamedTuple):
    """A column in which means of a few neighbours predict better than means of many.

    Attributes
    ----------
    column : int
    rows : int
        Number of neighbours whose mean predicts best.
    width : float
        The distance that they span, in the units of the column.
    targets, units : ndarray
        The numbers of the targets that were looked at, and their variances.
    """

    column: int
    rows: int
    width: float
    targets: np.ndarray
    units: np.ndarray


def fast_column(X: np.ndarray, Y: np.ndarray) -> FastColumn | None:
    """The column, if there is one, over whose range the target varies many times.

    Each row's target is predicted by the mean of its neighbours in one column, in windows of 2, 4,
    8, ... rows. A column is fast if windows of at most a 24th of the rows predict clearly better
    than those of a 16th or more. Of several columns, the one that predicts best is taken.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows in random order, because neighbouring rows of a table may be alike, and would follow
        each other among equal entries.
    Y : ndarray of shape (n, t)

    Notes
    -----
    O(n log n) for each column.
    """
    units = Y.var(0)
    targets = np.flatnonzero(units > 0)[:_TARGETS]
    if len(X) < _FEWEST or not len(targets):
        return None
    Z = (Y[:, targets] - Y[:, targets].mean(0)) / np.sqrt(units[targets])
    best: FastColumn | None = None
    least = math.inf
    for j, x in enumerate(np.asarray(X, dtype=np.float64).T):
        order = np.argsort(x, kind="stable")
        found = _best_window(Z[order])
        if found is None or least <= found[1]:
            continue
        width = _width(x[order], found[0])
        if width > 0:
            least = found[1]
            best = FastColumn(j, found[0], width, targets, units[targets])
    return best


def local_errors(
    fast: FastColumn, X: Float[np.ndarray, "n d"], Y: Float[np.ndarray, "n t"], looked: int
) -> Float[np.ndarray, " looked"]:
    """Squared leave-one-out errors of the first rows, by local processes in a fast column.

    Each row is predicted by the process of the nearest rows in this column. Other rows choose among
    a few length scales and noises. Unlike means of neighbours, a process also sees the other
    columns, and loses little by the target's change between neighbours.

    Parameters
    ----------
    fast : FastColumn
    X, Y : ndarray
        The rows in random order, as `fast_column` has received them.
    looked : int
        Number of rows that are predicted.

    Returns
    -------
    errors : ndarray of shape (looked,)
        In units of the targets' variances, and summed over targets.
    """
    Z = (Y - Y.mean(0))[:, fast.targets] / np.sqrt(fast.units)
    rest = X / (column_spread(X) * math.sqrt(X.shape[1]))
    rest[:, fast.column] = 0.0
    near = X[:, fast.column] / fast.width
    order = np.argsort(near, kind="stable")
    place = np.argsort(order)

    def errors_of(rows: np.ndarray) -> Callable[..., np.ndarray]:
        first = np.clip(place[rows] - NEAREST // 2, 0, len(X) - NEAREST - 1)
        window = order[first[:, None] + np.arange(NEAREST + 1)]
        own = window == rows[:, None]
        sides = np.concatenate([Z[window], own[..., None]], -1)
        of_rest = np.stack([cdist(rest[some], rest[some], "sqeuclidean") for some in window])
        of_fast = np.square(near[window][:, :, None] - near[window][:, None])

        def errors(of_others: float, of_column: float, noise: float) -> np.ndarray:
            r = np.sqrt(3 * (of_fast / of_column**2 + of_rest / of_others**2))
            inverse = np.linalg.solve((1 + r) * np.exp(-r) + noise * np.eye(r.shape[-1]), sides)
            # A row's error is its entry of C^-1 y by that of the inverse's diagonal.
            return np.square(inverse[own][:, :-1] / inverse[own][:, -1:]).sum(1)

        return errors

    rows = np.arange(len(X))
    choosing = errors_of(rows[-looked:])
    scales = product(_OF_OTHERS, _OF_FAST, _NOISES)
    return errors_of(rows[:looked])(*min(scales, key=lambda some: choosing(*some).mean()))


def rows_to_look_at(n: int, d: int) -> np.ndarray:
    """Random rows in random order, as many as `fast_column` can look at, or all."""
    return np.random.RandomState(0).permutation(n)[: max(_MOST, _ENTRIES // max(1, d))]


class StartRows:
    """Rows for exact fits that choose a start: random ones, half of them neighbours if needed.

    Neighbours in a fast column, in several windows, show at which distance rows are alike there.
    Random rows between them show what the other columns do, and what long distances do.

    Parameters
    ----------
    n, d : int
        Size of the table.
    read : callable
        ``read(rows)`` gives X and Y of some rows, as arrays.
    fast : FastColumn, optional
        That of a table from which these rows have been taken.
    """

    def __init__(
        self,
        n: int,
        d: int,
        read: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
        fast: FastColumn | None = None,
    ):
        self._n, self._d, self.read, self._known = n, d, read, fast

    @classmethod
    def of(cls, problem: GPProblem, fast: FastColumn | None = None) -> StartRows:
        """Those of a problem."""

        def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            some = problem.subset(torch.as_tensor(rows, device=problem.X.device))
            return some.X.double().cpu().numpy(), some.Y.double().cpu().numpy()

        n, d = problem.X.shape
        return cls(n, d, read, fast)

    @cached_property
    def _found(self) -> tuple[FastColumn | None, np.ndarray]:
        """The fast column, and rows in its order, without those far from their neighbours."""
        if self._n < _FEWEST:
            return None, np.arange(0)
        rows = rows_to_look_at(self._n, self._d)
        X, Y = self.read(rows)
        fast = fast_column(X, Y) if self._known is None else self._known
        if fast is None:
            return None, rows
        order = np.argsort(X[:, fast.column], kind="stable")
        x = X[order, fast.column]
        near = np.zeros(len(x), dtype=bool)
        near[: -fast.rows] = x[fast.rows :] - x[: -fast.rows] <= _NEAR * fast.width
        return fast, rows[order][near]

    @property
    def fast(self) -> FastColumn | None:
        """The fast column, if there is one."""
        return self._found[0]

    def chosen(self, index: np.ndarray) -> np.ndarray:
        """So many rows as the random ones of `index`, in increasing order."""
        size = len(index)
        fast, order = self._found if size < self._n else (None, index)
        if fast is None or fast.rows * size >= _RESOLVED * min(self._n, len(order)):
            return np.sort(index)
        several = int(np.clip(size // 2 // (_BLOCK * fast.rows), 1, _MOST_BLOCKS))
        length = min(size // 2, len(order)) // several
        begin = ((np.arange(several) + 0.5) * len(order) / several - length / 2).astype(int)
        blocks = order[(begin[:, None] + np.arange(length)).ravel()]
        others = np.random.RandomState(0).permutation(np.setdiff1d(index, blocks))
        return np.sort(np.concatenate([blocks, others[: size - len(blocks)]]))

    def counted(self, index: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The same for merged rows, which stand for so many; a row that is added, for one."""
        chosen = self.chosen(index)
        found = np.ones(len(chosen))
        _, at, place = np.intersect1d(chosen, index, return_indices=True)
        found[at] = counts[place]
        return chosen, found


def _best_window(Z: Float[np.ndarray, "n t"]) -> tuple[int, float] | None:
    """The number of neighbours in the best short window, and its error, if it is clearly best."""
    n = len(Z)
    sums = np.vstack([np.zeros(Z.shape[1]), Z.cumsum(0)])
    at = np.arange(n)

    def errors(half: int) -> np.ndarray:
        low, high = np.maximum(at - half, 0), np.minimum(at + half + 1, n)
        mean = (sums[high] - sums[low] - Z) / (high - low - 1)[:, None]
        return np.square(Z - mean).sum(1)

    halves = 2 ** np.arange(int(np.log2(n / 4)) + 1)
    tried = {int(half): errors(int(half)) for half in halves if 2 * half <= n / 2}
    short = {half: e for half, e in tried.items() if 2 * half <= max(2, n * _SHORT)}
    long = [e for half, e in tried.items() if 2 * half >= n * _LONG]
    half = min(short, key=lambda half: short[half].mean())
    falls = min(long, key=lambda e: e.mean()) - short[half]
    error = falls.std() / np.sqrt(n)
    if falls.mean() < max(_CLEAR * error, _GAIN * Z.shape[1]):
        return None
    return 2 * half, float(short[half].mean())


def _width(x: np.ndarray, rows: int) -> float:
    """The median distance of so many rows in sorted entries; of different ones, if it is 0."""
    width = float(np.median(x[rows:] - x[:-rows]))
    if width > 0:
        return width
    gaps = np.diff(np.unique(x))
    return float(np.median(gaps)) if len(gaps) else 0.0


def starting_lengths(
    width: float, place: int, spread: Float[np.ndarray, " k"], given: Float[np.ndarray, " k"]
) -> Iterator[Float[np.ndarray, " k"]]:
    """Yield logarithms of length scales of k columns that are short in the fast one.

    The others have those given, or some in units of their spread.
    """
    size = len(spread)
    far = [np.log(spread * math.sqrt(size) * factor) for factor in _OF_SLOW]
    for others, factor in product([given, *far] if size > 1 else far[:1], _OF_FAST):
        lengths = others.copy()
        lengths[place] = math.log(width * factor)
        yield lengths
