"""The exact process of tables so small that an approximation of it would cost more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ..linalg.gradients import ExactGradient, GPProblem
from ._run import FitRun
from ._stages import StageSettings, train_or_report

# Rows up to which models that only approximate the exact process fit it instead, where nothing was
# asked of the approximation: training takes some ten seconds of one core at most, about what the
# approximations take, and their intervals are not as good.
SMALL_TABLE = 2000
# Rows from which training begins with a part of them.
_START_ROWS = 600


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
    settings = replace(settings, subset_size=start_rows(n))
    result = train_or_report(problem, ExactGradient(), settings, run)
    theta = torch.as_tensor(result.theta)
    jitter = run.finish("factor", lambda: keep(run.estimator, theta))
    run.ended(result.stop_reason, n_iter=result.n_iter, planned=planned or result.planned)
    run.reports(jitter=jitter, summary=f"the exact process of {n} rows, in float64 on {run.device}")
