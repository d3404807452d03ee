"""Whether functions of one column each suffice."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...core import (
    FEW_ROWS,
    FitRun,
    checking,
    exact_check,
    left_out,
    rows_to_check,
    table_kernel,
)
from ...core.data import Table
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem

# A sum over columns is the wrong model if it leaves this many times the unexplained variance of an
# exact process of a few rows, which is a loss of a fifth of a nat per row.
_INTERACTIONS = 1.5


def check_interactions(
    table: Table, mean: Callable[[Tensor], Tensor], trained: bool, run: FitRun
) -> None:
    """Warn if an exact process of a few rows predicts far better than a sum over columns.

    Parameters
    ----------
    table : Table
        All rows.
    mean : callable
        The sum's predictions, in the units of the table's targets.
    trained : bool
        Whether hyperparameters were trained; without that nothing is compared.
    run : FitRun
    """
    some = table.rows(rows_to_check(len(table.X), run, FEW_ROWS).numpy())

    def problem() -> GPProblem:
        kernel = compile_kernel(table_kernel(some), some.X.shape[1])
        return some.centred(kernel).problem(kernel, torch.float64, run.device, keep=True)

    found = exact_check(problem, len(table.X), run) if trained else None
    if found is None:
        return
    few, theta = found
    with checking(run):
        exact = left_out(few, theta).unexplained
        Y, known = few.Y, few.rows
        error = Y - mean(torch.as_tensor(some.X)).to(Y)
        own = float(known.squares_of(error) / known.squares_of(Y, centred=True))
        if own > _INTERACTIONS * exact:
            run.advise_other_model(
                f"columns interact. A sum of functions of one column each leaves {own:.2g} of "
                "the target's variance unexplained, and leave-one-out predictions of an exact "
                f"process of only {len(few.Y)} rows leave {exact:.2g}. Use "
                "IterativeGPRegressor, SVGPRegressor, or feature_extractor=(64, 2)."
            )
