"""Cubic interpolation onto regular grids."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import scipy.sparse

# Coefficients of Keys' four weights (a = -1/2) in powers of v = u - 1/2, where u is the place
# between the second and the third of the four points; centred powers stay well conditioned.
_IN_U = np.array([[0, -1, 2, -1], [2, 0, -5, 3], [0, 1, 4, -3], [0, 0, -1, 1]]) / 2
_SHIFT = np.array([[math.comb(k, j) * 0.5 ** (k - j) if j <= k else 0 for j in range(4)]
                   for k in range(4)])  # fmt: skip
WEIGHTS = _IN_U @ _SHIFT
# Beyond this number of steps from the start of a grid, float64 cannot resolve places within a cell.
FARTHEST = 2.0**52


@dataclass(frozen=True)
class Axis:
    """Equally spaced points along one column.

    Attributes
    ----------
    column : int
        Number of the column of X.
    start, step : float
        First point and spacing, in the column's unit.
    size : int
        Number of points, at least 4.
    """

    column: int
    start: float
    step: float
    size: int

    @property
    def points(self) -> np.ndarray:
        return self.start + self.step * np.arange(self.size)

    @property
    def cells(self) -> int:
        """Number of intervals with two points on either side."""
        return self.size - 3

    def place(self, x: np.ndarray) -> np.ndarray:
        """The distance of x from the start in steps, clipped to 2^52."""
        with np.errstate(over="ignore"):
            return ((x - self.start) / self.step).clip(-FARTHEST, FARTHEST)

    def locate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first of the four points around x, possibly off the grid, and v in [-1/2, 1/2]."""
        place = self.place(x)
        first = np.floor(place)
        # The last interval owns its right end, so that a grid covers a closed range.
        last = (first == self.size - 2) & (place == self.size - 2)
        first[last] -= 1
        return first - 1, place - first - 0.5

    def covers(self, x: np.ndarray) -> np.ndarray:
        """Whether each x lies in a cell of the grid."""
        place = self.place(x)
        return (place >= 1) & (place <= self.size - 2)

    def extended(self, x: np.ndarray) -> Axis:
        """An axis of the same spacing over a range that also contains x."""
        place = self.place(x)
        low, high = float(place.min()), float(place.max())
        before = math.ceil(1 - low) + 1 if low < 1 else 0
        after = math.ceil(high - (self.size - 2)) + 1 if high > self.size - 2 else 0
        return replace(self, start=self.start - before * self.step, size=self.size + before + after)


@dataclass(frozen=True)
class Grid:
    """Product grids over disjoint sets of columns; their points are numbered grid by grid.

    A single component with all columns is a product grid. One component per column is an additive
    grid.

    Attributes
    ----------
    components : tuple of tuple of Axis
        The axes of each product grid.
    n_features : int
        Columns of X; those without an axis are constant and ignored.
    """

    components: tuple[tuple[Axis, ...], ...]
    n_features: int

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        return [tuple(axis.size for axis in axes) for axes in self.components]

    @property
    def starts(self) -> list[int]:
        """The number of each component's first point."""
        return [0, *np.cumsum([math.prod(shape) for shape in self.shapes]).tolist()][:-1]

    @property
    def n_points(self) -> int:
        """m, over all components."""
        return sum(math.prod(shape) for shape in self.shapes)

    def covers(self, X: np.ndarray) -> np.ndarray:
        """Whether each row lies inside, as booleans of shape (n,)."""
        axes = [axis for component in self.components for axis in component]
        return reduce(np.logical_and, [axis.covers(X[:, axis.column]) for axis in axes])

    def interpolate(self, X: np.ndarray) -> scipy.sparse.csr_array:
        """W of shape (n, m) for rows inside, 4^d nonzeros per row and component (Keys 1981)."""
        indices, values = [], []
        for axes, shape, start in zip(self.components, self.shapes, self.starts, strict=True):
            index, value = np.full((len(X), 1), start), np.ones((len(X), 1))
            for axis, stride in zip(axes, strides(shape), strict=True):
                first, v = axis.locate(X[:, axis.column])
                near = (first.astype(np.int64)[:, None] + np.arange(4)) * stride
                weights = keys_weights(v)
                index = (index[:, :, None] + near[:, None, :]).reshape(len(X), 4 * index.shape[1])
                value = outer(value, weights)
            indices.append(index)
            values.append(value)
        index, value = np.hstack(indices), np.hstack(values)
        pointers = np.arange(len(X) + 1) * index.shape[1]
        return scipy.sparse.csr_array(
            (value.ravel(), index.ravel(), pointers), shape=(len(X), self.n_points)
        )

    def extended(self, X: np.ndarray) -> Grid:
        """A grid of the same spacing that also covers X; only its sizes are computed."""
        components = tuple(
            tuple(axis.extended(X[:, axis.column]) for axis in axes) for axes in self.components
        )
        return Grid(components, self.n_features)

    def numbers_in(self, larger: Grid) -> np.ndarray:
        """The numbers of the points in a grid that `extended` made from this one."""
        numbers, start = [], 0
        for axes, new in zip(self.components, larger.components, strict=True):
            shape, new_shape = ([axis.size for axis in part] for part in (axes, new))
            places = np.unravel_index(np.arange(math.prod(shape)), shape)
            moved = tuple(
                place + round((old.start - axis.start) / old.step)
                for place, old, axis in zip(places, axes, new, strict=True)
            )
            numbers.append(start + np.ravel_multi_index(moved, new_shape))
            start += math.prod(new_shape)
        return np.concatenate(numbers)


def keys_weights(v: np.ndarray) -> np.ndarray:
    """The weights of the four points around each place v in [-1/2, 1/2], (n, 4)."""
    return powers(v, 3) @ WEIGHTS.T


def make_grid(X: np.ndarray, sizes: Sequence[int] | Mapping[int, int], structure: str) -> Grid:
    """A grid over the range of X, padded by two cells on either side.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; a constant column gets no axis.
    sizes : sequence or mapping of int
        Points by the number of the column, padding included.
    structure : {"product", "additive"}
        One grid over all columns, or one for each.
    """
    axes = []
    for column in varying_columns(X):
        low, high = float(X[:, column].min()), float(X[:, column].max())
        inner = max(sizes[column] - 5, 1)
        # Slightly wider than the data, so that the last row remains inside in spite of rounding.
        step = (high - low) * (1 + 1e-9) / inner
        axes.append(Axis(int(column), low - 2 * step, step, inner + 5))
    components = (tuple(axes),) if structure == "product" else tuple((axis,) for axis in axes)
    return Grid(components, X.shape[1])


def varying_columns(X: np.ndarray) -> np.ndarray:
    """Columns whose spread is more than rounding."""
    spread = X.max(axis=0) - X.min(axis=0)
    return np.flatnonzero(spread > 1e-12 * np.abs(X).max(axis=0, initial=0.0))


def outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Products of all pairs of columns, row by row."""
    width = left.shape[1] * right.shape[1]
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), width)


def powers(v: np.ndarray, highest: int) -> np.ndarray:
    """Powers 0 to `highest` of each place, (n, highest + 1)."""
    out = np.ones((len(v), highest + 1))
    for power in range(1, highest + 1):
        np.multiply(out[:, power - 1], v, out=out[:, power])
    return out


def strides(shape: list[int] | tuple[int, ...]) -> list[int]:
    """Distances of neighbours along each axis in flat order."""
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]
