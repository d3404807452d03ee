"""Moments of rows on a grid."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import scipy.sparse
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import Table
from ...workers import map_in_order
from ._grid import Grid, outer, powers
from ._polynomials import cell_places, gram_stencil, spread, stencil_matrix
from ._sparse import SparseMatrix

# There is a misfit if the mean squared residual, in units of the noise, exceeds this. It is usually
# below 1.
_MISFIT = 1.5
# Bytes of one block of powers or weights while rows are read. Each worker has some at a time.
_BLOCK_BYTES = 2**24
# From this number of columns on, most entries of an additive grid's Gram matrix are not zero:
# up to this number of points it is stored densely.
_DENSE_COLUMNS, _DENSE_POINTS = 40, 8000


@dataclass(frozen=True, eq=False)
class GridMoments:
    """Sums over rows that determine a regression on a grid, whose size does not depend on n.

    With weights c_i they are ``gram = W' C W``, ``rhs = W' C Y`` and ``total = sum c_i y_i^2``, one
    for each target. What merged rows leave out of these squares is divided evenly between the
    targets, because only the sum of ``total`` is used.

    Attributes
    ----------
    gram : csr_array or ndarray of shape (m, m)
        Dense on additive grids of many columns, of which every two share entries.
    rhs : ndarray of shape (m, t)
    total : ndarray of shape (t,)
    n : int or float
        Number of rows, or the sum of their counts.
    """

    gram: scipy.sparse.csr_array | np.ndarray
    rhs: np.ndarray
    total: np.ndarray
    n: int | float

    def __post_init__(self) -> None:
        if scipy.sparse.issparse(self.gram):
            # Sorted entries, or a product that wants them so would change a fitted model.
            self.gram.sum_duplicates()

    def __add__(self, other: GridMoments) -> GridMoments:
        return GridMoments(
            self.gram + other.gram, self.rhs + other.rhs, self.total + other.total, self.n + other.n
        )

    def scaled(self, factor: float) -> GridMoments:
        """The moments with every weight multiplied."""
        return GridMoments(self.gram * factor, self.rhs * factor, self.total * factor, self.n)

    def moved(self, numbers: np.ndarray, n_points: int) -> GridMoments:
        """The moments on a grid in which point i has the number ``numbers[i]``."""
        gram = scipy.sparse.coo_array(self.gram)
        pairs = numbers[gram.row], numbers[gram.col]
        rhs = np.zeros((n_points, self.rhs.shape[1]))
        rhs[numbers] = self.rhs
        moved = scipy.sparse.csr_array((gram.data, pairs), shape=(n_points, n_points))
        gram = moved.toarray() if isinstance(self.gram, np.ndarray) else moved
        return GridMoments(gram, rhs, self.total, self.n)


@dataclass(frozen=True, eq=False)
class NoisyMoments:
    """Moments of the rows under their noise variances D, on the device of the grid.

    Attributes
    ----------
    gram : SparseMatrix
        Here and below, moments with weights 1 / D.
    rhs : Tensor of shape (m, t)
    total : float
        The sum over rows and targets.
    n : int or float
        Number of rows, or the sum of their counts.
    second_gram : SparseMatrix or None
        Here and below, moments with weights 1 / D^2; None if D is constant.
    second_rhs : Tensor of shape (m, t)
    second_total : float
    sums : list of Tensor
        `offset_sums` of each component's block of the gram.
    log_det : float
        Sum of log D.
    inverse : float
        Sum of 1 / D.
    """

    gram: SparseMatrix
    rhs: Float[Tensor, "m t"]
    total: float
    n: int | float
    second_gram: SparseMatrix | None
    second_rhs: Float[Tensor, "m t"]
    second_total: float
    sums: list[Tensor]
    log_det: float
    inverse: float

    @classmethod
    def of(
        cls,
        first: GridMoments,
        second: GridMoments,
        sums: list[np.ndarray],
        log_det: float,
        inverse: float,
        device: torch.device,
    ) -> NoisyMoments:
        """Moments with weights 1 / D and 1 / D^2, which are sent to a device."""

        def sent(a: np.ndarray) -> Tensor:
            return torch.as_tensor(a).to(device, non_blocking=True)

        gram = SparseMatrix(first.gram, device)
        again = gram if second.gram is first.gram else SparseMatrix(second.gram, device)
        ones = gram, sent(first.rhs), float(first.total.sum()), first.n
        twos = again, sent(second.rhs), float(second.total.sum())
        return cls(*ones, *twos, list(map(sent, sums)), log_det, inverse)

    def divided(self, D: float, log_det: float) -> NoisyMoments:
        """These of weights 1, divided by a noise variance that all rows have."""
        return replace(
            self,
            gram=self.gram.scaled(1 / D),
            rhs=self.rhs / D,
            total=self.total / D,
            second_gram=None,
            second_rhs=self.rhs / D**2,
            second_total=self.total / D**2,
            sums=[part / D for part in self.sums],
            log_det=log_det,
            inverse=self.n / D,
        )


def missed_sum(moments: NoisyMoments, mean: Float[Tensor, "m t"]) -> Float[Tensor, ""]:
    """The sum of squared residuals of the rows from a mean on the grid, divided by the noise."""
    product = (mean * (moments.gram @ mean)).sum() - 2 * (moments.rhs * mean).sum()
    return moments.total + product


def misfit(moments: NoisyMoments, missed: float, t: int, jitter: float) -> float:
    """Compute the mean squared residual of rows from a mean on the grid, beyond the noise.

    Parameters
    ----------
    moments : NoisyMoments
        Moments with weights 1 / D. If the harmonic mean of D is unknown (NaN), the misfit is 0.
    missed : float
        The `missed_sum` of that mean.
    t : int
        Number of targets.
    jitter : float
        The part of D that was added for numerical reasons.
    """
    D = moments.n / moments.inverse
    explained, mean_square = max(D - jitter, 0.0), missed * D / (moments.n * t)
    return mean_square - explained if mean_square > _MISFIT * explained else 0.0


def grid_moments(table: Table, grid: Grid, weights: np.ndarray | float = 1.0) -> GridMoments:
    """Accumulate the moments of rows inside the grid, block by block.

    A product of two weights is a polynomial of degree 6 in the place within a cell, so that 7^d
    sums for each cell determine W'W on a product grid. Additive grids multiply sparse matrices,
    block by block on the workers.

    Parameters
    ----------
    table : Table
        Rows, read once. The moments are those of all rows that merged ones stand for.
    grid : Grid
    weights : ndarray of shape (n,), default=1
        c_i.

    Notes
    -----
    O(n 7^d) on a product grid, O(n (4 d)^2) on an additive one; memory O(m 7^d)
    and some blocks.
    """
    X, Y = table.X, table.targets
    missing = np.sum(weights * table.within) / Y.shape[1]
    weights = weights * table.counts
    total = (weights[:, None] * Y**2).sum(0) + missing
    if len(grid.components) > 1:
        gram, rhs = _additive_sums(grid, X, Y, weights)
    else:
        gram, rhs = _polynomial_sums(grid.components[0], X, Y, weights)
    return GridMoments(gram, rhs, total, table.n_rows)


def _additive_sums(grid, X, Y, weights):
    m, n_axes = grid.n_points, len(grid.components)
    rhs = np.zeros((m, Y.shape[1]))

    def weighted(part):
        """W and W' C of some rows."""
        W, c = grid.interpolate(X[part]), weights[part]
        # A product with ones would take as long as a part of the other work.
        return W, (W * c[:, None] if (c != 1).any() else W).T.tocsr()

    if n_axes >= _DENSE_COLUMNS and m <= _DENSE_POINTS:
        # One product of dense matrices after the other: their sum is too large for several.
        gram = torch.zeros(m, m, dtype=torch.float64)
        for part in _blocks(len(X), max(1, 4 * _BLOCK_BYTES // (8 * m))):
            W, left = weighted(part)
            gram.addmm_(torch.from_numpy(left.toarray()), torch.from_numpy(W.toarray()))
            rhs += left @ Y[part]
        return gram.numpy(), rhs

    def sums(part):
        W, left = weighted(part)
        return left @ W, left @ Y[part]

    gram = scipy.sparse.csr_array((m, m))
    blocks = _blocks(len(X), max(1, _BLOCK_BYTES // (128 * n_axes)))
    for more_gram, more_rhs in map_in_order(sums, blocks):
        gram = gram + more_gram
        rhs += more_rhs
    return gram, rhs


def _polynomial_sums(axes, X, Y, weights):
    # Not shared among the workers: two of them take longer than one, and in three columns half of
    # the time goes into the stencil (benchmarks/cores.py --part moments).
    d, shape = len(axes), tuple(axis.cells for axis in axes)
    n_cells = math.prod(shape)
    gram_sums, rhs_sums = np.zeros((n_cells, 7**d)), np.zeros((n_cells, Y.shape[1] * 4**d))
    cell, places = cell_places(axes, X)
    # Rows in the order of their cells, so that a block adds to few sums.
    order = np.argsort(cell, kind="stable")
    for part in _blocks(len(X), max(1, _BLOCK_BYTES // (8 * 7**d))):
        some = order[part]
        first, last = cell[some[0]], cell[some[-1]] + 1
        six = reduce(outer, [powers(v[some], 6) for v in places])
        three = reduce(outer, [powers(v[some], 3) for v in places])
        entries = weights[some], cell[some] - first, np.arange(len(some) + 1)
        sums = scipy.sparse.csc_array(entries, shape=(last - first, len(some)))
        gram_sums[first:last] += sums @ six
        rhs_sums[first:last] += sums @ outer(Y[some], three)
    stencil = gram_stencil(gram_sums.reshape(*shape, *[7] * d))
    rhs = np.stack(
        [spread(part.reshape(*shape, *[4] * d)) for part in
         np.moveaxis(rhs_sums.reshape(n_cells, Y.shape[1], -1), 1, 0)], axis=1
    )  # fmt: skip
    return stencil_matrix(stencil), rhs


def _blocks(n: int, step: int) -> Iterator[slice]:
    return (slice(start, start + step) for start in range(0, n, step))
