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
        for axis, stride in enumerate(strides(shape))
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
    return np.moveaxis(np.tensordot(values, matrix, axes=(axis, 1)), -1, axis)
