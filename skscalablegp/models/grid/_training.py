"""From a table to the problem of training on a grid, and to the sums that a model keeps."""

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
    """A table on a grid, for training and for the fitted model.

    Attributes
    ----------
    features : GridFeatures or None
        The features that replace the columns.
    problem : GridProblem
        The rows that train the hyperparameters.
    rows : Rows
        All rows.
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
        """Read the rows of a table, or of their features from a network.

        Parameters
        ----------
        table : Table
        grid : Grid
        kernel : kernel instance or None
            The user's, or the default one.
        features : GridFeatures or None
        held : ndarray of bool or None
            The rows that a network has not seen. They alone train the hyperparameters, because the
            network fits the others too well to show their noise.
        budget : float or None
            Bytes that the grid's covariance may take.
        priors : dict or None
            Priors of hyperparameters.
        probes : Generator or None
            Generator of random vectors over the rows, for ``solver="cg"``.
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
    """The moments of all or of chosen rows. Rows of unequal noise are kept during training."""
    X, Y, known = table.X, table.targets, table.noise
    if chosen is not None:
        X, Y, known = X[chosen], Y[chosen], known[chosen]
    if table.noise.min() < table.noise.max():
        return NoiseByRow(kernel.grid, X, Y, known)
    return CommonNoise(grid_moments(kernel.grid, X, Y), kernel.grid, float(known[0]))
