"""Sums of powers of places within cells, and the stencils and polynomials computed from them."""

from __future__ import annotations

import math

import numpy as np
import scipy.sparse

from ._grid import WEIGHTS, Axis, strides

# Products of two weights, in powers up to the sixth.
PRODUCTS = np.stack([[np.convolve(a, b) for b in WEIGHTS] for a in WEIGHTS])


def cell_places(axes: tuple[Axis, ...], X: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
    """The number of each row's cell, and its place in it along every axis."""
    cell, places = np.zeros(len(X), dtype=np.int64), []
    for axis, stride in zip(axes, strides([a.cells for a in axes]), strict=True):
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
        Coefficients of the powers 0 to k - 1 of the place along each axis.
    """
    cell, places = cell_places(axes, X)
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
    """Sums of powers (cells..., 7...) to entries (points..., 7...) of W'W at offsets -3 to 3.

    The transformation is a product over the axes, so that one axis at a time is transformed.
    """
    d = sums.ndim // 2
    for axis in range(d):
        cells, shape = sums.shape[axis], list(sums.shape)
        shape[axis] += 3
        out = np.zeros(shape)
        for p, products in enumerate(PRODUCTS):
            where = [slice(None)] * (2 * d)
            where[axis], where[d + axis] = slice(p, p + cells), slice(3 - p, 7 - p)
            out[tuple(where)] += _along(sums, products, d + axis)
        sums = out
    return sums


def local_polynomials(stencil: np.ndarray) -> np.ndarray:
    """The transpose of `gram_stencil`: coefficients of w' C w within each cell, (cells, 7^d).

    Parameters
    ----------
    stencil : ndarray of shape (points..., 7...)
        Entries of C at offsets -3 to 3.
    """
    d = stencil.ndim // 2
    for axis in range(d):
        cells, out = stencil.shape[axis] - 3, 0
        for p, products in enumerate(PRODUCTS):
            where = [slice(None)] * (2 * d)
            where[axis], where[d + axis] = slice(p, p + cells), slice(3 - p, 7 - p)
            out = out + _along(stencil[tuple(where)], products.T, d + axis)
        stencil = out
    return stencil.reshape(-1, 7**d)


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
        for axis, stride in enumerate(strides(shape))
    )
    # The entries are in the order of rows and, within a row, of columns.
    pointers = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=m))])
    return scipy.sparse.csr_array((flat[row, offset], row + shifts[offset], pointers), shape=(m, m))


def offset_sums(matrix: scipy.sparse.csr_array | np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Entries of a banded matrix over a product grid, summed by offset: (7, ..., 7)."""
    entries = scipy.sparse.coo_array(matrix)
    rows, cols = np.unravel_index(entries.row, shape), np.unravel_index(entries.col, shape)
    flat = np.zeros(len(entries.data), dtype=np.int64)
    for r, c in zip(rows, cols, strict=True):
        flat = flat * 7 + (c - r + 3)
    sums = np.bincount(flat, entries.data, minlength=7 ** len(shape))
    return sums.reshape([7] * len(shape))


def spread(sums: np.ndarray) -> np.ndarray:
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
    """The matrix times the values along one axis, without a transposed copy of the values."""
    before, after = values.shape[:axis], values.shape[axis + 1 :]
    flat = values.reshape(math.prod(before), values.shape[axis], math.prod(after))
    return (matrix @ flat).reshape(*before, len(matrix), *after)
