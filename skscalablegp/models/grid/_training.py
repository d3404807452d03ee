"""From a table to a trained model on a grid, and what is kept of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ...core.data import Table
from ...kernels import compile_kernel
from ._grid import Grid
from ._grid_kernel import GridKernel
from ._moments import grid_moments
from ._network import SHORTEST_FEATURE_LENGTH, GridFeatures
from ._objective import CommonNoise, GridProblem, NoiseByRow, Rows, check_rank
from ._plan import grid_default_kernel


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
        priors: dict[str, Any] | None,
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
        priors : dict or None
            Of hyperparameters.
        """
        on_grid = kernel_on_grid(kernel, table, grid, features is not None, budget, priors)
        rows = summed(on_grid, table)
        unseen, count = rows, len(table.X)
        if held is not None and held.any():
            unseen, count = summed(on_grid, table, held), int(held.sum())
        return cls(features, GridProblem.make(on_grid.kernel, on_grid, unseen, count), rows)


def kernel_on_grid(
    kernel: Any,
    table: Table,
    grid: Grid,
    on_features: bool,
    budget: float | None,
    priors: dict[str, Any] | None,
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
    compiled = compile_kernel(kernel, table.X.shape[1], priors=priors)
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
        return NoiseByRow(kernel.grid, X, Y, known)
    return CommonNoise(grid_moments(kernel.grid, X, Y), kernel.grid, float(known[0]))
