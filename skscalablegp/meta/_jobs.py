"""Members and folds in joblib's processes, each of which receives the rows once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import joblib
import numpy as np
import torch
from jaxtyping import Int
from sklearn.base import clone
from torch import Tensor

from .._clock import now
from .._end import End
from ..core import FitRun, GPModel, PartRecord, reporting_only
from ..core.training import TrainingStep
from ..workers import workers
from ._comparison import FAILURES


@dataclass(frozen=True, eq=False)
class FoldFits:
    """Fits of one regressor, each without some of the rows, which it then predicts.

    Attributes
    ----------
    fresh : regressor
    X, y : ndarray of shape (n, d) and (n,)
    told : dict of ndarray of shape (n,)
        Further arguments of `fit`.
    folds : list of (ndarray, ndarray)
        Rows to fit and rows to predict.
    answer : callable
        ``answer(fitted, fits, number)`` gives the predictions of a fold.
    """

    fresh: Any
    X: np.ndarray
    y: np.ndarray
    told: dict[str, np.ndarray]
    folds: Sequence[tuple[np.ndarray, np.ndarray]]
    answer: Callable[[Any, FoldFits, int], Any]

    def __call__(self, number: int) -> tuple[Any, list[TrainingStep], str]:
        """The predictions of one fold, the steps of its fit, and how that has ended."""
        fitted, _ = self.folds[number]
        inner, steps = clone(self.fresh), []

        def hear(step: TrainingStep) -> None:
            steps.append(replace(step, preview=None))

        if isinstance(inner, GPModel):
            inner.set_params(callbacks=hear)
        told = {name: values[fitted] for name, values in self.told.items()}
        with reporting_only(evaluated=True):
            inner.fit(self.X[fitted], self.y[fitted], **told)
        status = End(inner.fit_report_.status) if isinstance(inner, GPModel) else End.COMPLETED
        return self.answer(inner, self, number), steps, status

    def some(self, numbers: Int[Tensor, " k"]) -> list[tuple[Any, list[TrainingStep], End]]:
        """`__call__` for some folds."""
        return [self(number) for number in numbers.tolist()]


@dataclass(frozen=True)
class Done:
    """The result of a part of a fit, or the error that has ended it, and its record."""

    value: Any
    error: Exception | None
    record: PartRecord
    seconds: float

    def taken(self, run: FitRun) -> Any:
        """Add the record to that of the whole fit; returns the result or raises the error."""
        run.takes(self.record)
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, eq=False)
class PartFits:
    """Independent parts of one fit, each in a run of its own.

    Attributes
    ----------
    outer : estimator
        That of the fit.
    work : callable
        A function of a module or of a class; ``work(outer, run, common, part)`` does one part.
    common : object
        What all parts need.
    parts : list
    """

    outer: Any
    work: Callable[[Any, FitRun, Any, Any], Any]
    common: Any
    parts: Sequence[Any]

    def __call__(self, number: int) -> Done:
        """The result of one part."""
        outer = copy(self.outer).set_params(n_jobs=1, verbose=0)
        begun, value, failure = now(), None, None
        with FitRun(outer).apart() as run:
            try:
                value = self.work(outer, run, self.common, self.parts[number])
            except FAILURES as error:
                failure = error
        return Done(value, failure, run.part(), now() - begun)

    def some(self, numbers: Int[Tensor, " k"]) -> list[Done]:
        """`__call__` for some parts."""
        return [self(number) for number in numbers.tolist()]


def by_jobs(fits: FoldFits, run: FitRun) -> list[tuple[Any, list[TrainingStep], End]] | None:
    """The answers of all folds; None without jobs, as `has_jobs` says."""
    n = len(fits.folds)
    return _shared(fits, n, run) if has_jobs(run, n, [fits.fresh]) else None


def parts_by_jobs(fits: PartFits, run: FitRun, inner: Sequence[Any]) -> list[Done] | None:
    """The results of all parts, in which `inner` are fitted; None without jobs."""
    n = len(fits.parts)
    return _shared(fits, n, run) if has_jobs(run, n, inner) else None


def has_jobs(run: FitRun, count: int, inner: Sequence[Any] = ()) -> bool:
    """Whether jobs share so many fits, of `inner`.

    This process makes them itself unless `n_jobs` or a context of joblib has several jobs, and
    where a time limit, a callback or a checkpoint looks at every step.
    """
    outer = run.estimator
    watched = [run.budget.limit, outer.callbacks, outer.checkpoint]
    watched += [getattr(each, "callbacks", None) for each in inner]
    if any(each is not None for each in watched):
        if outer.n_jobs not in (None, 1):
            run.ignores("n_jobs", "a time limit, a callback or a checkpoint looks at every step")
        return False
    return count > 1 and joblib.effective_n_jobs(outer.n_jobs) > 1


def _shared(fits: Any, count: int, run: FitRun) -> list[Any]:
    by = workers(fits, count, run.estimator.n_jobs, least=2, ranks=False)
    found = by.call(type(fits).some, along=[torch.arange(count)])
    return [answer for part in found for answer in part]
