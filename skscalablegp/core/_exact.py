"""Exact processes: in the place of approximations of small tables, and within time budgets."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..linalg.blocks import cholesky_
from ..linalg.gradients import ExactGradient, GPProblem
from ._run import FitRun
from ._stages import StageSettings, train_or_report
from .data import Table

# Rows up to which models that only approximate the exact process fit it instead, where nothing was
# asked of the approximation: training takes some ten seconds of one core at most, about what the
# approximations take, and their intervals are not as good.
SMALL_TABLE = 2000
# Rows from which training begins with a part of them.
_START_ROWS = 600
# Steps that training on so few rows may take: twenty length scales need more than a hundred.
_STEPS = 500
# Rows of the factorisation that is timed, and the share of the time budget by which the last one
# may exceed it.
_TIMED_ROWS, _GRACE = 1500, 0.1


def start_rows(n: int) -> int | None:
    """Rows that the exact training of n rows begins with; None for all of them."""
    return _START_ROWS if n > 1.5 * _START_ROWS else None


def train_exactly(
    problem: GPProblem,
    settings: StageSettings,
    keep: Callable[[Any, torch.Tensor], float],
    run: FitRun,
    planned: bool = False,
) -> None:
    """Hyperparameters of maximal exact likelihood, the fitted model, and the report.

    Parameters
    ----------
    problem : GPProblem
        All rows, in float64.
    settings : StageSettings
        Those of the estimator.
    keep : callable
        ``keep(model, theta)`` gives a model its fitted attributes and returns the jitter.
    run : FitRun
        Begun already.
    planned : bool, default=False
        Whether running out of steps is no news, as where no parameter of the estimator counts them.
    """
    n = len(problem.X)
    run.preview = lambda model, step: keep(model, torch.as_tensor(step.theta))
    settings = replace(settings, subset_size=start_rows(n), exact_steps=_STEPS)
    result = train_or_report(problem, ExactGradient(), settings, run)
    theta = torch.as_tensor(result.theta)
    jitter = run.finish("factor", lambda: keep(run.estimator, theta))
    run.ended(result.stop_reason, n_iter=result.n_iter, planned=planned or result.planned)
    run.reports(jitter=jitter, summary=f"the exact process of {n} rows, in float64 on {run.device}")


class FactorBudget:
    """The part of a time budget that the factorisation behind predictions needs.

    Where a budget is set, the time of all rows is estimated from that of a few, as a sum of a
    square (the matrix) and a cube (its factor), and training has to leave it.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    run : FitRun
    """

    def __init__(self, problem: GPProblem, run: FitRun):
        self._run, self._square, self._cube = run, 0.0, 0.0
        monitor = run.monitor
        if monitor.max_seconds is None or len(problem.X) <= _TIMED_ROWS:
            return
        few = problem.subset(torch.arange(_TIMED_ROWS)).to(torch.float64)
        begun = monitor.seconds
        H = few.operator(few.kernel.theta0).to_dense()
        filled = monitor.seconds
        H.diagonal().mul_(2)
        cholesky_(H)
        self._square = (filled - begun) / _TIMED_ROWS**2
        self._cube = (monitor.seconds - filled) / _TIMED_ROWS**3
        monitor.reserve(self._seconds(len(problem.X)))

    def _seconds(self, n: int) -> float:
        return self._square * n**2 + self._cube * n**3

    def affordable(self, table: Table) -> Table:
        """The table, or as many of its rows, drawn at random, as there is time to factorise."""
        run, n = self._run, len(table.X)
        need, budget = self._seconds(n), run.monitor.max_seconds
        if budget is None:
            return table
        left = max(0.0, budget - run.monitor.seconds) + _GRACE * budget
        if need <= left:
            return table
        m = max(_TIMED_ROWS, bisect(range(n), left, key=self._seconds) - 1)
        run.monitor.end("max_seconds")
        run.warn(
            f"Predictions come from {m:,} random rows, since to factorise all {n:,} would have "
            f"taken about {need:.0f} s."
        )
        return table.rows(run.random_state.permutation(n)[:m])
