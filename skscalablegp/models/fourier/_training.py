"""What both regressors do before and while they train on all rows."""

from __future__ import annotations

from typing import Any

import torch

from ..._validation import available_memory
from ...core import FitRun, StageSettings, fit_hyperparameters, report_training, report_untrained
from ...core.training import TrainingResult
from ...features import frequencies_per_product, sample_prior_features
from ...kernels import NoSpectralDensity, TorchKernel
from ...linalg.gradients import GPProblem, GradientEstimator, GradientState
from ._collapsed import BATCH_ROWS

# What has no effect where nothing is trained.
_OF_SERIES = ("min_components", "component_step", "truncation")


def checked_pairs(run: FitRun, name: str, kernel: TorchKernel, m: int, n: int) -> int:
    """Frequencies of each product when m functions are shared among all of them.

    Refuses kernels without random features, and m x m matrices that do not fit; `name` is the
    parameter that m comes from.
    """
    try:
        one = sample_prior_features(kernel, kernel.n_features, 1, torch.Generator())
    except NoSpectralDensity as error:
        raise NoSpectralDensity(
            f"{error.cause}, so it has no random features: use a sum or product of RBF, Matern, "
            "RationalQuadratic, DotProduct and constants, or IterativeGPRegressor."
        ) from None
    pairs = frequencies_per_product(kernel, m)
    columns = sum(b.n_features * (pairs if b.frequencies else 1) for b in one.blocks)
    need = 8 * (4 * columns**2 + 4 * columns * min(n, BATCH_ROWS))
    known = (run.memory_budget, available_memory(run.device))
    room = min((bound for bound in known if bound is not None), default=need)
    fits = max(2, int(m * min(0.5, (room / need) ** 0.5 / 2)))
    run.check_memory(
        need,
        f"{name}={m} ({columns} columns, with four {columns} x {columns} matrices)",
        f"use fewer, for example {name}={fits}",
    )
    return pairs


def report_dtype(run: FitRun) -> None:
    """Everything here is computed in double precision, whatever was asked for."""
    run.chose("dtype", "float64", "sums of many products of features need all their digits")
    if run.estimator.dtype == "float32":
        run.ignores("dtype", "random features are computed in float64")


def train_on_all_rows(
    estimator: Any, problem: GPProblem, gradient: GradientEstimator, run: FitRun, n_restarts: int
) -> TrainingResult:
    """The hyperparameters from the kernel's own start, with everything reported."""
    theta, n = problem.kernel.theta0.numpy(), len(problem.X)
    if estimator.optimizer is None or problem.kernel.n_params == 0:
        why = "optimizer=None keeps the hyperparameters"
        if problem.kernel.n_params == 0:
            why = "all hyperparameters are fixed"
            run.ignores("optimizer", why)
        report_untrained(run, why)
        for name in _OF_SERIES:
            run.ignores(name, why)
        return TrainingResult(theta, float("nan"), GradientState(), 0, "converged")
    settings = StageSettings(
        optimizer=estimator.optimizer,
        learning_rate=estimator.learning_rate,
        max_iter=estimator.max_iter,
        n_restarts=n_restarts,
        n_iter_no_change=estimator.n_iter_no_change,
    )
    report_training(settings, gradient.exact, n, run)
    return fit_hyperparameters(problem, gradient, theta, settings, run)
