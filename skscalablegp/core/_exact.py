"""Exact Gaussian processes for small tables in place of approximations, and time budgets."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from .._end import End
from ..kernels import TorchKernel
from ..linalg.blocks import cholesky_
from ..linalg.gradients import ExactGradient, GPProblem
from ._exact_process import ExactProcess
from ._noise_floor import below_the_noise_bound
from ._plan import MemoryNeed
from ._run import FitRun
from ._stages import train_or_report
from ._training_plan import StageSettings, Subsets
from .data import Table
from .training import Budget

# With default settings, approximate models fit the exact process up to this number of rows. That
# takes about ten seconds of one core at most, as approximations do, and intervals are better.
SMALL_TABLE = 2000
# Larger tables begin training with a random subset of this many rows, or with so many for each
# column, up to a limit: each column has a length scale, which the rows determine.
_START_ROWS, _ROWS_A_COLUMN, _MOST_START_ROWS = 600, 30, 1500
# Maximum number of steps of exact training: twenty length scales need more than a hundred.
MOST_STEPS = 500
# Number of rows of the factorisation whose time is measured, and the fraction of the time budget by
# which the final factorisation may exceed it.
_TIMED_ROWS, _GRACE = 1500, 0.1
# Seconds of the factorisation after an interrupt.
_AFTER_INTERRUPT = 1.0

T = TypeVar("T")


def small_table_rows(params: Any, most: int = SMALL_TABLE) -> int:
    """Up to how many rows the exact process takes the place of a method, by its parameters."""
    return most if params.small_table == "exact" else 0


def instead(n: int, why: str, remedy: str = "use small_table='method'") -> dict[str, Any]:
    """The fields of a plan whose method the exact process of n rows replaces."""
    need = MemoryNeed(24 * n * n, f"An exact fit of {n} rows", remedy)
    return {"exact_instead": why, "needs": (need,)}


def rows_for(d: int, least: int = _START_ROWS) -> int:
    """Number of rows that determine the length scales of d columns, at least `least`."""
    return max(least, min(_ROWS_A_COLUMN * d, _MOST_START_ROWS))


def start_rows(n: int, d: int) -> int | None:
    """Number of rows with which exact training on n rows of d columns begins; None for all."""
    rows = rows_for(d)
    return rows if n > 1.5 * rows else None


def fit_exactly(
    table: Table,
    kernel: TorchKernel,
    settings: StageSettings,
    run: FitRun,
    planned: bool = False,
) -> None:
    """Fit the exact process, which then answers in place of the estimator's method.

    Parameters
    ----------
    table : Table
        All rows, in the units of the kernel.
    kernel : TorchKernel
        The kernel with which training begins.
    settings : StageSettings
        The estimator's settings of training.
    run : FitRun
        A run after `FitRun.begin`.
    planned : bool, default=False
        Whether to give no warning when the steps run out, for estimators without a parameter that
        limits them.
    """
    n, problem = len(table.X), table.problem(kernel, torch.float64, run.device, keep=True)

    def keep(model: Any, theta: torch.Tensor) -> float:
        return model._keep_exactly(ExactProcess(table, kernel.to_sklearn(theta))).jitter

    run.preview = lambda model, step: keep(model, torch.as_tensor(step.theta))
    subsets = Subsets.of(start_rows(n, problem.X.shape[1]))
    settings = replace(settings, subsets=subsets, exact_steps=MOST_STEPS)
    result = train_or_report(problem, ExactGradient(), settings, run)
    kernel, result = below_the_noise_bound(problem, kernel, result, settings, run)
    theta = torch.as_tensor(result.theta)
    jitter = run.finish("factor", lambda: keep(run.estimator, theta))
    run.ended(result.stop_reason, n_iter=result.n_iter, planned=planned or result.planned)
    run.reports(jitter=jitter, summary=f"{exact_summary(n)}, in float64 on {problem.X.device}")


def exact_summary(n: int) -> str:
    """How the report names the exact process of n rows."""
    return f"the exact process of {n} rows (small_table='method' selects the method instead)"


class FactorBudget:
    """The time that the factorisation for predictions may take: a part of the budget, or little.

    If a budget is set, a factorisation of a few rows is timed. The time for all rows is
    extrapolated as a quadratic term (filling the matrix) plus a cubic one (factorising it), and is
    reserved. After an interrupt the factorisation may take about a second.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    run : FitRun
    """

    def __init__(self, problem: GPProblem, run: FitRun):
        self._problem, self._run, self._square, self._cube = problem, run, 0.0, 0.0
        if run.budget.limit is not None and len(problem.X) > _TIMED_ROWS:
            self._measure()
            run.budget.reserve(self._seconds(len(problem.X)))

    def _measure(self) -> None:
        budget = self._run.budget
        few = self._problem.subset(torch.arange(_TIMED_ROWS)).to(torch.float64)
        begun = budget.seconds
        H = few.operator(few.kernel.theta0).to_dense()
        filled = budget.seconds
        H.diagonal().mul_(2)
        cholesky_(H)
        self._square = (filled - begun) / _TIMED_ROWS**2
        self._cube = (budget.seconds - filled) / _TIMED_ROWS**3

    def _seconds(self, n: int) -> float:
        return self._square * n**2 + self._cube * n**3

    def finish(
        self, name: str, table: Table, keep: Callable[[Table], None], part: Callable[[], T]
    ) -> T:
        """The final part of a fit, as by `FitRun.finish`, after keeping the rows for it.

        Parameters
        ----------
        name : str
            Name of the stage.
        table : Table
            All rows.
        keep : callable
            Called with the table, or with as many random rows of it as there is time for.
        part : callable
            The factorisation of the rows that were kept.
        """
        message = ""

        def final() -> T:
            nonlocal message
            some, message = self._affordable(table)
            keep(some)
            return part()

        result = self._run.finish(name, final)
        if message:
            self._run.warn(message)
        return result

    def _affordable(self, table: Table) -> tuple[Table, str]:
        """The rows that can be factorised in the remaining time, and a warning if it is not all."""
        run, n, left = self._run, len(table.X), math.inf
        if n <= _TIMED_ROWS:
            return table, ""
        remedy, budget = "raise max_seconds to use all rows", run.budget.limit
        if budget is not None:
            left = max(0.0, budget - run.budget.seconds) + _GRACE * budget
        if run.budget.ended is End.INTERRUPTED:
            if self._cube == 0:
                self._measure()
            left = min(left, _AFTER_INTERRUPT)
            remedy = "fit again, or end training by a callback, to use all rows"
        m = Budget(left).affordable(self._seconds, range(_TIMED_ROWS, n + 1))
        if m == n:
            return table, ""
        run.budget.end(End.MAX_SECONDS)
        return table.rows(run.random_state.permutation(n)[:m]), (
            f"Predictions are based on {m:,} random rows, since factorising all {n:,} would have "
            f"taken about {self._seconds(n):.0f} s: {remedy}."
        )
