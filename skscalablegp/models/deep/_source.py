"""Rows in the units of deep kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from sklearn.gaussian_process.kernels import Kernel

from ...core import (
    FEW_ROWS,
    FitRun,
    data_scaled_kernel,
    exact_check,
    first_layer_factors,
    first_layer_rows,
    rows_to_check,
    warn_if_rough,
)
from ...core.data import RowSource, rows_before_merging, whole_groups, with_equal_inputs
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem
from ._plan import DeepPlan
from ._stepper import TrainingRows

# The default is compared with the exact process of some rows if held-out rows keep at least this
# share of their variance.
_WELL_EXPLAINED = 0.1
# Largest table, in entries, that is stored as tensors.
_RESIDENT_NUMBERS = 2**24


def exact_problem(kernel: Kernel, source: RowSource) -> GPProblem:
    """The exact process of rows in the model's units."""
    rows = source.take(slice(None))
    return GPProblem(compile_kernel(kernel, rows.X.shape[1]), rows)


def known_noise_of(source: RowSource, rows: np.ndarray) -> np.ndarray:
    """The known noise variance of some rows."""
    some = source.converted(torch.float64, torch.device("cpu")).take(rows)
    return some.noise.numpy()


def ranges(source: RowSource) -> tuple[torch.Tensor, torch.Tensor]:
    """The lowest and the highest value of each column that is not far.

    A network multiplies a far entry by weights that it has learned on others.
    """
    scaling = source.scaling
    low, high = ((end - scaling.x_mean) / scaling.x_scale for end in source.ranges())
    return torch.as_tensor(low).to(source.dtype), torch.as_tensor(high).to(source.dtype)


def resident(source: RowSource) -> RowSource:
    """Small tables become tensors; memory maps are left where they are."""
    numbers = len(source) * (source.X.shape[1] + source.Y.shape[1])
    return source.resident() if numbers <= _RESIDENT_NUMBERS else source


def split_rows(source: RowSource, plan: DeepPlan, fraction: float, run: FitRun) -> TrainingRows:
    """Training and held-out rows; no copies unless this fraction of the rows is held out."""
    if not plan.early_stopping.value:
        return TrainingRows(source, source, source.n_rows)
    count = max(1, round(fraction * len(source)))
    if count >= len(source):
        raise ValueError(
            f"validation_fraction={fraction} leaves no training row of {len(source)}: use "
            "early_stopping=False."
        )
    order = run.random_state.permutation(len(source))
    order, groups = with_equal_inputs(order, source.X, source.weight)
    # All copies of one input can only be divided.
    whole = whole_groups(groups, count)
    count = whole if whole < len(source) else count
    train, held_out = (
        resident(source.subset(np.sort(part))) for part in (order[count:], order[:count])
    )
    return TrainingRows(train, train, train.n_rows, held_out)


def first_factors(source: RowSource, run: FitRun) -> np.ndarray | None:
    """`first_layer_factors` of some rows."""
    rows = first_layer_rows(source.weight, source.X.shape[1], run)
    if rows is None:
        return None
    some = _counted(source.converted(torch.float64, torch.device("cpu")), *rows)
    rows = some.take(slice(None))
    kernel = data_scaled_kernel(rows.X.numpy(), rows.Y.numpy(), counts=some.weight)
    return first_layer_factors(exact_problem(kernel, some), len(source), run)


def _counted(source: RowSource, rows: np.ndarray, counts: np.ndarray) -> RowSource:
    """Some rows in this process, with counts of their own."""
    return replace(source.subset(rows).here(), weight=counts)


def check_roughness(unexplained: float, source: RowSource, run: FitRun) -> None:
    """Warn if the exact process of some rows predicts no worse than the network of all.

    `unexplained` is the share of held-out rows' variance that the network does not explain.
    """
    if unexplained < _WELL_EXPLAINED:
        return
    n, exact = len(source), source.converted(torch.float64)

    def some(size: int) -> RowSource:
        def draw(n: int, size: int) -> np.ndarray:
            return rows_to_check(n, run, size).numpy()

        return _counted(exact, *rows_before_merging(source.weight, size, draw))

    few = some(FEW_ROWS)
    rows = few.take(slice(None))
    kernel = data_scaled_kernel(rows.X.cpu().numpy(), rows.Y.cpu().numpy(), counts=few.weight)
    found = exact_check(lambda: exact_problem(kernel, few), n, run)
    if found is not None:
        check = exact_problem(kernel, some(3 * FEW_ROWS))
        warn_if_rough(check, found[1], n, run, unexplained)
