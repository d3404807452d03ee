"""Where a network begins: factors of its first weights, from simpler models of some rows."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float

from ..linalg.gradients import GPProblem
from ._signal import FEWEST_ROWS, Signal, asked_once
from ._subset import chosen_start
from ._training_run import Run
from .data import random_rows, rows_before_merging

# Number of random rows that the models see.
_ROWS = 2000
# Numbers of columns for which a network is told which ones matter.
_FEWEST_COLUMNS, _MOST_COLUMNS = 3, 500
# Rows for each column from which on simple models alone say which columns matter. For fewer, the
# square of the number in these units is their share. Length scales are better where few columns of
# many matter, and worse where there are rows enough to learn from columns of little relevance. With
# length scales and with models the NLPD of held-out training rows is 0.19 and 0.57 at 80 rows a
# column of which three of 50 matter, -0.33 and -0.16 at 67 rows, -1.22 and -1.29 on pol (442 rows),
# 0.32 and 0.33 on elevators (719), and -1.05 and -0.99 on bike (802). Two fits of bike with the
# same weights, but other numbers of steps, differ by 0.13 (benchmarks/first_layer.py).
_MANY_ROWS = 500
# The share of simple models that is the same for all columns.
_EQUAL = 0.1
# Seconds of a time budget below which nothing is fitted.
_SECONDS = 1.0


def first_layer_rows(counts: np.ndarray, d: int, run: Run) -> tuple[np.ndarray, np.ndarray] | None:
    """The rows that say which of d columns matter to a network; they do not depend on the seed.

    `counts` are those of rows that were merged with rows of the same target only.

    Returns
    -------
    rows, counts : ndarray of shape (m,)
        As `rows_before_merging` gives them. None for fewer than 100 rows, for fewer than three or
        more than 500 columns, and if less than a second of a time budget is left.
    """
    if len(counts) < FEWEST_ROWS or not _FEWEST_COLUMNS <= d <= _MOST_COLUMNS:
        return None
    if not run.budget.allows(_SECONDS):
        return None
    generator = torch.Generator().manual_seed(0)
    return rows_before_merging(
        counts, _ROWS, lambda n, size: random_rows(n, size, generator).numpy()
    )


def first_layer_factors(problem: GPProblem, n: int, run: Run) -> np.ndarray | None:
    """Factors of a network's first weights, by which columns matter to simpler models.

    Without them a network of few rows finds two of forty columns late, or fits the noise in the
    others first. For few rows a column they are the inverse length scales of the start that an
    exact process of these rows has, and for many rows what columns tell boosted trees or a linear
    model. The squares have a mean of 1, as equal factors of 1 have.

    Parameters
    ----------
    problem : GPProblem
        Rows of `first_layer_rows` in the network's units, with the default kernel, in float64.
    n : int
        Number of rows of the table.
    run : Run

    Returns
    -------
    factors : ndarray of shape (d,) or None
        None if neither model says anything.
    """
    ask, d, X, Y = asked_once(), problem.X.shape[1], problem.X, problem.Y
    share, process = min(1.0, n / (_MANY_ROWS * d)) ** 2, None
    run.monitor.begin("starts")
    if share < 1:
        process = _of_process(problem, run, ask)
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(0)).to(X.device)
    models = None
    if process is None or run.budget.allows(_SECONDS):
        models = _of_models(ask(X[order].cpu().numpy(), Y[order].cpu().numpy()))
    run.monitor.close()
    if process is None or models is None:
        squares = models if process is None else process
    else:
        squares = (1 - share) * process + share * models
    return None if squares is None else np.sqrt(squares)


def _of_process(
    problem: GPProblem, run: Run, ask: Callable[..., list[Signal]]
) -> Float[np.ndarray, " d"] | None:
    """Squares of inverse length scales; None if training would begin at those of the kernel."""
    start = chosen_start(problem, run.silent("start"), None, ask)
    if np.array_equal(start.theta, problem.kernel.theta0.numpy()):
        return None
    kernel = problem.kernel.to_sklearn(torch.as_tensor(start.theta))
    squares = 1 / np.square(kernel.k1.k2.length_scale)
    return squares / squares.mean()


def _of_models(signals: list[Signal]) -> Float[np.ndarray, " d"] | None:
    """The relevance of columns to the best of several models; None if there is no clear signal."""
    best = next((signal for signal in signals if signal.clear), None)
    if best is None or best.relevance.sum() == 0:
        return None
    return (1 - _EQUAL) * best.relevance / best.relevance.mean() + _EQUAL
