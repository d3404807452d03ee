"""Cubic interpolation onto regular grids, and everything a grid needs to know about its rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
# Products of two weights, in powers up to the sixth.
PRODUCTS = np.stack([[np.convolve(a, b) for b in WEIGHTS] for a in WEIGHTS])

# Bytes of one block of powers while rows are streamed.
_BLOCK_BYTES = 2**25


@dataclass(frozen=True)
class Axis:
    """Equally spaced points along one column.

    Attributes
    ----------
    column : int
        Which column of X.
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
        """Intervals that have two points on either side."""
        return self.size - 3

    def locate(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The first of the four points around x, possibly off the grid, and v in [-1/2, 1/2]."""
        place = (x - self.start) / self.step
        first = np.floor(place)
        # The last interval owns its right end, so that a grid covers a closed range.
        last = (first == self.size - 2) & (place == self.size - 2)
        first[last] -= 1
        return first - 1, place - first - 0.5

    def covers(self, x: np.ndarray) -> np.ndarray:
        """Where x lies in a cell of the grid."""
        place = (x - self.start) / self.step
        return (place >= 1) & (place <= self.size - 2)

    def extended(self, low: float, high: float) -> tuple[Axis, int]:
        """The same spacing over a range that contains [low, high]; how many points came before."""
        before = max(0, math.ceil(1 - (low - self.start) / self.step) + 1)
        after = max(0, math.ceil((high - self.start) / self.step - (self.size - 2)) + 1)
        before = before if low < self.start + self.step else 0
        after = after if high > self.start + self.step * (self.size - 2) else 0
        axis = replace(self, start=self.start - before * self.step, size=self.size + before + after)
        return axis, before


@dataclass(frozen=True)
class Grid:
    """Product grids over disjoint sets of columns, their points numbered one grid after the other.

    One component with all columns is a product grid, one component a column an additive one.

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
        """Which rows lie inside, as booleans of shape (n,)."""
        axes = [axis for component in self.components for axis in component]
        return reduce(np.logical_and, [axis.covers(X[:, axis.column]) for axis in axes])

    def interpolate(self, X: np.ndarray) -> scipy.sparse.csr_array:
        """W of shape (n, m), with 4^d nonzeros a row and component (Keys 1981); rows inside."""
        indices, values = [], []
        for axes, shape, start in zip(self.components, self.shapes, self.starts, strict=True):
            index, value = np.full((len(X), 1), start), np.ones((len(X), 1))
            for axis, stride in zip(axes, _strides(shape), strict=True):
                first, v = axis.locate(X[:, axis.column])
                near = (first.astype(np.int64)[:, None] + np.arange(4)) * stride
                weights = keys_weights(v)
                index = (index[:, :, None] + near[:, None, :]).reshape(len(X), 4 * index.shape[1])
                value = _outer(value, weights)
            indices.append(index)
            values.append(value)
        index, value = np.hstack(indices), np.hstack(values)
        pointers = np.arange(len(X) + 1) * index.shape[1]
        return scipy.sparse.csr_array(
            (value.ravel(), index.ravel(), pointers), shape=(len(X), self.n_points)
        )

    def extended(self, X: np.ndarray) -> tuple[Grid, np.ndarray]:
        """A grid that also covers X, and where the old points are in it."""
        components, numbers, start = [], [], 0
        for axes, shape in zip(self.components, self.shapes, strict=True):
            pairs = [a.extended(X[:, a.column].min(), X[:, a.column].max()) for a in axes]
            new = tuple(axis for axis, _ in pairs)
            new_shape = tuple(axis.size for axis in new)
            places = np.unravel_index(np.arange(math.prod(shape)), shape)
            moved = tuple(place + before for place, (_, before) in zip(places, pairs, strict=True))
            numbers.append(start + np.ravel_multi_index(moved, new_shape))
            components.append(new)
            start += math.prod(new_shape)
        return Grid(tuple(components), self.n_features), np.concatenate(numbers)


def keys_weights(v: np.ndarray) -> np.ndarray:
    """The weights of the four points around each place v in [-1/2, 1/2], (n, 4)."""
    return _powers(v, 3) @ WEIGHTS.T


def make_grid(X: np.ndarray, sizes: list[int], structure: str) -> Grid:
    """A grid over the range of X, padded by two cells on either side.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows; a constant column gets no axis.
    sizes : list of int
        Points of each column, padding included.
    structure : {"product", "additive"}
        One grid over all columns, or one for each.
    """
    axes = []
    for column in varying_columns(X):
        low, high = float(X[:, column].min()), float(X[:, column].max())
        inner = max(sizes[column] - 5, 1)
        # A hair wider than the data, so that rounding leaves the last row inside.
        step = (high - low) * (1 + 1e-9) / inner
        axes.append(Axis(int(column), low - 2 * step, step, inner + 5))
    components = (tuple(axes),) if structure == "product" else tuple((axis,) for axis in axes)
    return Grid(components, X.shape[1])


def varying_columns(X: np.ndarray) -> np.ndarray:
    """Columns whose spread is more than rounding."""
    spread = X.max(axis=0) - X.min(axis=0)
    return np.flatnonzero(spread > 1e-12 * np.abs(X).max(axis=0, initial=0.0))


@dataclass(frozen=True, eq=False)
class GridMoments:
    """All that a regression on a grid needs to know of its rows; no size depends on n.

    Sums over rows with weights c_i: ``gram = W' C W``, ``rhs = W' C Y``, ``total = sum c_i y_i^2``
    (one entry a target).

    Attributes
    ----------
    gram : csr_array of shape (m, m)
    rhs : ndarray of shape (m, t)
    total : ndarray of shape (t,)
    n : int
        Number of rows.
    """

    gram: scipy.sparse.csr_array | None
    rhs: np.ndarray
    total: np.ndarray
    n: int

    def __add__(self, other: GridMoments) -> GridMoments:
        return GridMoments(
            self.gram + other.gram, self.rhs + other.rhs, self.total + other.total, self.n + other.n
        )

    def scaled(self, factor: float) -> GridMoments:
        """The moments with every weight multiplied."""
        return GridMoments(self.gram * factor, self.rhs * factor, self.total * factor, self.n)

    def moved(self, numbers: np.ndarray, n_points: int) -> GridMoments:
        """The same rows on a grid in which point i has become ``numbers[i]``."""
        gram = self.gram.tocoo()
        pairs = numbers[gram.row], numbers[gram.col]
        rhs = np.zeros((n_points, self.rhs.shape[1]))
        rhs[numbers] = self.rhs
        gram = scipy.sparse.csr_array((gram.data, pairs), shape=(n_points, n_points))
        return GridMoments(gram, rhs, self.total, self.n)


def grid_moments(
    grid: Grid, X: np.ndarray, Y: np.ndarray, weights: np.ndarray | None = None
) -> GridMoments:
    """Accumulate the moments of rows that lie inside the grid, one block after the other.

    A product of two weights is a polynomial of degree 6 in the place within a cell, so on a product
    grid 7^d sums a cell hold all of W'W; additive grids multiply sparse matrices.

    Parameters
    ----------
    grid : Grid
        Where to.
    X : ndarray of shape (n, d)
        Rows, read once.
    Y : ndarray of shape (n, t)
        Targets.
    weights : ndarray of shape (n,), optional
        c_i; 1 by default.

    Notes
    -----
    O(n 7^d) on a product grid, O(n (4 d)^2) on an additive one; memory O(m 7^d) and one block.
    """
    total = (Y**2 if weights is None else weights[:, None] * Y**2).sum(0)
    if len(grid.components) > 1:
        gram, rhs = _sparse_sums(grid, X, Y, weights)
    else:
        gram, rhs = _polynomial_sums(grid.components[0], X, Y, weights)
    return GridMoments(gram, rhs, total, len(X))


def _sparse_sums(grid, X, Y, weights):
    m = grid.n_points
    gram, rhs = scipy.sparse.csr_array((m, m)), np.zeros((m, Y.shape[1]))
    step = max(1, _BLOCK_BYTES // (128 * len(grid.components)))
    for part in _blocks(len(X), step):
        W = grid.interpolate(X[part])
        left = W.T.tocsr() if weights is None else (W * weights[part][:, None]).T.tocsr()
        gram = gram + left @ W
        rhs += left @ Y[part]
    return gram, rhs


def _polynomial_sums(axes, X, Y, weights):
    d, cells = len(axes), tuple(axis.cells for axis in axes)
    n_cells = math.prod(cells)
    gram_sums, rhs_sums = np.zeros((n_cells, 7**d)), np.zeros((n_cells, Y.shape[1] * 4**d))
    for part in _blocks(len(X), max(1, _BLOCK_BYTES // (8 * 7**d))):
        cell, places = _cells(axes, X[part])
        b = len(cell)
        six = reduce(_outer, [_powers(v, 6) for v in places])
        three = reduce(_outer, [_powers(v, 3) for v in places])
        data = np.ones(b) if weights is None else weights[part]
        sums = scipy.sparse.csc_array((data, cell, np.arange(b + 1)), shape=(n_cells, b))
        gram_sums += sums @ six
        rhs_sums += sums @ _outer(Y[part], three)
    stencil = gram_stencil(gram_sums.reshape(*cells, *[7] * d))
    rhs = np.stack(
        [_spread(part.reshape(*cells, *[4] * d)) for part in
         np.moveaxis(rhs_sums.reshape(n_cells, Y.shape[1], -1), 1, 0)], axis=1
    )  # fmt: skip
    return stencil_matrix(stencil), rhs


def _cells(axes: tuple[Axis, ...], X: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The number of each row's cell, and its place in it along every axis."""
    cell, places = np.zeros(len(X), dtype=np.int64), []
    for axis, stride in zip(axes, _strides([a.cells for a in axes]), strict=True):
        first, v = axis.locate(X[:, axis.column])
        cell += first.astype(np.int64) * stride
        places.append(v)
    return cell, places


def cell_polynomials(axes: tuple[Axis, ...], X: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
    """Evaluate one polynomial a cell at the rows of X.

    Parameters
    ----------
    axes : tuple of Axis
        A product grid that covers X.
    X : ndarray of shape (n, d)
        Rows.
    coefficients : ndarray of shape (cells, k^d)
        Of the powers 0 to k - 1 of the place along each axis.
    """
    cell, places = _cells(axes, X)
    k = round(coefficients.shape[1] ** (1 / len(axes)))
    values = coefficients[cell]
    for v in places:
        # Horner, one axis at a time.
        values = values.reshape(len(X), k, values.shape[1] // k)
        total = values[:, k - 1].copy()
        for power in range(k - 2, -1, -1):
            total *= v[:, None]
            total += values[:, power]
        values = total
    return values[:, 0]


def gram_stencil(sums: np.ndarray) -> np.ndarray:
    """Sums of powers (cells..., 7...) to entries (points..., 7...) of W'W at offsets -3 to 3."""
    d = sums.ndim // 2
    cells = sums.shape[:d]
    stencil = np.zeros((*[c + 3 for c in cells], *[7] * d))
    for corner in np.ndindex(*[4] * d):
        block = sums
        for axis, p in enumerate(corner):
            block = _along(block, PRODUCTS[p], d + axis)
        where = [slice(p, p + c) for p, c in zip(corner, cells, strict=True)]
        stencil[(*where, *[slice(3 - p, 7 - p) for p in corner])] += block
    return stencil


def local_polynomials(stencil: np.ndarray) -> np.ndarray:
    """The transpose of `gram_stencil`: coefficients of w' C w within each cell, (cells, 7^d).

    Parameters
    ----------
    stencil : ndarray of shape (points..., 7...)
        Entries of C at offsets -3 to 3.
    """
    d = stencil.ndim // 2
    cells = [size - 3 for size in stencil.shape[:d]]
    out = np.zeros((*cells, *[7] * d))
    for corner in np.ndindex(*[4] * d):
        where = [slice(p, p + c) for p, c in zip(corner, cells, strict=True)]
        block = stencil[(*where, *[slice(3 - p, 7 - p) for p in corner])]
        for axis, p in enumerate(corner):
            block = _along(block, PRODUCTS[p].T, d + axis)
        out += block
    return out.reshape(-1, 7**d)


def value_polynomials(values: np.ndarray) -> np.ndarray:
    """Grid values (points...) to the coefficients of w' values within each cell, (cells, 4^d)."""
    d = values.ndim
    for axis in range(d):
        windows = np.lib.stride_tricks.sliding_window_view(values, 4, axis=axis)
        values = windows @ WEIGHTS
    return values.reshape(-1, 4**d)


def stencil_matrix(stencil: np.ndarray) -> scipy.sparse.csr_array:
    """A stencil (points..., 7...) as a sparse matrix."""
    d = stencil.ndim // 2
    shape = stencil.shape[:d]
    m = math.prod(shape)
    flat = stencil.reshape(m, -1)
    row, offset = np.nonzero(flat)
    shifts = sum(
        (np.indices([7] * d)[axis].ravel() - 3) * stride
        for axis, stride in enumerate(_strides(shape))
    )
    return scipy.sparse.csr_array((flat[row, offset], (row, row + shifts[offset])), shape=(m, m))


def offset_sums(matrix: scipy.sparse.csr_array, shape: tuple[int, ...]) -> np.ndarray:
    """Entries of a banded matrix over a product grid, summed by offset: (7, ..., 7)."""
    entries = matrix.tocoo()
    rows, cols = np.unravel_index(entries.row, shape), np.unravel_index(entries.col, shape)
    flat = np.zeros(len(entries.data), dtype=np.int64)
    for r, c in zip(rows, cols, strict=True):
        flat = flat * 7 + (c - r + 3)
    sums = np.bincount(flat, entries.data, minlength=7 ** len(shape))
    return sums.reshape([7] * len(shape))


def _spread(sums: np.ndarray) -> np.ndarray:
    """Sums of powers (cells..., 4...) to W'y, flat."""
    d = sums.ndim // 2
    cells = sums.shape[:d]
    out = np.zeros([c + 3 for c in cells])
    for axis in range(d):
        sums = _along(sums, WEIGHTS, d + axis)
    for corner in np.ndindex(*[4] * d):
        where = tuple(slice(p, p + c) for p, c in zip(corner, cells, strict=True))
        out[where] += sums[(..., *corner)]
    return out.ravel()


def _along(values: np.ndarray, matrix: np.ndarray, axis: int) -> np.ndarray:
    return np.moveaxis(np.tensordot(values, matrix, axes=(axis, 1)), -1, axis)


def _outer(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    width = left.shape[1] * right.shape[1]
    return (left[:, :, None] * right[:, None, :]).reshape(len(left), width)


def _powers(v: np.ndarray, highest: int) -> np.ndarray:
    out = np.ones((len(v), highest + 1))
    for power in range(1, highest + 1):
        np.multiply(out[:, power - 1], v, out=out[:, power])
    return out


def _strides(shape: list[int] | tuple[int, ...]) -> list[int]:
    return [math.prod(shape[k + 1 :]) for k in range(len(shape))]


def _blocks(n: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, n, step))
