"""The start of training on a grid, which the exact process of some rows chooses."""

from __future__ import annotations

from copy import copy

import numpy as np
import torch

from ...core import FitRun, StageSettings, Start, StartRows, chosen_start
from ...core.data import Table, random_rows
from ...kernels import SumOverColumns, TorchKernel
from ._grid import Grid

# Largest number of random rows that candidates are compared on.
_ROWS = 2000


def start_on_grid(
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
    n, d = table.X.shape

    def read(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        some = table.rows(rows)
        return some.X, some.targets

    random = random_rows(n, _ROWS, torch.Generator().manual_seed(0)).numpy()
    of_start = StartRows(n, d, read)
    rows, run.fast = of_start.chosen(random), of_start.fast
    if len(grid.components) > 1:
        kernel = copy(kernel)
        kernel.node = SumOverColumns(kernel.node, [axis.column for (axis,) in grid.components])
    some = table.rows(rows).centred(kernel).problem(kernel, torch.float64, run.device, keep=True)
    limit = None if settings.max_iter == "auto" else settings.max_iter
    if not run.monitor.in_stage:
        run.monitor.begin("starts")
    # Without a stage after this one, all of the time is for the start.
    return chosen_start(some, run.silent(1.0 if run.stopped else "start"), limit)
