"""Rounds of stochastic steps, which reduce a dictionary that is too large for full batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ...core import FitRun
from ...core.likelihoods import Gaussian
from ._fit import Fit
from ._noise import NoiseAtRows
from ._plan import RelevancePlan, functions_of_round
from ._relevance import Dictionary, RelevanceStepper
from ._steps import make_stepper

# Largest number of rounds.
_ROUNDS = 12
# Number of functions in the models that callbacks receive during rounds.
_GLIMPSE = 512


class Reduced(NamedTuple):
    """A dictionary after some rounds, which took some steps."""

    dictionary: Dictionary
    n_rounds: int = 0
    n_iter: int = 0


def reduced(dictionary: Dictionary, plan: RelevancePlan, params: Any, run: FitRun) -> Reduced:
    """Reduce the dictionary until full batches can train it, or the rounds are over.

    A round that is stopped counts with the steps taken so far. If it is stopped before its first
    step, the dictionary does not change.
    """
    result = Reduced(dictionary)
    if plan.rounds is None:
        return result
    fit = Fit(dictionary.source, run, plan.rounds)
    noise = NoiseAtRows(Gaussian(), dictionary.noise, 1 / dictionary.noise)
    while len(result.dictionary) > plan.most and result.n_rounds < _ROUNDS and not run.stopped:
        before, stepper = result.dictionary, None
        rng = np.random.default_rng(run.random_state.randint(2**31 - 1))
        n_drawn = functions_of_round(params, len(before)).value
        with run.stage("support", optional=True):
            stepper = make_stepper(fit, before.scaled(fit.source.dtype), noise, rng, n_drawn)
        if stepper is None:
            break
        support = before.source.subset(fit.split[0])

        def show(model: Any, score: float, now: Any = (before, stepper, support)) -> None:
            left = now[0].after(now[1]).most_relevant(_GLIMPSE)
            model._keep(RelevanceStepper(left, now[2], run.budget).model())

        n_iter = result.n_iter + fit.drive(stepper, show).n_steps
        result = Reduced(before.after(stepper), result.n_rounds + 1, n_iter)
    return result
