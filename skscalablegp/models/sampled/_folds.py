"""Held-out rows of a relevance vector machine: the scale of its variances, and its losses."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...core import FitRun
from ...core.data import RowSource, whole_groups, with_equal_inputs
from ...core.likelihoods import Gaussian
from ._exact import exact_process
from ._posterior import fitted_scales
from ._process import ProcessPosterior
from ._relevance import Dictionary, RelevanceStepper
from ._start import random_part, rows_of

# From this number of rows on variances are scaled.
_FEWEST = 10
# Below these numbers of rows there are five folds, and two.
_FIVE, _TWO = 200, 500
# Smallest gain of an update in a fold, in log evidence per row and target.
_TOL = 1e-4
# Largest number of rows that are held out at a time.
_MOST_HELD = 20_000
# Number of rows of the exact process.
_EXACT_ROWS = 1000


class Comparison(NamedTuple):
    """Predictions of held-out rows, with those of the exact process.

    Attributes
    ----------
    scale : float
        Factor of the variances that fits the errors.
    loss : float
        Nats per row by which the exact process is better.
    doubt : float
        The standard error of the loss.
    """

    scale: float
    loss: float
    doubt: float


def compared(
    dictionary: Dictionary, source: RowSource, run: FitRun, max_iter: int
) -> Comparison | None:
    """Train without some rows, several times, and predict them; None for too few rows.

    Every fold is trained with the same kernel on the rows that it does not hold out.
    """
    n, predictions = len(source), []
    if n < _FEWEST:
        return None
    order, groups = with_equal_inputs(run.random_state.permutation(n), source.X, source.weight)
    ends = np.cumsum([len(fold) for fold in np.array_split(order, 5)]).tolist()
    folds = np.split(order, sorted({whole_groups(groups, end) for end in ends} - {n}))
    for fold in folds[: 5 if n < _FIVE else 2 if n < _TWO else 1]:
        held = np.sort(fold[:_MOST_HELD])
        rest = np.setdiff1d(np.arange(n), held)
        others = source.subset(rest)
        functions = dictionary.without(held, others)
        if len(functions) == 0:
            return None
        stepper = _trained(functions, others, run, max_iter)
        some = source.take(held)
        X, Y = some.X, some.Y
        mean, variance, _ = ProcessPosterior(*stepper.model().process()).moments(X)
        rows = rows_of(source, *random_part(source, rest, _EXACT_ROWS, run.random_state))
        process = exact_process(dictionary.kernel.kernel, Gaussian(), rows, 1)
        exact, spread, _ = process.posterior(X.shape[1], X.device).moments(X)
        nlls = _nlls((Y - exact).cpu().numpy(), spread.cpu().numpy() + process.noise)
        noise = np.full(len(held), stepper.noise)
        errors = variance.cpu().numpy(), (Y - mean).cpu().numpy()
        found = *errors, noise, nlls, source.weight[held]
        predictions.append(found)
    variance, error, noise, of_exact, counts = map(np.concatenate, zip(*predictions, strict=True))
    scale, _ = fitted_scales(variance, error, noise, counts=counts)
    behind = _nlls(error, scale * variance + noise) - of_exact
    loss = np.average(behind, weights=counts)
    spread = np.average(np.square(behind - loss), weights=counts)
    return Comparison(scale, loss, (spread / counts.sum()) ** 0.5)


def _trained(
    functions: Dictionary, source: RowSource, run: FitRun, max_iter: int
) -> RelevanceStepper:
    """The updates of one fold, until one gains little; checks the time after each."""
    stepper, score = RelevanceStepper(functions, source, run.budget), np.inf
    for _ in range(max_iter):
        stepper.step()
        run.budget.check()
        last, score = score, stepper.score()
        if score > last - _TOL:
            break
    return stepper


def _nlls(error: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Negative log densities per row and target, up to a constant."""
    return 0.5 * (np.log(variance) + np.square(error).mean(1) / variance)
