"""Functions without noise: training below the default kernel's lower bound of the noise."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from .._end import End
from ..kernels import TorchKernel, compile_kernel
from ..linalg.gradients import ExactGradient, GPProblem
from ._leave_one_out import errors_without
from ._run import FitRun
from ._stages import fit_hyperparameters
from ._training_plan import StageSettings, plan_training
from .data import random_rows
from .training import TrainingResult

_NOISE = "k2__noise_level"
# Factor of the default kernel's lower bound. The standard deviation of the noise may then be 3e-4
# of the target's. A factorisation in double precision still has six digits for a thousand rows
# whose signal variance is a hundred times the target's.
_LOWER = 1e-3
# Rows for which predictions with and without the bound are compared. The bound is dropped where the
# gain of their leave-one-out density exceeds this number per row, and this many standard errors.
_COMPARED, _GAIN, _ERRORS = 1000, 0.01, 3.0
# A function with steps has a few errors of many standard deviations, for which less noise would be
# far too confident, although most rows gain. So the largest squared error without the bound, in
# units of its variance, or the mean of all, must be small. On simulated functions of one to three
# columns (150 to 1,000 rows) steps had largest ones of 20 to 600, with means of 0.7 to 1.7. Smooth
# functions and kinks had means of at most 0.3, but for one with kinks, which keeps the bound.
_LARGEST_ERROR, _MEAN_ERROR = 16.0, 0.5
# Largest number of rows whose likelihood is maximised below the bound. On larger tables this is
# done with so many random rows, and the predictions of all rows decide.
_MOST_ROWS, _SOME_ROWS = 3000, 2000
# Distance from the bound, as a ratio, at which the noise counts as being there.
_AT_BOUND = 1.01


def below_the_noise_bound(
    problem: GPProblem,
    kernel: TorchKernel,
    result: TrainingResult,
    settings: StageSettings,
    run: FitRun,
) -> tuple[TorchKernel, TrainingResult]:
    """Train on with less noise, where the default kernel's lower bound has ended its descent.

    The bound keeps subsets from interpolating their rows, and matrices regular in single precision.
    Neither counts once all rows are factorised in double precision. The likelihood of a model
    without noise can still mislead, so that the result is accepted only if predictions of rows
    without their own targets gain. O(n^3) a step, as before, but of at most 3,000 rows.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    kernel : TorchKernel
        The kernel of `result`.
    result : TrainingResult
        The end of training on all rows with exact gradients.
    settings : StageSettings
        Those of this training.
    run : FitRun

    Returns
    -------
    kernel : TorchKernel
        The kernel with the lower bound, or the given one.
    result : TrainingResult
    """
    if not _ends_at_bound(problem, kernel, result, run):
        return kernel, result
    at_bound = kernel.to_sklearn(torch.as_tensor(result.theta))
    low, high = at_bound.get_params()[_NOISE + "_bounds"]
    free = at_bound.set_params(**{_NOISE + "_bounds": (_LOWER * low, high)})
    lower = compile_kernel(free, problem.X.shape[1])
    settings = replace(settings, subsets=None, n_restarts=0)
    problem = replace(problem.to(torch.float64), kernel=lower)
    some, n = problem, len(problem.X)
    if n > _MOST_ROWS:
        generator = torch.Generator(problem.X.device).manual_seed(0)
        some = problem.random_part(random_rows(n, _SOME_ROWS, generator))
    with run.budget.may_end(True) as ending:
        more = fit_hyperparameters(
            some,
            ExactGradient(),
            result.theta,
            plan_training(settings, True, len(some.X)),
            run,
            name="below the bound of the noise",
            compare_starts=False,
        )
        gains = _gains(problem, more.theta, result.theta)
    if ending.reason is not None:
        return kernel, replace(result, stop_reason=ending.reason)
    n_iter = result.n_iter + more.n_iter
    if not gains:
        return kernel, replace(result, n_iter=n_iter)
    return lower, replace(more, n_iter=n_iter, planned=result.planned or more.planned)


def _ends_at_bound(
    problem: GPProblem, kernel: TorchKernel, result: TrainingResult, run: FitRun
) -> bool:
    """Whether training in double precision has ended at the default kernel's least noise.

    Rows with known noise, or with equal rows beside them, tell their noise themselves, and those of
    a wide table, whose length scales are tied, say too little about it.
    """
    given = run.estimator.get_params(deep=False)
    ordinary = given.get("kernel") is None and result.dtype == torch.float64
    ordinary &= not problem.rows.merged and len(problem.X) > 1
    if not ordinary or kernel.priors or result.tied is not None:
        return False
    if run.stopped or result.stop_reason is not End.CONVERGED:
        return False
    values = kernel.to_sklearn(torch.as_tensor(result.theta)).get_params()
    if _NOISE not in values or isinstance(values[_NOISE + "_bounds"], str) or not result.n_iter:
        return False
    low = values[_NOISE + "_bounds"][0]
    known = float(problem.rows.noise.max())
    return bool(values[_NOISE] < _AT_BOUND * low and known < _LOWER * low)


def _gains(problem: GPProblem, theta: np.ndarray, before: np.ndarray) -> bool:
    """Whether predictions of rows without themselves are better at `theta`, beyond random errors.

    Compared are log densities, from squared errors in units of their variances.
    """
    generator = torch.Generator(problem.X.device).manual_seed(0)
    rows, found = random_rows(len(problem.X), _COMPARED, generator), []
    try:
        for at in (before, theta):
            error, variance = errors_without(problem, torch.as_tensor(at), rows)
            squared = error.square().mean(1) / variance
            found.append((squared, -0.5 * (squared + variance.log())))
    except torch.linalg.LinAlgError:
        return False
    (_, density), (squared, more) = found
    gains = more - density
    error = float(gains.std()) / math.sqrt(len(gains))
    no_tails = float(squared.max()) <= _LARGEST_ERROR or float(squared.mean()) <= _MEAN_ERROR
    return no_tails and float(gains.mean()) > _GAIN + _ERRORS * error
