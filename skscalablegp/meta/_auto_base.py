"""What automatic estimators for numbers and for classes share: tables, members and refits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import (
    KFold,
    ShuffleSplit,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.pipeline import Pipeline
from sklearn.utils import check_consistent_length

from .._validation import check_magnitude, validated
from ..core import SMALL_TABLE, FitRun
from ._below import fit_below, opened, told_noise
from ._encoding import TableEncoder
from ._members import Candidate
from ._pool import occur_once
from ._target_codes import TargetCodes

# Folds up to 2,000 rows. Larger tables have one held-out part, with at most this number of rows:
# more would cost predictions and hardly change the weights.
FOLDS, _MOST_HELD_OUT = 5, 10_000
# Share of the time for the members without the held-out rows.
_FOR_MEMBERS = 0.6
# Copies of the encoded table that fits of members make.
_COPIES = 4
# A fit on all rows begins only if the measured time of the fit without the held-out rows, in
# proportion to the rows, times this factor, is left.
_MARGIN = 1.3
# A member begins only if this share of the whole time is left for members.
_LEAST_SHARE = 0.02
# How a fit ends that time, a callback or an interrupt has cut.
CUT = ("max_seconds", "interrupted", "callback")
# What a member may raise without ending the fit of the others.
_FAILURES = (ArithmeticError, ValueError, TypeError, RuntimeError, MemoryError, TimeoutError)


@dataclass(frozen=True, eq=False)
class Rows:
    """A table, and its rows that members are fitted to and judged by.

    `folds` has pairs of the rows to fit and the rows to predict: one pair, or a pair for each fold.
    `held` are all predicted rows, in rising order, and `scored` says which of them occur once.
    """

    X: np.ndarray
    y: np.ndarray
    known: np.ndarray | None
    codes: list[int]
    folds: list[tuple[np.ndarray, np.ndarray]]
    held: np.ndarray
    scored: np.ndarray

    @property
    def cross_fitted(self) -> bool:
        return len(self.folds) > 1


class AutoBase:
    """Reads mixed tables, and fits members within a time budget.

    A class that inherits this also inherits `GPModel`, and has the parameter `validation_fraction`.
    """

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

    def _encoded(self: Any, X: Any) -> np.ndarray:
        """New rows in the columns of the fit."""
        if _is_numeric(X):
            numbers = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
            X = validated(self, X, reset=False, **numbers)
            return self._encoder.transform(X)
        encoded = self._encoder.transform(X)
        validated(self, X, reset=False, skip_check_array=True)
        return encoded

    def _divided(
        self: Any, X: np.ndarray, y: np.ndarray, known: Any, run: FitRun, classes: bool = False
    ) -> Rows:
        """The rows that members are fitted to and judged by; with `classes` in equal shares."""
        n, seed = len(X), int(run.random_state.randint(2**31 - 1))
        fewest = int(np.unique(y, return_counts=True)[1].min()) if classes else 0
        parts: Any
        if n <= SMALL_TABLE:
            run.ignores("validation_fraction", f"{FOLDS} folds are better on {n:,} rows")
            folds = StratifiedKFold if fewest >= FOLDS else KFold
            parts = folds(min(FOLDS, n), shuffle=True, random_state=seed)
        else:
            held = max(1, min(int(self.validation_fraction * n), _MOST_HELD_OUT))
            once = StratifiedShuffleSplit if fewest >= FOLDS else ShuffleSplit
            parts = once(1, test_size=held, random_state=seed)
        pairs = [(np.sort(a), np.sort(b)) for a, b in parts.split(X, y)]
        predicted = np.sort(np.concatenate([new for _, new in pairs]))
        codes = self._encoder.codes_
        return Rows(X, y, known, codes, pairs, predicted, occur_once(X, predicted))

    # ------------------------------------------------------------------ members

    @abstractmethod
    def _judged(self, candidate: Candidate, fresh: Any, rows: Rows, part: float, run: FitRun):
        """A fitted member with its predictions of held-out rows, and how its fit ended."""

    @abstractmethod
    def _weigh(self, rows: Rows) -> None:
        """Weights of the members so far; the model predicts by them."""

    @abstractmethod
    def _pool_again(self, rows: Rows) -> None:
        """Predict by the members as they are now, with the weights as they are."""

    @abstractmethod
    def _previewed(self, model: Any, below: Any) -> None:
        """Set the fitted attributes of a copy while a member, now `below`, is being fitted."""

    def _compare(self: Any, tried: list[Candidate], rows: Rows, run: FitRun) -> list[str]:
        """Fit and judge the members one after the other; returns those that time has cut."""
        phase, cut = run.budget.share(_FOR_MEMBERS), []
        seeds = [int(run.random_state.randint(2**31 - 1)) for _ in tried]
        names = getattr(self, "feature_names_in_", None)
        kernel, failure = None, None
        for k, candidate in enumerate(tried):
            late = phase.limit is not None and phase.left < _LEAST_SHARE * phase.limit
            if run.stopped or (self._members and late):
                self._notes[candidate.name] = 0.0, "not begun: no time was left for it"
                cut.append(candidate.name)
                continue
            if candidate.shared and kernel is None:
                self._notes[candidate.name] = 0.0, "not begun: there is no kernel to share"
                continue
            part = 1.0
            if phase.limit is not None:
                # Each member may take twice an equal share, since the first ones need less.
                own = phase.left * min(1.0, 2 / (len(tried) - k + 1))
                part = min(own / max(run.budget.left, 1e-9), 0.999)
            begun = run.budget.seconds
            try:
                fresh = opened(_seeded(candidate.make(kernel), seeds[k]), self, run, names)
                with run.budget.may_end(keep=lambda _: bool(self._members), inner=True) as end:
                    member, ended = self._judged(candidate, fresh, rows, part, run)
            except _FAILURES as error:
                failure = failure or error
                took = run.budget.seconds - begun
                self._notes[candidate.name] = took, f"dropped: {first_line(error)}"
                continue
            took = run.budget.seconds - begun
            if end.reason is not None:
                self._notes[candidate.name] = took, "dropped: it was cut before its predictions"
                cut.append(candidate.name)
                continue
            note = "cut short" if ended in CUT else ""
            cut += [candidate.name] if note else []
            self._notes[candidate.name] = took, note
            if candidate.name == "exact":
                kernel = getattr(_last(member.inner), "kernel_", None)
            self._members.append(member)
            self._weigh(rows)
        if not self._members:
            raise failure or TimeoutError("no member was fitted")
        return cut

    def _fitted(
        self: Any, fresh: Any, rows: Rows, some: np.ndarray, part: float, run: FitRun
    ) -> tuple[Any, str]:
        """A regressor fitted to some rows, behind its own codes of categories, and its status."""
        inner, X, y = clone(fresh), rows.X[some], rows.y[some]
        told = told_noise(fresh, None if rows.known is None else rows.known[some])
        codes = TargetCodes(rows.codes) if rows.codes else None
        if codes is not None:
            X = codes.fit_transform(X, y)

        def preview(model: Any, below: Any) -> None:
            behind = below if codes is None else Pipeline([("codes", codes), ("model", below)])
            self._previewed(model, behind)

        status, _ = fit_below(inner, run, X, y, preview, part, False, True, **told)
        run.preview = None
        if codes is not None:
            inner = Pipeline([("codes", codes), ("model", inner)])
        return inner, status

    def _refit(self: Any, rows: Rows, run: FitRun) -> list[str]:
        """Refit the members that have weight on all rows, as far as time allows; their names."""
        every, refitted = np.arange(len(rows.y)), []
        order = np.argsort(-self._weights, kind="stable")
        for k in [k for k in order if self._weights[k] > 0 and self._members[k].refits]:
            member = self._members[k]
            took, note = self._notes[member.name]
            needs = _MARGIN * took * len(every) / len(rows.folds[0][0])
            if note:  # It was cut short, so that a whole fit takes longer.
                needs *= 2
            if run.stopped or not run.budget.allows(needs):
                self._notes[member.name] = took, note or "fitted without the held-out rows"
                continue
            begun, ended = run.budget.seconds, CUT[0]
            try:
                with run.stage(f"{member.name} on all rows"), run.budget.may_end(inner=True):
                    inner, ended = self._fitted(member.fresh, rows, every, 0.999, run)
            except _FAILURES:
                # The validated fit predicts.
                ended = CUT[0]
            took += run.budget.seconds - begun
            if run.stopped or ended in CUT:
                self._notes[member.name] = took, "fitted without the held-out rows"
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
            because = f"max_seconds={run.budget.limit:g} has cut or left out {', '.join(cut)}"
        for name in ("_members", "_notes", "_weights", "_weightings"):
            vars(self).pop(name, None)
        run.ended(status, n_iter=len(run.monitor.steps), because=because)


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
