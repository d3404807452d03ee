"""Merging equal rows of a table into one row with a count."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

# Odd multiplier of the hash by which equal rows are searched: 2^64 divided by the golden ratio.
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)
_SHIFT, _HALF = np.uint64(29), np.uint64(32)


@dataclass(frozen=True)
class Merged:
    """A table whose equal rows have become one, in an order that does not depend on the given one.

    Attributes
    ----------
    rows : ndarray of shape (m,) or slice
        For each merged row the number of a given row that is equal to it. A slice of all rows says
        that none is left out or merged.
    y : ndarray of shape (m,) or (m, t)
        Weighted means of the targets.
    counts : ndarray of shape (m,)
        The sum of the weights of each row.
    within : ndarray of shape (m, t)
        Weighted sums of squared differences of the targets from their mean.
    groups : ndarray of shape (n,)
        The merged row of each given row; -1 for those of weight zero.
    """

    rows: np.ndarray | slice
    y: np.ndarray
    counts: np.ndarray
    within: np.ndarray
    groups: np.ndarray


def merged(
    X: np.ndarray, y: np.ndarray, noise: Sequence[np.ndarray], weights: np.ndarray | None = None
) -> Merged:
    """The table without rows of weight zero, and with equal rows merged.

    Rows are equal if their entries and their known noise are. A row of weight k and k equal rows
    give the same numbers bit for bit, in any order of the rows, for whole numbers k: rows that
    agree in their targets, too, are merged first.

    Parameters
    ----------
    X : ndarray of shape (n, d) or (n,)
        Rows that are not numbers are not merged.
    y : ndarray of shape (n,) or (n, t)
    noise : sequence of ndarray of shape (n,)
        Known noise variances of each row.
    weights : ndarray of shape (n,), optional
        Not negative, and some positive.

    Notes
    -----
    O(n d) and a sort of n numbers if no rows are equal and no weights given, else O(n d log n).
    """
    n = len(X)
    kept = np.arange(n) if weights is None else np.flatnonzero(weights)
    w = np.ones(n) if weights is None else weights
    plain = bool((w[kept] == 1).all())
    columns = [] if X.ndim == 1 or X.dtype.kind not in "fiu" else [*X.T, *noise]
    if plain and not (columns and _may_repeat(column[kept] for column in columns)):
        return alone(y, kept, w)
    if not columns:
        return alone(y, kept, w)
    Y = y.reshape(n, -1)
    keys = [column[kept] for column in (*columns, *Y.T)]
    order = kept[np.lexsort(keys[::-1])]
    new = _begins(columns, order)
    if plain and new.all():
        return alone(y, kept, w)
    group = np.cumsum(new) - 1
    # Rows with equal targets are one term of the sums, whatever their number.
    first = np.flatnonzero(new | _begins(Y.T, order))
    w, Y, of = np.add.reduceat(w[order], first), Y[order[first]], group[first]
    begin = np.flatnonzero(np.diff(of, prepend=-1))
    counts, least = np.add.reduceat(w, begin), Y[begin]
    away = Y - least[of]
    shift = np.add.reduceat(w[:, None] * away, begin) / counts[:, None]
    within = np.add.reduceat(w[:, None] * np.square(away - shift[of]), begin)
    groups = np.full(n, -1)
    groups[order] = group
    means = (least + shift).reshape(-1, *y.shape[1:])
    return Merged(order[new], means, counts, within, groups)


def have_merged(counts: np.ndarray, within: np.ndarray | float = 0.0) -> bool:
    """Whether one of some rows stands for others, too, so that rows are drawn by their counts.

    The weights of equal rows may add up to one. Their targets then say so by their sums of squares.
    """
    return bool((counts != 1).any() or np.any(within))


def rows_before_merging(
    counts: np.ndarray,
    size: int,
    draw: Callable[[int, int], np.ndarray],
) -> tuple[np.ndarray, np.ndarray]:
    """Random rows of a table as it was before equal rows were merged.

    Random merged rows are no random part where rows with equal entries have several targets: of a
    row with 20 copies of one label and 15 of the other, one of two merged rows would be drawn, as
    if all copies agreed.

    Parameters
    ----------
    counts : ndarray of shape (n,)
        How many rows each merged row stands for.
    size : int
        How many rows to draw. From n on all merged rows are taken, each with its count.
    draw : callable
        ``draw(total, size)`` gives `size` distinct numbers below `total`.

    Returns
    -------
    index : ndarray of shape (m,)
        Numbers of the merged rows that the drawn ones are copies of, ascending.
    counts : ndarray of shape (m,)
        How many of the drawn rows each stands for. Weights that are no whole numbers are drawn in
        equal parts.
    """
    n = len(counts)
    if not have_merged(counts):
        return np.sort(draw(n, min(size, n))), np.ones(min(size, n))
    if size >= n:
        return np.arange(n), counts
    weight = float(counts.sum())
    total = max(n, round(weight))
    places = (draw(total, size) + 0.5) * (weight / total)
    index = np.searchsorted(np.cumsum(counts), places, side="right")
    index, drawn = np.unique(np.minimum(index, n - 1), return_counts=True)
    return index, drawn * (weight / total)


def with_equal_inputs(
    order: np.ndarray, X: np.ndarray, counts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """An order of merged rows in which those with equal inputs follow one another.

    If they have different targets, as those of a few categories have, a part of them is no random
    part of the rows with these inputs: without the copies that have one of two labels, a fit would
    learn that all have the other one.

    Parameters
    ----------
    order : ndarray of shape (n,)
    X : ndarray of shape (n, d)
    counts : ndarray of shape (n,)
        Without merged rows the order stays.

    Returns
    -------
    order : ndarray of shape (n,)
    groups : ndarray of shape (n,)
        Rising numbers along the order, equal for rows with equal inputs.
    """
    n = len(order)
    if not have_merged(counts):
        return order, np.arange(n)
    of = numbered(X)[order]
    first = np.full(n, n)
    np.minimum.at(first, of, np.arange(n))
    along = np.argsort(first[of], kind="stable")
    return order[along], np.cumsum(np.diff(of[along], prepend=-1) != 0) - 1


def numbered(X: np.ndarray) -> np.ndarray:
    """The number of each distinct row (n,) of X, from 0: equal rows have equal numbers.

    O(n d + n log n). Rows are compared by `row_hashes`.
    """
    return np.unique(row_hashes(X.T), return_inverse=True)[1].ravel()


def whole_groups(groups: np.ndarray, count: int) -> int:
    """The end of the group of `with_equal_inputs` that has the last of the first `count` rows."""
    return int(np.searchsorted(groups, groups[count - 1], side="right")) if count else 0


def alone(
    y: np.ndarray, kept: np.ndarray | None = None, weights: np.ndarray | None = None
) -> Merged:
    """Rows none of which are equal: by default all, each of which stands for itself."""
    n = len(y)
    w = np.ones(n) if weights is None else np.array(weights)
    within = np.broadcast_to(0.0, (n, int(np.prod(y.shape[1:]))))
    if kept is None or len(kept) == n:
        return Merged(slice(None), y, w, within, np.arange(n))
    groups = np.full(n, -1)
    groups[kept] = np.arange(len(kept))
    return Merged(kept, y[kept], w[kept], within[kept], groups)


def row_hashes(columns: Iterable[np.ndarray]) -> np.ndarray:
    """64 bits for each row of some columns, which are equal for equal rows.

    Two different rows among a million have equal bits with a probability of 3e-8. O(n d).
    """
    hashed = np.uint64(0)
    for column in columns:
        # -0.0 and 0.0 are the same input.
        bits = (np.asarray(column, dtype=np.float64) + 0.0).view(np.uint64)
        hashed = (hashed ^ bits ^ (bits >> _SHIFT)) * _MULTIPLIER
        hashed ^= hashed >> _HALF
    return np.asarray(hashed)


def _may_repeat(columns: Iterable[np.ndarray]) -> bool:
    """Whether two rows have the same hash, as equal rows have."""
    hashed = np.sort(row_hashes(columns))
    return bool((hashed[1:] == hashed[:-1]).any())


def _begins(columns: Iterable[np.ndarray], order: np.ndarray) -> np.ndarray:
    """Where a sorted row differs from the one before it."""
    new = np.zeros(len(order), dtype=bool)
    new[0] = True
    for column in columns:
        values = column[order]
        new[1:] |= values[1:] != values[:-1]
    return new
