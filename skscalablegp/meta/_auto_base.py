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

from .._validation import check_magnitude, validated
from ..core import SMALL_TABLE, FitRun, GPModel
from ..core.training import Budget
from ._below import device_or_cpu_for, few_threads, fit_below, opened, told_noise, with_kernel
from ._division import Rows
from ._encoding import TableEncoder
from ._members import Candidate
from ._trials import ENOUGH, MARGIN, Late, filled, grown

# Copies of the encoded table that fits of members make.
_COPIES = 4
# Shares of a member's time for its fit, and at least for its predictions.
_FOR_FIT, _FOR_ANSWERS = 0.7, 0.3
# Held-out rows on which the cost of predictions is measured.
_PROBE = 100
# A member begins only if this share of the whole time is left for members.
_LEAST_SHARE = 0.02
# The parameter of models that support categories: numbers of columns.
_CATEGORIES = "categorical_features"
# Statuses of fits that time, a callback or an interrupt has ended early.
CUT = ("max_seconds", "interrupted", "callback")
# Errors of a member that do not end the fit of the others.
_FAILURES = (ArithmeticError, ValueError, TypeError, RuntimeError, MemoryError, TimeoutError)


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
    judged : int
        How many held-out rows it has predicted, in the order of `Rows.order`.
    note : str
        What time has cut.
    refits : bool
        Whether a fit on all rows may replace it.
    seconds : float
        Of its fit.
    """

    inner: Any
    found: np.ndarray
    judged: int
    note: str
    refits: bool
    seconds: float


class AutoBase:
    """Reads mixed tables, and fits members within a time budget.

    A class that inherits this also inherits `GPModel`, and has the parameter `validation_fraction`.
    """

    # Share of the time for the members without the held-out rows.
    _for_members = 0.6
    _needs_float64 = ""
    _members: list[Any]
    _notes: dict[str, tuple[float, str]]
    _weights: np.ndarray
    _encoder: TableEncoder

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
        if y is None or _is_numeric(X):
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
        if _is_numeric(X):
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
    def _member(self, candidate: Candidate, fresh: Any, trial: Trial, rows: Rows) -> Any:
        """A validated member from its predictions of held-out rows."""

    @abstractmethod
    def _weigh(self, rows: Rows) -> None:
        """Weights of the members so far; the model predicts by them."""

    @abstractmethod
    def _pool_again(self, rows: Rows) -> None:
        """Predict by the members as they are now, with the weights as they are."""

    @abstractmethod
    def _previewed(self, model: Any, below: Any) -> None:
        """Set the fitted attributes of a copy while a member, now `below`, is being fitted."""

    def _shares_kernel(self, candidate: Candidate, n: int) -> bool:
        """Whether folds keep the hyperparameters that all rows have determined."""
        return candidate.name == "exact"

    def _fixed(self, fresh: Any, inner: Any) -> Any:
        """The estimator of such folds."""
        return with_kernel(fresh, _last(inner))

    def _compare(self: Any, tried: list[Candidate], rows: Rows, run: FitRun) -> list[str]:
        """Fit and evaluate the members one by one; returns those that the time limit has cut."""
        phase, cut = run.budget.share(self._for_members), []
        seeds = [int(run.random_state.randint(2**31 - 1)) for _ in tried]
        names = getattr(self, "feature_names_in_", None)
        kernel, failure = None, None
        waiting = list(zip(tried, seeds, strict=True))
        while waiting:
            best = self._members[int(np.argmax(self._weights))].name if self._members else ""
            place = _next([each for each, _ in waiting], best) if phase.limit is not None else 0
            candidate, seed = waiting.pop(place)
            late = phase.limit is not None and phase.left < _LEAST_SHARE * phase.limit
            if run.stopped or (self._members and late):
                self._notes[candidate.name] = 0.0, "not begun: no time was left for it"
                cut.append(candidate.name)
                continue
            if candidate.shared and kernel is None:
                self._notes[candidate.name] = 0.0, "not begun: there is no kernel to share"
                continue
            # Each member may take twice its part, since the first ones need less.
            parts = [candidate.part, *(each.part for each, _ in waiting)]
            share = phase.share(min(1.0, 2 * parts[0] / (sum(parts) + parts[0])))
            begun = run.budget.seconds
            try:
                fresh = opened(_seeded(candidate.make(kernel), seed), self, run, names)
                fresh = _told_categories(fresh, rows)
                others = not isinstance(fresh, GPModel)
                with (
                    run.stage(candidate.name),
                    few_threads(len(rows.y)) if others else nullcontext(),
                    run.budget.may_end(keep=lambda _: bool(self._members), inner=True) as end,
                ):
                    trial = self._tried(candidate, fresh, rows, share, run)
                    if candidate.again is not None and not rows.cross_fitted:
                        fresh = candidate.again(_last(trial.inner).kernel_)
                        fresh = opened(_seeded(fresh, seed), self, run, names)
                        trial = replace(trial, refits=True, seconds=self._cheapest(trial))
                    member = self._member(candidate, fresh, trial, rows)
            except _FAILURES as error:
                failure = failure or error
                took = run.budget.seconds - begun
                self._notes[candidate.name] = took, f"dropped: {first_line(error)}"
                cut += [candidate.name] if isinstance(error, Late) else []
                continue
            took = run.budget.seconds - begun
            if end.reason is not None:
                self._notes[candidate.name] = took, "dropped: it was cut before its predictions"
                cut.append(candidate.name)
                continue
            cut += [candidate.name] if trial.note else []
            self._notes[candidate.name] = took, trial.note
            if candidate.name == "exact":
                kernel = getattr(_last(trial.inner), "kernel_", None)
            self._members.append(member)
            self._weigh(rows)
        if not self._members:
            raise failure or TimeoutError("no member was fitted")
        return cut

    def _judged(
        self: Any, rows: Rows, weigh: Callable[[np.ndarray, np.ndarray], list[np.ndarray]]
    ) -> tuple[list[np.ndarray], np.ndarray]:
        """Candidates for the weights, the chosen one first, and the rows that chose it.

        Members are compared on rows that all of them have predicted. A slow member without weight
        there does not limit the rows of the others.

        Parameters
        ----------
        rows : Rows
        weigh : callable
            ``weigh(members, common)`` gives candidates for the weights of some members (their
            numbers) by some held-out rows (a mask).
        """
        members, judged = np.arange(len(self._members)), np.array([m.judged for m in self._members])
        while True:
            common = rows.common(judged[members].tolist())
            found = weigh(members, common)
            slowest = judged[members] == judged[members].min()
            if slowest.all() or found[0][slowest].any():
                break
            members = members[~slowest]
        self._n_scored = int(common.sum())
        full = np.zeros((len(found), len(self._members)))
        full[:, members] = found
        return list(full), common

    def _cheapest(self, trial: Trial) -> float:
        """Seconds of a fit of neighbours that trains nothing."""
        untrained = [each.seconds for each in self._members if each.name == "neighbors"]
        return min([trial.seconds, *untrained])

    def _tried(
        self: Any, candidate: Candidate, fresh: Any, rows: Rows, share: Budget, run: FitRun
    ) -> Trial:
        """Fit a member without the held-out rows, and predict them, both as far as time allows."""
        found = np.full((len(rows.held), self._width()), np.nan)
        if rows.cross_fitted:
            return self._cross_fitted(candidate, fresh, rows, found, share, run)
        some, n = rows.folds[0][0], len(rows.folds[0][0])
        if candidate.rows is not None and n > candidate.rows:
            some = np.sort(run.random_state.choice(some, candidate.rows, replace=False))
        fit = self._fitted(candidate, fresh, rows, some, share, run, judged=True)
        notes = [fit.note] if fit.note else []
        # A fit may have taken more than its share, but it must have been evaluated.
        left = run.budget.share(1.0) if share.limit is None else _at_least(share, _FOR_ANSWERS, run)
        answer = partial(self._answer, fit.inner)
        done = filled(answer, rows.X[rows.held], rows.order, found, left)
        _check(found[rows.order[:done]])
        if done < min(ENOUGH, len(rows.held)) and self._members:
            raise Late(f"time sufficed to predict {done:,} of {len(rows.held):,} held-out rows")
        if done < len(rows.held):
            notes.append(f"evaluated on {done:,} of {len(rows.held):,} held-out rows")
        refits = not fit.note and candidate.rows is None
        return Trial(fit.inner, found, done, "; ".join(notes), refits, fit.seconds)

    def _cross_fitted(  # noqa: PLR0913 (a fit and its judge)
        self: Any,
        candidate: Candidate,
        fresh: Any,
        rows: Rows,
        found: np.ndarray,
        share: Budget,
        run: FitRun,
    ) -> Trial:
        """The predictions of each fold, by a fit to the others, and the fit to all rows.

        A budget that does not suffice for all folds leaves the fit without the first one, which
        is evaluated on that fold.
        """
        every, again, inner, note = np.arange(len(rows.y)), fresh, None, ""
        shares_kernel = self._shares_kernel(candidate, len(every))
        if shares_kernel:
            whole = self._fitted(candidate, fresh, rows, every, share.share(_FOR_FIT), run)
            again, inner, note = self._fixed(fresh, whole.inner), whole.inner, whole.note
        done, first = 0, None
        for k, (fitted, new) in enumerate(rows.folds):
            begun = share.seconds
            with run.budget.may_end(keep=first is not None, inner=True) as end:
                fit = self._fitted(candidate, again, rows, fitted, _at_least(share, 0.1, run), run)
                if first is not None and fit.note and not shares_kernel:
                    break
                place = np.searchsorted(rows.held, new)
                found[place] = self._answer(fit.inner, rows.X[new])
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
        if done == len(every) and not shares_kernel:
            with run.budget.may_end(inner=True):
                whole = self._fitted(candidate, fresh, rows, every, share.share(0.999), run)
                inner = None if whole.note else whole.inner
        if done < len(every) or inner is None:
            done = done if shares_kernel else len(rows.folds[0][1])
            said = f"evaluated on {done:,} of {len(every):,} rows"
            note = f"{note}; {said}" if note else said
        if inner is None:
            # The fit without the first fold; a fit to all rows may replace it if time is left at
            # the end.
            return Trial(first.inner, found, done, note, not first.note, first.seconds)
        return Trial(inner, found, done, note, False, 0.0)

    def _fitted(  # noqa: PLR0913 (a fit with its rows and its time)
        self: Any,
        candidate: Candidate,
        fresh: Any,
        rows: Rows,
        some: np.ndarray,
        share: Budget,
        run: FitRun,
        judged: bool = False,
    ) -> Fit:
        """A member fitted to some rows, behind its own codes of categories.

        If it cannot be stopped, or only late, measured costs decide how many of the rows. They
        include those of the predictions that judge it, if it is then `judged` by held-out rows.
        """
        limited, n = share.limit is not None, len(some)
        steps = isinstance(fresh, GPModel) and not candidate.shared
        order = np.argsort(rows.first[some], kind="stable")
        if steps and judged and limited:
            share = share.share(_FOR_FIT)
        probe = rows.X[rows.held[rows.order[:_PROBE]]]

        def fit(size: int) -> tuple[Any, bool, float]:
            part, later = some if size == n else some[np.sort(order[:size])], 0.0
            inner, cut = self._fitted_to(fresh, rows, part, share, run)
            if judged and limited and not steps:
                a_row = share.timed(lambda: self._answer(inner, probe)) / len(probe)
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
        self: Any, fresh: Any, rows: Rows, some: np.ndarray, share: Budget, run: FitRun
    ) -> tuple[Any, bool]:
        """A member fitted to exactly these rows, and whether time has cut it short."""
        inner, y = clone(fresh), rows.y[some]
        told = told_noise(fresh, None if rows.known is None else rows.known[some])
        kept = fresh.get_params(deep=False).get(_CATEGORIES) == _codes_first(rows)
        codes, X = rows.columns(some, kept)

        def preview(model: Any, below: Any) -> None:
            behind = below if codes is None else Pipeline([("codes", codes), ("model", below)])
            self._previewed(model, behind)

        part = 1.0
        if share.limit is not None:
            part = min(max(share.left, 1e-9) / max(run.budget.left, 1e-9), 0.999)
        status, _ = fit_below(inner, run, X, y, preview, part, False, True, **told)
        cut = status in CUT or getattr(inner, "cut_", False)
        if codes is not None:
            inner = Pipeline([("codes", codes), ("model", inner)])
        return inner, cut

    def _refit(self: Any, rows: Rows, cut: list[str], run: FitRun) -> list[str]:
        """Refit the members that have weight on all rows, as far as time allows; their names."""
        every, refitted = np.arange(len(rows.y)), []
        order = np.argsort(-self._weights, kind="stable")
        for k in [k for k in order if self._weights[k] > 0 and self._members[k].refits]:
            member = self._members[k]
            took, note = self._notes[member.name]
            needs = MARGIN * member.seconds * len(every) / len(rows.folds[0][0])
            if run.stopped or not run.budget.allows(needs):
                self._notes[member.name] = took, "fitted without the held-out rows"
                cut.append(member.name)
                continue
            begun, ended = run.budget.seconds, True
            try:
                with run.stage(f"{member.name} on all rows"), run.budget.may_end(inner=True):
                    share = run.budget.share(0.999)
                    inner, ended = self._fitted_to(member.fresh, rows, every, share, run)
                    run.preview = None
                    _check(self._answer(inner, rows.X[rows.held[:1]]))
            except _FAILURES:
                # The validated fit predicts.
                ended = True
            took += run.budget.seconds - begun
            if run.stopped or ended:
                self._notes[member.name] = took, "fitted without the held-out rows"
                cut.append(member.name)
                continue
            self._members[k] = member.fitted_again(inner)
            self._notes[member.name] = took, "fitted on all rows"
            refitted.append(member.name)
            self._pool_again(rows)
        return refitted

    def _end(self: Any, cut: list[str], run: FitRun) -> None:
        """Report how the fit ended, and forget what only the fit needs."""
        status, because = "completed", ""
        if cut and run.budget.limit is not None:
            status = "max_seconds"
            names = ", ".join(dict.fromkeys(cut))
            because = f"max_seconds={run.budget.limit:g} was too short for all work on {names}"
        for name in ("_members", "_notes", "_weights", "_weightings", "_n_scored"):
            vars(self).pop(name, None)
        run.ended(status, n_iter=len(run.monitor.steps), because=because)


def _next(waiting: list[Candidate], best: str) -> int:
    """The place of the next member: the cheap ones in turn, then those that refine the best."""
    if all(each.follows for each in waiting):
        for k, candidate in enumerate(waiting):
            if best in candidate.follows:
                return k
    return 0


def _at_least(share: Budget, part: float, run: FitRun) -> Budget:
    """What is left of a member's share, but at least a part of the whole share."""
    if share.limit is None:
        return run.budget.share(1.0)
    wanted = max(share.left or 0.0, part * share.limit)
    return run.budget.share(min(wanted / max(run.budget.left or 0.0, 1e-9), 1.0))


def _check(found: np.ndarray) -> None:
    """Refuse predictions that are not finite; a variance may be missing as a whole."""
    missing = np.isnan(found).all(axis=0) & (np.arange(found.shape[1]) > 0)
    if not np.isfinite(found[:, ~missing]).all():
        raise ArithmeticError("its predictions of held-out rows are not finite")


def _is_numeric(X: Any) -> bool:
    """Whether a table has nothing but numbers, so that scikit-learn can read it."""
    if hasattr(X, "columns"):
        return all(getattr(X[name].dtype, "kind", "O") in "iuf" for name in X.columns)
    if not hasattr(X, "dtype"):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of different lengths, which scikit-learn names
            return True
    return X.dtype.kind in "biufc" if hasattr(X.dtype, "kind") else True


def _codes_first(rows: Rows) -> list[int]:
    """The columns of codes of many levels, for members that know categories."""
    return [] if rows.levels is None else list(range(len(rows.levels.columns)))


def _told_categories(fresh: Any, rows: Rows) -> Any:
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


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
