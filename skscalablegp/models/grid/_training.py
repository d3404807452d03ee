"""From a table to a trained model on a grid, and what is kept of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...core.data import Table
from ...kernels import compile_kernel
from ._grid import Grid
from ._grid_kernel import GridKernel
from ._moments import GridMoments, grid_moments
from ._network import SHORTEST_FEATURE_LENGTH, GridFeatures
from ._objective import (
    CommonNoise,
    FixedNoise,
    GridProblem,
    NoiseByRow,
    Rows,
    check_rank,
    noise_jitter,
)
from ._plan import grid_default_kernel


@dataclass(frozen=True, eq=False)
class KeptRows:
    """All that a fitted model keeps of its rows.

    Attributes
    ----------
    moments : GridMoments
        With weights 1, or 1 / D where rows have noise variances D of their own.
    known : float or None
        The rows' common known noise variance; None where they have their own.
    log_det : float
        Sum of log D where they have.
    jitter : float
        The largest that is in any D where they have.
    """

    moments: GridMoments
    known: float | None
    log_det: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, rows: Rows, white: float, prior: float) -> KeptRows:
        """What to keep once the white noise and the prior variance are trained."""
        if isinstance(rows, CommonNoise):
            return cls(rows.moments, rows.smallest)
        jitter = rows.jitter(white, prior)
        noisy = rows.at(white + jitter)
        return cls(noisy.first, None, noisy.log_det, jitter)

    def rows(self, grid: Grid) -> Rows:
        if self.known is None:
            return FixedNoise(self.moments, self.log_det, self.jitter)
        return CommonNoise(self.moments, grid.shapes, grid.starts, self.known)

    def moved(self, numbers: np.ndarray, grid: Grid) -> KeptRows:
        """The same on a grid in which point i has become ``numbers[i]``."""
        return replace(self, moments=self.moments.moved(numbers, grid.n_points))

    def plus(
        self,
        grid: Grid,
        X: np.ndarray,
        Y: np.ndarray,
        known: np.ndarray,
        white: float,
        prior: float,
    ) -> KeptRows:
        """With further rows, exactly, at trained variances of the white noise and the prior."""
        if self.known is not None and (known == self.known).all():
            return replace(self, moments=self.moments + grid_moments(grid, X, Y))
        old, log_det, jitter = self.moments, self.log_det, self.jitter
        if self.known is not None:
            jitter = noise_jitter(white + self.known, prior)
            D = white + self.known + jitter
            old, log_det = old.scaled(1 / D), old.n * float(np.log(D))
        new = noise_jitter(white + float(known.min()), prior)
        D = white + known + new
        added = grid_moments(grid, X, Y, 1 / D)
        log_det += float(np.log(D).sum())
        return KeptRows(old + added, None, log_det, max(jitter, new))


@dataclass(frozen=True, eq=False)
class GridFit:
    """A table on a grid: what training and the fitted model are made from.

    Attributes
    ----------
    features : GridFeatures or None
        What takes the place of the columns.
    problem : GridProblem
        Of the rows that train the hyperparameters.
    rows : Rows
        All of them.
    """

    features: GridFeatures | None
    problem: GridProblem
    rows: Rows

    @classmethod
    def make(
        cls,
        table: Table,
        grid: Grid,
        kernel: Any,
        features: GridFeatures | None,
        held: np.ndarray | None,
        budget: float | None,
    ) -> GridFit:
        """Read the rows of a table (of features, where there is a network).

        Parameters
        ----------
        table : Table
        grid : Grid
        kernel : kernel instance or None
            The user's, or the default one.
        features : GridFeatures or None
        held : ndarray of bool or None
            The rows that a network has not seen, which alone train the hyperparameters: it fits the
            others too well to learn the noise from them.
        budget : float or None
            Bytes that the grid's covariance may take.
        """
        on_grid = kernel_on_grid(kernel, table, grid, features is not None, budget)
        rows = summed(on_grid, table)
        unseen, count = rows, len(table.X)
        if held is not None and held.any():
            unseen, count = summed(on_grid, table, held), int(held.sum())
        return cls(features, GridProblem.make(on_grid.kernel, on_grid, unseen, count), rows)


def kernel_on_grid(
    kernel: Any, table: Table, grid: Grid, on_features: bool, budget: float | None
) -> GridKernel:
    """A user's kernel, or the default one, on the grid.

    Raises
    ------
    MemoryError
        Where its covariance would not fit as it is, before any row is read.
    """
    if kernel is None:
        shortest = SHORTEST_FEATURE_LENGTH if on_features else 0.0
        kernel = grid_default_kernel(table.X, table.y, grid, shortest)
    compiled = compile_kernel(kernel, table.X.shape[1])
    table.check_separable(compiled)
    on_grid = GridKernel(compiled, grid, budget)
    check_rank(on_grid, compiled.theta0)
    return on_grid


def summed(kernel: GridKernel, table: Table, chosen: np.ndarray | None = None) -> Rows:
    """The moments of (chosen) rows; rows of unequal noise are kept while training."""
    X, Y, known = table.X, table.targets, table.noise
    if chosen is not None:
        X, Y, known = X[chosen], Y[chosen], known[chosen]
    if table.noise.min() < table.noise.max():
        return NoiseByRow(kernel, X, Y, known)
    grid = kernel.grid
    return CommonNoise(grid_moments(grid, X, Y), grid.shapes, grid.starts, float(known[0]))
