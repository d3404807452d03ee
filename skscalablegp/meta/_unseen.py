"""Regressors and their predictions of rows that they have not seen, within a time budget."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import KFold, ShuffleSplit
from sklearn.pipeline import Pipeline

from .._end import End
from ..core import FitRun, GPPredictionBase, LeftOut
from ..core.training import Budget
from ._below import fit_below, told_noise, with_kernel
from ._comparison import FAILURES, first_line
from ._jobs import FoldFits, by_jobs
from ._scaled import Scaled

# Cross-fitting with this number of folds replaces one held-out part that would have fewer rows.
_FEWEST_HELD_OUT, _FOLDS = 2000, 5
# Number of rows on which the time of a closed-form leave-one-out prediction is measured. They are
# predicted however little time there is.
_TIMED = 200
# A fit begins only if this multiple of its expected time is left.
_MARGIN = 1.3
# Statuses of fits that were not cut short.

Preview = Callable[[Any, Any], None] | None


@dataclass(frozen=True, eq=False)
class Trial:
    """A fitted regressor, and its predictions of rows that it has not seen.

    Attributes
    ----------
    fresh, inner : regressor
        Before and after the fit.
    left : LeftOut
    status, because : str
        How the fit has ended.
    cut : bool
        Whether time, a callback or an interrupt has cut the fit short.
    whole : bool
        Whether it was a fit to all rows.
    seconds : float
        Time of the fit.
    own : bool
        Whether the fitted regressor itself has left the rows out.
    """

    fresh: Any
    inner: Any
    left: LeftOut
    status: End
    because: str
    cut: bool
    whole: bool
    seconds: float
    own: bool = False


class Unseen:
    """The rows of a fit, and the regressors that predict some of them without having seen them.

    Parameters
    ----------
    run : FitRun
    X, y : ndarray of shape (n, d) and (n,)
    known : ndarray of shape (n,) or None
        Known noise variances.
    way : {"auto", "leave_one_out", "held_out"} or int
        "auto" takes a closed form if there is one, and folds if fewer than 2,000 rows would be held
        out. An int is a number of folds.
    held : int
        Number of rows to hold out.
    most : int
        Largest number of rows that are left out in closed form.
    features : bool, default=True
        Whether they get means of folds, from which a noise model may learn.
    within : bool, default=False
        Whether the fits of these folds leave out their own rows, too, so that noise models that
        have not seen a fold can be evaluated on it.
    common : bool, default=True
        Whether all regressors are evaluated on the same rows, also one with held-out rows of its
        own.

    Attributes
    ----------
    way : str or int
        What is done without a closed form.
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        run: FitRun,
        X: np.ndarray,
        y: np.ndarray,
        known: np.ndarray | None,
        way: int | str,
        held: int,
        most: int,
        features: bool = True,
        common: bool = True,
        within: bool = False,
    ):
        run.check_memory(2 * X.nbytes, f"Two copies of {len(X):,} rows", "fit fewer rows")
        self.run, self.X, self.y, self.known, n = run, X, y, known, len(X)
        self._features, self._common, self._within = features, common, within
        self._closed, self._required = way in ("auto", "leave_one_out"), way == "leave_one_out"
        if self._closed:
            way = min(_FOLDS, n) if held < _FEWEST_HELD_OUT else "held_out"
        self.way = way
        seed, self.folds = int(run.random_state.randint(2**31 - 1)), []
        if n > 1 and isinstance(way, str):
            self.folds = list(ShuffleSplit(1, test_size=max(held, 1), random_state=seed).split(X))
        elif n > 1:
            self.folds = list(KFold(min(way, n), shuffle=True, random_state=seed).split(X))
        # The rows of the first fold come first, so that parts of folds and of closed forms overlap.
        mixed = [run.random_state.permutation(new) for _, new in self.folds]
        self._order = np.concatenate(mixed)[:most] if n > 1 else np.arange(n)

    def but(self, **changes: Any) -> Unseen:
        """The same rows and folds with other targets `y`, or with other noise `known`."""
        other = copy(self)
        vars(other).update(changes)
        return other

    def told(self, fresh: Any, rows: Any = slice(None)) -> dict[str, np.ndarray]:
        """Arguments that pass the known noise of some rows to a regressor."""
        return told_noise(fresh, None if self.known is None else self.known[rows])

    def tried(self, fresh: Any, share: Budget, preview: Preview, advised: bool = True) -> Trial:
        """A fitted regressor that is evaluated on rows which it has not seen.

        A regressor that leaves rows out in closed form, or has held-out rows of its own, is fitted
        to all rows. Another one is fitted without the first fold, which evaluates it; then to the
        other folds, as far as there is time for these fits and for one to all rows.

        Parameters
        ----------
        fresh : regressor
        share : Budget
            Its time.
        preview
            As in `fit_below`.
        advised : bool, default=True
            As in `fit_below`, for a fit to all rows.

        Raises
        ------
        ArithmeticError
            For predictions that are not finite.
        ValueError
            If leave-one-out predictions are required, and there is no closed form.
        """
        whole, how = None, leaves_out(fresh)
        if self._common and how == "held_out":
            how = ""
        if self._closed and (how or self._required or not self.folds):
            # Rows that are held out by the regressor itself need no further time.
            part = share if how == "held_out" else share.share("fit")
            whole = self.whole(fresh, part, preview, advised)
            rest = share.at_least("held-out rows")
            left = self.run.budget.completed(lambda: self._left_out(whole, rest, preview))
            if left is not None and not (self._common and left.how == "held_out"):
                return replace(whole, left=_finite(left), own=True)
        if self._required:
            raise ValueError(
                f"{_name(fresh)} has no closed form for leave-one-out predictions, "
                "which residuals='leave_one_out' needs: use residuals='auto'."
            )
        if not self.folds:
            return whole or self.whole(fresh, share, preview, advised)
        found = self._by_folds(fresh, share, preview)
        if whole is None or whole.cut or found.cut:
            return found
        return replace(whole, left=found.left)

    def whole(self, fresh: Any, share: Budget | None, preview: Preview, advised: bool) -> Trial:
        """A fit to all rows, without predictions of held-out rows so far."""
        found = self._fitted(fresh, slice(None), share, preview, advised, False)
        return replace(found, whole=True)

    def _fitted(
        self,
        fresh: Any,
        rows: Any,
        share: Budget | None,
        preview: Preview,
        advised: bool,
        quiet: bool,
    ) -> Trial:
        """A fit to some rows."""
        inner, run, told = clone(fresh), self.run, self.told(fresh, rows)
        begun, limit = run.budget.seconds, (share or run.budget).left
        X, y = self.X[rows], self.y[rows]
        status, because = fit_below(inner, run, X, y, preview, share, advised, quiet, **told)
        run.preview = None
        # A regressor that keeps to a smaller budget of its own was not cut.
        own = getattr(fresh, "max_seconds", None)
        late = status is End.MAX_SECONDS and limit is not None and (own is None or own >= limit)
        nothing = LeftOut(np.empty(0, int), np.empty(0), None, "held_out")
        took = run.budget.seconds - begun
        return Trial(fresh, inner, nothing, status, because, run.stopped or late, False, took)

    def _left_out(self, whole: Trial, mine: Budget, preview: Preview) -> LeftOut | None:
        """Predictions without a further fit, with means of folds; None without a closed form.

        Under a time budget these are the first rows of the order, as many as there is time for.
        """
        run, order, fresh, scaled = self.run, self._order, whole.fresh, Scaled(whole.inner)
        noise = self.told(fresh).get("noise_variance")
        if run.stopped:
            order = order[:_TIMED]
        with run.stage("leave one out"):
            if mine.limit is not None and len(order) > _TIMED:
                budget, some = mine.share("leave one out"), np.sort(order[:_TIMED])
                took = budget.timed(lambda: scaled.left_out(self.X, self.y, noise, some))
                order = order[: max(_TIMED, int(budget.limit / took * _TIMED))]
            found = scaled.left_out(self.X, self.y, noise, np.sort(order))
        if found is None or found.how == "held_out":
            return found
        means = np.full(len(self.X), np.nan)
        # Fits at the same hyperparameters take less time than training, unless that was cut.
        cost = _MARGIN * whole.seconds * (1.0 if whole.cut else 0.5)
        with run.budget.may_end(inner=True):
            if self._features and self.folds and not run.stopped and mine.allows(cost):
                within = np.sort(order) if self._within else order[:0]
                fixed = with_kernel(fresh, whole.inner)
                again = self._by_folds(fixed, mine, preview, within)
                if not again.cut:
                    means[again.left.rows] = again.left.mean
                    found = replace(found, folds=again.left.folds)
        return replace(found, fold_mean=means[found.rows])

    def _by_folds(
        self, fresh: Any, phase: Budget, preview: Preview, within: np.ndarray | None = None
    ) -> Trial:
        """The fit without the first fold, and predictions of the folds that there is time for.

        `within` are rows that the fits leave out in closed form, too; no fit to all rows follows.
        """
        run, parts, first, several = self.run, [], None, len(self.folds)
        refits, within = within is None, np.empty(0, int) if within is None else within
        for j, (fitted, new) in enumerate(self.folds):
            if j == 1 < several and (rest := self._in_jobs(fresh, within)) is not None:
                parts += rest
                break
            if j == several:
                break
            # The model of the first fold is complete; other rows only add to its evaluation.
            with run.budget.may_end(keep=first is not None, inner=True) as end:
                trial = self._fold(fresh, fitted, new, phase, several - j, preview, within)
                parts.append(trial.left)
            if first is None:
                first = trial
                several = 1
                if not run.stopped:
                    last = len(self.X) / len(fitted) if refits else 0.0
                    costs = _MARGIN * first.seconds * (np.arange(len(self.folds)) + last)
                    several += phase.affordable(costs.__getitem__, range(len(costs)))
            elif end.reason is not None or trial.cut:
                # A fit that was cut differently is no evidence about the first one.
                del parts[j:]
                break
        return replace(first, left=_joined(parts))

    def _in_jobs(self, fresh: Any, within: np.ndarray) -> list[LeftOut] | None:
        """The predictions of all folds but the first by joblib's jobs; none if one was cut."""
        run, folds, left = self.run, self.folds[1:], []
        answer = partial(_answer, within=within)
        fits = FoldFits(fresh, self.X, self.y, self.told(fresh), folds, answer)
        with run.stage("held-out rows"), run.budget.may_end(inner=True):
            found = by_jobs(fits, run)
            if found is None:
                return None
            for answer, steps, status in found:
                for step in steps:
                    run.monitor.relay(step)
                if status not in (End.MAX_SECONDS, End.INTERRUPTED):
                    left.append(_finite(answer))
        return left if len(left) == len(folds) else []

    def _fold(self, fresh, fitted, new, phase, remaining: int, preview: Preview, within) -> Trial:
        """The fit to the rows of a fold, and its predictions of the others."""
        run = self.run
        part = phase.share("fit" if remaining == len(self.folds) else 1 / remaining)
        found = self._fitted(fresh, fitted, part, preview, False, True)
        with run.stage("held-out rows"):
            fits = FoldFits(fresh, self.X, self.y, self.told(fresh), [(fitted, new)], _answer)
            left = run.budget.completed(lambda: _answer(found.inner, fits, 0, within))
        return replace(found, left=_finite(left))

    def refitted(self, trial: Trial, preview: Preview, advised: bool = True) -> Trial:
        """The regressor fitted to all rows, if there is time; otherwise the trial unchanged.

        A fit that fails or does not end is dropped.
        """
        run, found = self.run, None
        if trial.whole or trial.cut or run.stopped:
            return trial
        if not run.budget.allows(_MARGIN * trial.seconds * len(self.X) / len(self.folds[0][0])):
            return trial
        with run.budget.may_end(inner=True):
            try:
                share = run.budget.share("all rows")
                found = self.whole(trial.fresh, share, preview, advised)
            except FAILURES as error:
                if isinstance(error, TimeoutError):
                    raise
                run.warn(f"{_name(trial.fresh)} was not fitted to all rows: {first_line(error)}.")
        run.preview = None
        if found is None or run.stopped or found.cut:
            return trial
        return replace(found, left=trial.left)


def _answer(inner: Any, fits: FoldFits, number: int, within: np.ndarray) -> LeftOut:
    """Predictions of a fold by a fit without it, and those of other rows without their targets."""
    scaled, (fitted, new) = Scaled(inner), fits.folds[number]
    mean, variance, *_ = scaled.unscaled(fits.X[new])
    noise = fits.told.get("noise_variance")
    if variance is not None:
        variance = variance + (0.0 if noise is None else noise[new])
    left = LeftOut(new, mean, None if variance is None else np.sqrt(variance), "held_out")
    some = np.flatnonzero(np.isin(fitted, within))
    if not len(some):
        return left
    known = None if noise is None else noise[fitted]
    others = scaled.left_out(fits.X[fitted], fits.y[fitted], known, some)
    if others is None or others.how == "held_out":
        return left
    return replace(left, folds=((replace(others, rows=fitted[others.rows]), left),))


def leaves_out(fresh: Any) -> str:
    """How a regressor is expected to predict its training rows without their targets."""
    while isinstance(fresh, Pipeline):
        fresh = fresh[-1]
    return fresh._leaves_out() if isinstance(fresh, GPPredictionBase) else ""


def _name(regressor: Any) -> str:
    return type(regressor).__name__


def _finite(left: LeftOut) -> LeftOut:
    if not (np.isfinite(left.mean).all() and (left.std is None or np.isfinite(left.std).all())):
        raise ArithmeticError("predictions of held-out rows are not finite")
    return left


def _joined(parts: list[LeftOut]) -> LeftOut:
    """The predictions of several folds, in the order of the rows."""
    rows = np.concatenate([part.rows for part in parts])
    order = np.argsort(rows)
    mean = np.concatenate([part.mean for part in parts])[order]
    std = None
    if parts[0].std is not None:
        std = np.concatenate([part.std for part in parts])[order]
    folds = tuple(pair for part in parts for pair in part.folds)
    return LeftOut(rows[order], mean, std, "held_out", folds=folds)


def conclude(run: FitRun, trials: list[Trial], late: list[str]) -> None:
    """Report how the fits of the regressors that predict have ended, and what time did not allow.

    A fit that ended too early is the one that the user should know about.
    """
    status = min((trial.status for trial in trials), key=lambda end: end.complete)
    several, ended = len(trials) > 1, [each for each in trials if each.status == status]
    because = "; ".join(f"{_name(t.inner)}: {t.because}" if several else t.because for t in ended)
    if not status.complete and not run.stopped and not all(each.whole for each in ended):
        run.warn(f"{because}.")
    if late and run.budget.limit is not None and run.budget.ended in (None, End.MAX_SECONDS):
        said = f"No time was left for {', '.join(late)}"
        if status.complete and not run.stopped:
            status, because = End.MAX_SECONDS, f"{said}: raise max_seconds"
            run.warn(f"{because}.")
        else:
            run.warn(f"{said}.")
    run.ended(status, n_iter=len(run.monitor.steps), because=because)
