"""From a table to a trained model on a grid, and what is kept of its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...core.data import Table
from ...kernels import compile_kernel
from ._grid import Grid
from ._grid_kernel import GridKernel
from ._moments import grid_moments
from ._network import SHORTEST_FEATURE_LENGTH, GridFeatures
from ._objective import CommonNoise, GridProblem, NoiseByRow, Rows, check_rank
from ._plan import grid_default_kernel
from ._products import RowProbes


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
        probes: torch.Generator | None = None,
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
        probes : Generator or None
            Of random vectors over the rows, where products take the place of a factor.
        """
        on_grid = kernel_on_grid(kernel, table, grid, features is not None, budget, priors)
        if probes is None:
            check_rank(on_grid, on_grid.kernel.theta0)
        rows = summed(on_grid, table)
        unseen, X, known = rows, table.X, table.noise
        if held is not None and held.any():
            unseen, X, known = summed(on_grid, table, held), X[held], known[held]
        random = None if probes is None else RowProbes(grid, X, known, probes)
        return cls(features, GridProblem.make(on_grid, unseen, len(X), random), rows)


def kernel_on_grid(
    kernel: Any,
    table: Table,
    grid: Grid,
    on_features: bool,
    budget: float | None,
    priors: dict[str, Any] | None,
) -> GridKernel:
    """A user's kernel, or the default one, on the grid."""
    if kernel is None:
        shortest = SHORTEST_FEATURE_LENGTH if on_features else 0.0
        kernel = grid_default_kernel(table.X, table.y, grid, shortest)
    compiled = compile_kernel(kernel, table.X.shape[1], priors=priors)
    table.check_separable(compiled)
    return GridKernel(compiled, grid, budget)


def summed(kernel: GridKernel, table: Table, chosen: np.ndarray | None = None) -> Rows:
    """The moments of (chosen) rows; rows of unequal noise are kept while training."""
    X, Y, known = table.X, table.targets, table.noise
    if chosen is not None:
        X, Y, known = X[chosen], Y[chosen], known[chosen]
    if table.noise.min() < table.noise.max():
        return NoiseByRow(kernel.grid, X, Y, known)
    return CommonNoise(grid_moments(kernel.grid, X, Y), kernel.grid, float(known[0]))
