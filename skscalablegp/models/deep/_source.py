"""Rows in the units of deep kernels."""

from __future__ import annotations

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
from ...core.data import (
    RowSource,
    have_merged,
    rows_before_merging,
    whole_groups,
    with_equal_inputs,
)
from ...kernels import compile_kernel
from ...linalg.gradients import GPProblem, Rows
from ._plan import DeepPlan
from ._stepper import TrainingRows

# The default is compared with the exact process of some rows if held-out rows keep at least this
# share of their variance.
_WELL_EXPLAINED = 0.1
# Largest table, in entries, that is stored as tensors.
_RESIDENT_NUMBERS = 2**24
# Number of rows that are stored for the exact passes of partial_fit.
KEPT_ROWS = 8192


def exact_problem(kernel: Kernel, rows: Rows) -> GPProblem:
    """The exact process of rows in the model's units."""
    return GPProblem(compile_kernel(kernel, rows.X.shape[1]), rows)


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
    some = source.converted(torch.float64, torch.device("cpu")).counted(*rows)
    kernel = data_scaled_kernel(some.X.numpy(), some.Y.numpy(), counts=some.weight.numpy())
    return first_layer_factors(exact_problem(kernel, some), len(source), run)


def check_roughness(unexplained: float, source: RowSource, run: FitRun) -> None:
    """Warn if the exact process of some rows predicts no worse than the network of all.

    `unexplained` is the share of held-out rows' variance that the network does not explain.
    """
    if unexplained < _WELL_EXPLAINED:
        return
    n, exact = len(source), source.converted(torch.float64)

    def some(size: int) -> Rows:
        def draw(n: int, size: int) -> np.ndarray:
            return rows_to_check(n, run, size).numpy()

        return exact.counted(*rows_before_merging(source.weight, size, draw))

    few = some(FEW_ROWS)
    X, Y, counts = (part.cpu().numpy() for part in (few.X, few.Y, few.weight))
    kernel = data_scaled_kernel(X, Y, counts=counts)
    found = exact_check(lambda: exact_problem(kernel, few), n, run)
    if found is not None:
        check = exact_problem(kernel, some(3 * FEW_ROWS))
        warn_if_rough(check, found[1], n, run, unexplained)


def sampled(
    kept: tuple[np.ndarray, ...] | None,
    rows: tuple[np.ndarray, ...],
    seen: int,
    random_state: np.random.RandomState,
) -> tuple[np.ndarray, ...]:
    """A uniform sample of all rows so far (reservoir sampling, Vitter 1985, algorithm R).

    Parameters
    ----------
    kept : tuple of ndarray or None
        The sample of the `seen` earlier rows.
    rows : tuple of ndarray
        Further rows: inputs, targets and known noise.
    seen : int
    random_state : RandomState
    """
    n = len(rows[0])
    if kept is None:
        kept = tuple(part[:0] for part in rows)
    room = max(0, KEPT_ROWS - len(kept[0])) if seen <= len(kept[0]) else 0
    kept = tuple(np.concatenate([a, b[:room]]) for a, b in zip(kept, rows, strict=True))
    later = np.arange(min(room, n), n)
    places = random_state.randint(0, seen + later + 1) if len(later) else later
    stays = places < len(kept[0])
    for i, place in zip(later[stays], places[stays], strict=True):
        for part, new in zip(kept, rows, strict=True):
            part[place] = new[i]
    return kept


def repeated(counts: np.ndarray, random_state: np.random.RandomState) -> np.ndarray:
    """Numbers of merged rows as often as they count: a uniform sample of the rows before merging.

    All of them, if they are whole numbers and not too many. Many rows that all count once are drawn
    without their copies.

    Parameters
    ----------
    counts : ndarray of shape (n,)
    random_state : RandomState
    """
    if counts.sum() <= KEPT_ROWS and (counts == counts.round()).all():
        return np.repeat(np.arange(len(counts)), counts.astype(int))
    if not have_merged(counts):
        return np.unique(random_state.randint(len(counts), size=KEPT_ROWS))
    size = int(min(KEPT_ROWS, max(1, round(counts.sum()))))
    return np.sort(random_state.choice(len(counts), size, p=counts / counts.sum()))
