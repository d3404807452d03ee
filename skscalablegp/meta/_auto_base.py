"""What automatic estimators for numbers and for classes share: tables, members and refits."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length
from torch import nn

from .._devices import device_or_cpu_for
from .._end import End
from .._frames import is_numeric, readable
from .._validation import check_magnitude, validated
from ..core import SMALL_TABLE, FitRun, GPModel
from ..core.training import Budget
from ._auto_jobs import evaluated_by_jobs, refitted_by_jobs
from ._below import few_threads, fit_below, opened, told_noise, with_kernel
from ._comparison import FAILURES, Comparison
from ._division import DividedTable
from ._encoding import TableEncoder, listed
from ._members import Candidate
from ._normal_scores import NormalScores, ScoredColumns
from ._trials import ENOUGH, MARGIN, Late, filled, grown

# Copies of the encoded table that fits of members make.
_COPIES = 4
# What becomes of dates that are text.
_AS_DATES = "pandas.to_datetime makes dates, which become days, weekdays and hours"
# Held-out rows on which the cost of predictions is measured.
_PROBE = 100
# The parameter of models that support categories: numbers of columns.
_CATEGORIES = "categorical_features"


@dataclass(frozen=True, eq=False)
class Fit:
    """A fitted member, what time has cut of its fit, and the seconds of its last trial."""

    inner: Any
    note: str
    seconds: float


@dataclass(frozen=True, eq=False)
class Trial:
    """A fitted member and its predictions of held-out rows.

    Attributes
    ----------
    inner : estimator
    found : ndarray of shape (m, q)
        Its predictions; NaN where there was no time.
    n_predicted : int
        How many held-out rows it has predicted, in the order of `DividedTable.order`.
    note : str
        What time has cut.
    refits : bool
        Whether a fit on all rows may replace it.
    seconds : float
        Of its fit.
    """

    inner: Any
    found: np.ndarray
    n_predicted: int
    note: str
    refits: bool
    seconds: float


class AutoBase:
    """Reads mixed tables, and fits members within a time budget.

    A class that inherits this also inherits `GPModel`, and has the parameter `validation_fraction`.
    """

    _members: list[Any]
    _weights: np.ndarray
    _encoder: TableEncoder
    # Columns whose normal scores processes take; None before that has been decided.
    _scores: dict[int, NormalScores] | None

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def _device_of(self: Any, inner: GPModel) -> str:
        return device_or_cpu_for(inner, self.device)

    # ------------------------------------------------------------------ tables

    def _read_mixed(self: Any, X: Any, y: Any, run: FitRun, **rules: Any) -> tuple[Any, Any]:
        """The encoded table and the validated targets."""
        X = readable(X)
        if y is None or is_numeric(X):
            numbers = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            X, y = validated(self, X, y, **numbers, **rules)
            if np.isnan(X).all():
                raise ValueError(
                    f"All {X.size} entries of X are NaN: there is nothing to learn from."
                )
            self._encoder = TableEncoder().fit(X)
        else:
            self._encoder = TableEncoder().fit(X)
            y = validated(self, y=y, **rules)
            validated(self, X, skip_check_array=True)
            check_consistent_length(X, y)
        encoded = self._encoder.transform(X)
        run.check_memory(
            _COPIES * encoded.nbytes,
            f"The encoded table of {len(encoded):,} rows and {encoded.shape[1]:,} columns",
            "fit fewer rows or columns",
        )
        check_magnitude("X", encoded)
        self.encoding_ = self._encoder.describe()
        run.reports(unseen=self._encoder.may_meet())
        if dates := self._encoder.dates_as_text():
            run.warn(f"Dates are text in {listed(dates)}, and become categories: {_AS_DATES}.")
        self.dtype_ = run.chose("dtype", "float64", "predictions; each member has its own")
        return encoded, y

    def _training_only(self: Any) -> tuple[str, ...]:
        held = ("held_out_", "held_out_mean_", "held_out_std_", "held_out_proba_")
        return (*super()._training_only(), *held)

    def _input_module(self: Any) -> nn.Module:
        """The table of numbers that members take, from one of plain numbers."""
        return self._encoder.module()

    def _encoded(self: Any, X: Any) -> np.ndarray:
        """New rows in the columns of the fit."""
        X = readable(X)
        if is_numeric(X):
            numbers = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            X = validated(self, X, reset=False, **numbers)
            return self._encoder.transform(X, validated=True)
        # Check the names and the number of columns first, because their messages are clearer.
        validated(self, X, reset=False, skip_check_array=True)
        return self._encoder.transform(X)

    # ------------------------------------------------------------------ members

    @abstractmethod
    def _width(self) -> int:
        """Number of columns of `_answer`."""

    @abstractmethod
    def _answer(self, inner: Any, X: np.ndarray) -> np.ndarray:
        """What a fitted member predicts, as an array of shape (len(X), q)."""

    @abstractmethod
    def _member(self, candidate: Candidate, fresh: Any, trial: Trial, rows: DividedTable) -> Any:
        """A validated member from its predictions of held-out rows."""

    @abstractmethod
    def _weigh(self, rows: DividedTable) -> None:
        """Weights of the members so far; the model predicts by them."""

    @abstractmethod
    def _pool_again(self, rows: DividedTable) -> None:
        """Predict by the members as they are now, with the weights as they are."""

    @abstractmethod
    def _previewed(self, model: Any, below: Any) -> None:
        """Set the fitted attributes of a copy while a member, now `below`, is being fitted."""

    def _useful_scores(self, rows: DividedTable, run: FitRun) -> dict[int, NormalScores]:
        """Columns whose normal scores all members take that are processes."""
        return {}

    def _shares_kernel(self, candidate: Candidate, n: int) -> bool:
        """Whether folds keep the hyperparameters that all rows have determined."""
        return candidate.name == "exact"

    def _fixed(self, fresh: Any, inner: Any) -> Any:
        """The estimator of such folds."""
        return with_kernel(fresh, _last(inner))

    def _compare(
        self: Any, tried: list[Candidate], rows: DividedTable, compared: Comparison
    ) -> None:
        """Fit and evaluate the members one by one, and weight those that were evaluated."""
        run, self._scores = compared.run, None
        seeds = [int(run.random_state.randint(2**31 - 1)) for _ in tried]
        waiting, kernel = list(zip(tried, seeds, strict=True)), None
        first = [each for each in waiting if not each[0].waits]
        done = evaluated_by_jobs(self, first, None, rows, run)
        while waiting:
            best = self._members[int(np.argmax(self._weights))].name if self._members else ""
            limited = compared.phase.limit is not None
            place = _next([each for each, _ in waiting], best) if limited else 0
            candidate, seed = waiting.pop(place)
            if not compared.begins(candidate.name):
                continue
            if candidate.shared and kernel is None:
                compared.notes[candidate.name] = 0.0, "not begun: there is no kernel to share"
                continue
            if candidate.waits and kernel is not None and candidate.name not in done:
                several = [(candidate, seed), *(each for each in waiting if each[0].waits)]
                done |= evaluated_by_jobs(self, several, kernel, rows, run)
            if one := done.get(candidate.name):
                found = compared.tried(candidate.name, partial(one.taken, run), one.seconds)
            else:
                share = compared.share(candidate.part, [each.part for each, _ in waiting])
                work = partial(self._evaluated, candidate, kernel, seed, rows, share, run)
                found = compared.tried(candidate.name, work)
            if found is None:
                continue
            trial, member = found
            if trial.note:
                compared.adds(candidate.name, run.budget.seconds, trial.note)
                compared.cut.append(candidate.name)
            if candidate.name == "exact" and rows.same_columns:
                kernel = getattr(_last(trial.inner), "kernel_", None)
            self._members.append(member)
            self._weigh(rows)
        compared.check()

    def _evaluated(
        self: Any,
        candidate: Candidate,
        kernel: Any,
        seed: int,
        rows: DividedTable,
        share: Budget,
        run: FitRun,
    ) -> tuple[Trial, Any]:
        """A fitted member with its predictions of held-out rows, and the member to weight."""
        fresh = self._opened_member(candidate.make(kernel), seed, run)
        fresh = _told_categories(fresh, rows)
        self._find_scores(fresh, rows, run)
        threads = nullcontext() if isinstance(fresh, GPModel) else few_threads(len(rows.y))
        with run.stage(candidate.name), threads:
            trial = self._tried(candidate, fresh, rows, share, run)
            if candidate.again is not None and not rows.cross_fitted:
                fresh = candidate.again(_last(trial.inner).kernel_)
                fresh = self._opened_member(fresh, seed, run)
                trial = replace(trial, refits=True, seconds=self._cheapest(trial))
            return trial, self._member(candidate, fresh, trial, rows)

    def _find_scores(self: Any, fresh: Any, rows: DividedTable, run: FitRun) -> None:
        """Before the first process among the members, find the columns with useful scores."""
        if isinstance(fresh, GPModel) and self._scores is None:
            self._scores = self._useful_scores(rows, run)

    def _opened_member(self: Any, fresh: Any, seed: int, run: FitRun) -> Any:
        """A copy with the seed, and with open settings filled in."""
        return opened(_seeded(fresh, seed), self, run, getattr(self, "feature_names_in_", None))

    def _weights_by(
        self: Any, rows: DividedTable, weigh: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Weights of the members, and the held-out rows that chose them (a mask).

        Members are compared on rows that all of them have predicted. A slow member without weight
        there does not limit the rows of the others.

        Parameters
        ----------
        rows : DividedTable
        weigh : callable
            ``weigh(members, common)`` gives the weights of some members (their numbers) by some
            held-out rows (a mask).
        """
        members = np.arange(len(self._members))
        n_predicted = np.array([m.n_predicted for m in self._members])
        while True:
            common = rows.common(n_predicted[members].tolist())
            found = weigh(members, common)
            slowest = n_predicted[members] == n_predicted[members].min()
            if slowest.all() or found[slowest].any():
                break
            members = members[~slowest]
        self._n_scored = int(common.sum())
        full = np.zeros(len(self._members))
        full[members] = found
        return full, common

    def _cheapest(self, trial: Trial) -> float:
        """Seconds of a fit of neighbours that trains nothing."""
        untrained = [each.seconds for each in self._members if each.name == "neighbors"]
        return min([trial.seconds, *untrained])

    def _tried(
        self: Any, candidate: Candidate, fresh: Any, rows: DividedTable, share: Budget, run: FitRun
    ) -> Trial:
        """Fit a member without the held-out rows, and predict them, both as far as time allows."""
        found = np.full((len(rows.held), self._width()), np.nan)
        if rows.cross_fitted:
            return self._cross_fitted(candidate, fresh, rows, found, share, run)
        some = candidate.some
        if some is None:
            some = rows.drawn(candidate.rows, run.random_state)
        some = rows.folds[0][0] if some is None else some
        fit = self._fitted(candidate, fresh, rows, some, share, run, evaluated=True)
        notes = [fit.note] if fit.note else []
        # A fit may have taken more than its share, but it must have been evaluated.
        left = share.at_least("held-out rows")
        inner, new = rows.unseen(fit.inner, rows.held)
        done = filled(partial(self._answer, inner), new, rows.order, found, left)
        _check(found[rows.order[:done]])
        if done < min(ENOUGH, len(rows.held)) and self._members:
            raise Late(f"time sufficed to predict {done:,} of {len(rows.held):,} held-out rows")
        if done < len(rows.held):
            notes.append(f"evaluated on {done:,} of {len(rows.held):,} held-out rows")
        refits = not fit.note and candidate.rows is None
        return Trial(fit.inner, found, done, "; ".join(notes), refits, fit.seconds)

    def _cross_fitted(
        self: Any,
        candidate: Candidate,
        fresh: Any,
        rows: DividedTable,
        found: np.ndarray,
        share: Budget,
        run: FitRun,
    ) -> Trial:
        """The predictions of each fold, by a fit to the others, and the fit to all rows.

        A budget that does not suffice for all folds leaves the fit without the first one, which
        is evaluated on that fold.
        """
        every, again, inner, note = np.arange(len(rows.y)), fresh, None, ""
        shares_kernel = self._shares_kernel(candidate, len(every)) and rows.same_columns
        if shares_kernel:
            whole = self._fitted(candidate, fresh, rows, every, share.share("fit"), run)
            again, inner, note = self._fixed(fresh, whole.inner), whole.inner, whole.note
        done, first = 0, None
        for k, (fitted, new) in enumerate(rows.folds):
            begun = share.seconds
            with run.budget.may_end(keep=first is not None, inner=True) as end:
                part = share.at_least("fold")
                fit = self._fitted(candidate, again, rows, fitted, part, run)
                if first is not None and fit.note and not shares_kernel:
                    break
                place = np.searchsorted(rows.held, new)
                found[place] = self._answer(*rows.unseen(fit.inner, new))
                _check(found[place])
            if end.reason is not None:
                break
            first, done = first or fit, done + len(new)
            left = len(rows.folds) - 1 - k + (not shares_kernel)
            if fit.note and not shares_kernel:
                note = fit.note
                break
            if k == 0 and not share.allows(MARGIN * left * (share.seconds - begun)):
                break
        if done == len(rows.held) and not shares_kernel:
            with run.budget.may_end(inner=True):
                whole = self._fitted(candidate, fresh, rows, every, share.share("all rows"), run)
                inner = None if whole.note else whole.inner
        if done < len(rows.held) or inner is None:
            done = done if shares_kernel else len(rows.folds[0][1])
            said = f"evaluated on {done:,} of {len(rows.held):,} rows"
            note = f"{note}; {said}" if note else said
        if inner is None:
            # The fit without the first fold; a fit to all rows may replace it if time is left at
            # the end.
            return Trial(first.inner, found, done, note, not first.note, first.seconds)
        return Trial(inner, found, done, note, False, 0.0)

    def _fitted(
        self: Any,
        candidate: Candidate,
        fresh: Any,
        rows: DividedTable,
        some: np.ndarray,
        share: Budget,
        run: FitRun,
        evaluated: bool = False,
    ) -> Fit:
        """A member fitted to some rows, behind its own codes of categories.

        If it cannot be stopped, or only late, measured costs decide how many of the rows. They
        include those of the predictions of held-out rows, if it is then `evaluated`.
        """
        limited, n = share.limit is not None, len(some)
        steps = isinstance(fresh, GPModel) and not candidate.shared
        order = np.argsort(rows.first[some], kind="stable")
        if steps and evaluated and limited:
            share = share.share("fit")
        probe = rows.held[rows.order[:_PROBE]]

        def fit(size: int) -> tuple[Any, bool, float]:
            part, later = some if size == n else some[np.sort(order[:size])], 0.0
            inner, cut = self._fitted_to(fresh, rows, part, share, run)
            if evaluated and limited and not steps:
                ready = rows.unseen(inner, probe)
                a_row = share.timed(lambda: self._answer(*ready)) / len(probe)
                later = a_row * min(ENOUGH, len(rows.held))
            return inner, cut, later

        most = n
        if limited and candidate.rate is not None:
            most = min(n, max(candidate.fewest, int(candidate.rate * share.limit)))
        first = SMALL_TABLE if candidate.rate is None and not steps else most
        begun = share.seconds
        inner, size, cut, seconds = grown(fit, most, share, first)
        run.preview = None
        notes = ["cut short"] if cut else []
        if size < n:
            notes.append(f"fitted to {size:,} of {n:,} rows")
        return Fit(inner, ", ".join(notes), max(seconds, share.seconds - begun if steps else 0.0))

    def _fitted_to(
        self: Any, fresh: Any, rows: DividedTable, some: np.ndarray, share: Budget, run: FitRun
    ) -> tuple[Any, bool]:
        """A member fitted to exactly these rows, and whether time has cut it short."""
        inner, y = clone(fresh), rows.y[some]
        told = told_noise(fresh, None if rows.known is None else rows.known[some])
        kept = fresh.get_params(deep=False).get(_CATEGORIES) == _codes_first(rows)
        codes, X = rows.columns(some, kept)
        steps = [] if codes is None else [("codes", codes)]
        if isinstance(fresh, GPModel) and self._scores:
            steps.append(("scores", ScoredColumns(self._scores)))
            X = steps[-1][1].transform(X)

        def behind(below: Any) -> Any:
            return Pipeline([*steps, ("model", below)]) if steps else below

        def preview(model: Any, below: Any) -> None:
            self._previewed(model, behind(below))

        status, _ = fit_below(inner, run, X, y, preview, share, False, True, **told)
        cut = status.ends_fit or getattr(inner, "cut_", False)
        return behind(inner), cut

    def _on_all_rows(
        self: Any, member: Any, rows: DividedTable, share: Budget, run: FitRun
    ) -> tuple[Any, bool]:
        """`_fitted_to` for a member and all rows."""
        with run.stage(f"{member.name} on all rows"):
            found = self._fitted_to(member.fresh, rows, np.arange(len(rows.y)), share, run)
        run.preview = None
        return found

    def _refit(self: Any, rows: DividedTable, compared: Comparison) -> list[str]:
        """Refit the members that have weight on all rows, as far as time allows; their names."""
        run, refitted = compared.run, []
        order = np.argsort(-self._weights, kind="stable")
        order = [k for k in order if self._weights[k] > 0 and self._members[k].refits]
        done = refitted_by_jobs(self, [self._members[k] for k in order], rows, run)
        for k in order:
            member, begun = self._members[k], run.budget.seconds
            needs = rows.on_all(member.seconds)
            inner, ended = None, True
            if not run.stopped and run.budget.allows(needs):
                try:
                    if one := done.get(member.name):
                        begun -= one.seconds
                        inner, ended = one.taken(run)
                    else:
                        with run.budget.may_end(inner=True):
                            share = run.budget.share("all rows")
                            inner, ended = self._on_all_rows(member, rows, share, run)
                    _check(self._answer(inner, rows.X[rows.held[:1]]))
                except FAILURES:
                    # The validated fit predicts.
                    ended = True
            if run.stopped or ended:
                compared.adds(member.name, begun, "fitted without the held-out rows")
                compared.cut.append(member.name)
                continue
            self._members[k] = member.fitted_again(inner)
            compared.adds(member.name, begun, "fitted on all rows")
            refitted.append(member.name)
            self._pool_again(rows)
        return refitted

    def _end(
        self: Any,
        said: list[str],
        scores: dict[str, tuple[float, float]],
        refitted: list[str],
        compared: Comparison,
    ) -> None:
        """Explain and report the fit, and forget what only it needs.

        `said` is what predicts and how it was chosen; `scores` are NLL and CRPS of the members.
        """
        run, names = compared.run, ", ".join(dict.fromkeys(compared.cut))
        self.leaderboard_ = compared.leaderboard(
            scores, dict(zip(self.members_, self.weights_.tolist(), strict=True))
        )
        if refitted:
            said.append(f"{', '.join(refitted)} was fitted again to all rows")
        if names:
            said.append(f"the time budget was too short for all work on {names}")
        self.explain_ = "; ".join([*said, *self.encoding_]) + "."
        run.reports(summary=f"{self.explain_}\n{self.leaderboard_}")
        status, because = End.COMPLETED, ""
        if names and run.budget.limit is not None:
            status = End.MAX_SECONDS
            because = f"max_seconds={run.budget.limit:g} was too short for all work on {names}"
        for name in ("_members", "_weights", "_n_scored", "_scores"):
            vars(self).pop(name, None)
        run.ended(status, n_iter=len(run.monitor.steps), because=because)


def _next(waiting: list[Candidate], best: str) -> int:
    """The place of the next member: the cheap ones in turn, then those that refine the best."""
    if all(each.follows for each in waiting):
        for k, candidate in enumerate(waiting):
            if best in candidate.follows:
                return k
    return 0


def _check(found: np.ndarray) -> None:
    """Refuse predictions that are not finite; a variance may be missing as a whole."""
    missing = np.isnan(found).all(axis=0) & (np.arange(found.shape[1]) > 0)
    if not np.isfinite(found[:, ~missing]).all():
        raise ArithmeticError("its predictions of held-out rows are not finite")


def _codes_first(rows: DividedTable) -> list[int]:
    """The columns of codes of many levels, for members that know categories."""
    return [] if rows.levels is None else list(range(len(rows.levels.columns)))


def _told_categories(fresh: Any, rows: DividedTable) -> Any:
    """The member, told that the first columns hold codes, where it knows categories."""
    unset = fresh.get_params(deep=False).get(_CATEGORIES, ()) in (None, "from_dtype")
    return fresh.set_params(**{_CATEGORIES: _codes_first(rows)}) if rows.levels and unset else fresh


def _seeded(fresh: Any, seed: int) -> Any:
    """A copy with a seed, where it takes one and has none."""
    fresh = clone(fresh)
    if fresh.get_params(deep=False).get("random_state", seed) is None:
        fresh.set_params(random_state=seed)
    return fresh


def _last(regressor: Any) -> Any:
    return regressor[-1] if isinstance(regressor, Pipeline) else regressor
