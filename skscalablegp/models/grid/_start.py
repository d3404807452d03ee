"""The start of training on a grid, which the exact process of some rows chooses."""

from __future__ import annotations

from copy import copy

import torch
from torch import Tensor

from ...core import FitRun, StageSettings, Start, chosen_start
from ...core.data import Table, random_rows
from ...kernels import Node, TorchKernel
from ._grid import Grid

# Largest number of random rows that candidates are compared on.
_ROWS = 2000


class SumOverColumns(Node):
    """The kernel of an additive grid: the sum of one kernel over rows of a single column each.

    Parameters
    ----------
    part : Node
        The kernel of one column, all other entries zero.
    columns : list of int
        The columns that vary.
    """

    label = "Sum over columns"

    def __init__(self, part: Node, columns: list[int]):
        self.part, self.parts, self.single = part, (part,), columns

    def smooth(self, theta: Tensor, X: Tensor, Z: Tensor) -> Tensor | None:
        total = None
        for column in self.single:
            alone = torch.zeros_like(X[:1])
            alone[:, column] = 1
            value = self.part.smooth(theta, X * alone, Z * alone)
            total = value if total is None or value is None else total + value
        return total

    def diag(self, theta: Tensor, X: Tensor) -> Tensor | None:
        value = self.part.diag(theta, torch.zeros_like(X))
        return None if value is None else len(self.single) * value

    def noise(self, theta: Tensor, X: Tensor) -> Tensor | None:
        return self.part.noise(theta, X)


def exact_start_for(
    kernel: TorchKernel, grid: Grid, table: Table, settings: StageSettings, run: FitRun
) -> Start:
    """The values from which training on a grid begins.

    Interpolation hardly changes the likelihood of a few rows, so that their exact process compares
    starts as it does for all other models.

    Parameters
    ----------
    kernel : TorchKernel
        Its values are one of the starts.
    grid : Grid
        On an additive grid the kernel acts on each column alone.
    table : Table
        All rows.
    settings : StageSettings
        Those of training.
    run : FitRun

    Returns
    -------
    start : Start
        The kernel's own values if nothing is trained, or by scikit-learn's optimiser.
    """
    if settings.optimizer is None or settings.follows_scikit_learn:
        return Start("the given values", kernel.theta0.numpy())
    rows = random_rows(len(table.X), _ROWS, torch.Generator().manual_seed(0)).numpy()
    if len(grid.components) > 1:
        kernel = copy(kernel)
        kernel.node = SumOverColumns(kernel.node, [axis.column for (axis,) in grid.components])
    some = table.rows(rows).centred(kernel).problem(kernel, torch.float64, run.device, keep=True)
    limit = None if settings.max_iter == "auto" else settings.max_iter
    return chosen_start(some, run, limit)
