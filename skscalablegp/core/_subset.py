"""Exact fits on a few rows: a start for several models, and a check of the table's roughness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ..linalg.gradients import ExactGradient, GPProblem
from ._edge import is_allocation
from ._exact import SMALL_TABLE
from ._leave_one_out import left_out
from ._run import FitRun
from ._stages import fit_hyperparameters
from ._starts import Start, choose_start
from ._training_plan import StageSettings, Subsets, plan_training
from ._training_run import Run
from .data import random_rows
from .training import QuasiNewton, TrainingResult

# Number of random rows of a first check, which a second one triples, and the largest number of
# steps of an exact fit for it.
FEW_ROWS, _CHECK_STEPS = 500, 50
# A start ends where a step promises less than this gain, in nats.
_START_GAIN = 0.5
# A table is rough if the mean leverage of its rows is at least the first number, if leave-one-out
# errors keep at least the second share of the variance, and if three times the rows leave at most
# the third share of that. (The rows of a table with much noise are not predicted better by more.)
_LEVERAGE, _UNEXPLAINED, _FALL = 0.97, 0.25, 0.95


def exact_start(
    problem: GPProblem,
    run: Run,
    *,
    max_iter: int,
    n_restarts: int = 0,
    subset_size: int | None = None,
    precise: bool = False,
    theta: np.ndarray | None = None,
) -> TrainingResult:
    """Hyperparameters that maximise the exact marginal likelihood of a few rows.

    A stage of the run, named "start", in float64; O(n^3) for each step.

    Parameters
    ----------
    problem : GPProblem
        The rows, and the kernel at the starting point, with its bounds.
    run : FitRun
        The run whose monitor and seeds are used.
    max_iter : int
        Maximum number of steps.
    n_restarts : int, default=0
        Number of additional starting points within the bounds.
    subset_size : int or None, default=None
        Number of random rows with which training begins; None begins with all rows.
    precise : bool, default=False
        Whether the optimum itself is wanted, rather than a start.
    theta : ndarray of shape (p,), optional
        Hyperparameters with which training begins. By default the rows of the problem choose among
        several, one of which is the kernel's own.
    """
    problem = replace(problem.to(torch.float64), keep=True)
    # If training on all rows follows, a start need not reach the end of a ridge.
    gain = None if precise else _START_GAIN
    settings = StageSettings(
        QuasiNewton(final_gain=gain),
        max_iter,
        n_restarts=n_restarts,
        subsets=Subsets.of(subset_size),
    )
    begin = problem.kernel.theta0.numpy() if theta is None else theta
    plan = plan_training(settings, True, len(problem.X))
    return fit_hyperparameters(
        problem, ExactGradient(), begin, plan, run, name="start", compare_starts=theta is None
    )


def chosen_start(
    problem: GPProblem, run: Run, max_iter: int | None = None, ask: Any = None
) -> Start:
    """The best of several starts on a few rows, one of which is the kernel's own values."""
    theta = problem.kernel.theta0.numpy()
    problem = replace(problem.to(torch.float64), keep=True)
    return choose_start(problem, theta, run, max_iter, True, ask)


def compared_start(problem: GPProblem, settings: StageSettings, run: FitRun) -> TrainingResult:
    """`chosen_start` for models that train on all rows from there, with these settings."""
    if settings.follows_scikit_learn:
        return TrainingResult.untrained(problem.kernel.theta0.numpy())
    start = chosen_start(problem, run, settings.most_steps)
    run.reports(start=start.describe())
    return TrainingResult.untrained(start.theta, tied=start.tied)


def rows_to_check(n: int, run: Run, m: int = 3 * FEW_ROWS) -> Int[Tensor, " m"]:
    """m random rows for a check, in increasing order; the generator's state does not change."""
    return random_rows(n, m, unmoved(run.generator))


def unmoved(generator: Generator) -> Generator:
    """A generator that draws the same numbers, and leaves the state of the given one as it is."""
    copy = Generator(generator.device)
    copy.set_state(generator.get_state())
    return copy


@contextmanager
def checking(run: FitRun) -> Iterator[None]:
    """A stage that may add a warning; if time, memory or arithmetic fail, only this stage ends."""
    with run.stage("check", optional=True), failing_softly():
        yield


@contextmanager
def failing_softly() -> Iterator[list[str]]:
    """Work that a fit can do without, and which ends where memory or arithmetic fail.

    What failed is in the list, in words, after the block.
    """
    failed: list[str] = []
    try:
        yield failed
    except torch.linalg.LinAlgError:
        failed.append("a matrix has no Cholesky factor")
    except FloatingPointError:
        failed.append("a number is not finite")
    except (MemoryError, RuntimeError) as error:
        if not (isinstance(error, MemoryError) or is_allocation(error)):
            raise
        failed.append("memory ran out")


def exact_check(
    some: Callable[[], GPProblem], n: int, run: FitRun
) -> tuple[GPProblem, Float[Tensor, " p"]] | None:
    """An exact fit of some rows that is not part of training, within the remaining budget.

    Callbacks do not see its steps. The result is None if the exact process replaces approximations,
    or if a budget, memory, arithmetic or an interrupt ended the fit.

    Parameters
    ----------
    some : callable
        Gives the rows, in float64.
    n : int
        Number of rows of the table.
    run : FitRun

    Returns
    -------
    problem, theta : GPProblem, Tensor of shape (p,)
        The rows, and their hyperparameters.
    """
    if n <= SMALL_TABLE or run.stopped:
        return None
    found = None
    with checking(run):
        problem = some()
        silent = run.silent(1.0)
        result = exact_start(problem, silent, max_iter=_CHECK_STEPS)
        if not silent.budget.ended:
            found = problem, torch.as_tensor(result.theta)
    return found


def warn_if_rough(
    problem: GPProblem, theta: Any, n: int, run: FitRun, unexplained: float = math.inf
) -> None:
    """Warn if the target is too rough for a subset or a low rank to stand for the table.

    If nearly every row of a subset is a parameter of its own, although noise does not explain the
    leave-one-out errors, the exact process gains from each further row. An approximation by
    fewer functions than rows, or by parts of the table, loses that.

    Parameters
    ----------
    problem : GPProblem
        The rows of `rows_to_check`, in float64.
    theta : array-like of shape (p,)
        Hyperparameters from an exact fit on some hundred rows.
    n : int
        Number of rows of the table. Nothing is checked if the exact process replaces
        approximations.
    run : FitRun
    unexplained : float, default=inf
        Share of the variance of held-out rows that the model itself does not explain, if it is
        known. There is no warning if these rows alone leave more unexplained: the model has then
        learned more than their kernel can express.
    """
    if n <= SMALL_TABLE or run.stopped:
        return
    theta = torch.as_tensor(theta)
    some = problem.subset(torch.arange(0, len(problem.X), 3, device=problem.X.device))
    with checking(run):
        few = left_out(some, theta)
        if few.leverage < _LEVERAGE or few.unexplained < _UNEXPLAINED:
            return
        more = left_out(problem, theta).unexplained
        if more > min(_FALL * few.unexplained, unexplained):
            return
        run.advise_other_model(
            f"the target is too rough for an approximation. An exact fit of {len(some.X)} random "
            f"rows has almost as many effective parameters as rows (mean leverage "
            f"{few.leverage:.2f}), and its leave-one-out predictions explain only "
            f"{1 - few.unexplained:.0%} of the variance. Use IterativeGPRegressor, which is exact, "
            "or NNGPRegressor on a table too large for it."
        )
