"""The rows to which members of automatic estimators are fitted, and those that evaluate them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sklearn.base import clone
from sklearn.model_selection import (
    GroupKFold,
    GroupShuffleSplit,
    KFold,
    ShuffleSplit,
    StratifiedGroupKFold,
    StratifiedKFold,
    StratifiedShuffleSplit,
)
from sklearn.pipeline import Pipeline

from ..core import SMALL_TABLE, FitRun
from ..core.data import numbered
from ._below import few_threads
from ._pool import FEWEST_UNIQUE, occur_once
from ._target_codes import TargetCodes, slopes_that_differ
from ._trials import MARGIN

# Folds up to 2,000 rows. Larger tables have one held-out part, with at most this number of rows:
# more would cost predictions and hardly change the weights.
FOLDS, _MOST_HELD_OUT = 5, 10_000
# Rows are like the others, and targets hardly repeat by chance, if they are this share.
_MOSTLY = 0.5
# Rows to which the trees in the encoding of many levels are fitted, for each second of the budget,
# and bounds: the fits take an eighth of ten seconds of one core on hotel, with 60 columns.
_LEVEL_ROWS_A_SECOND, _LEVEL_ROWS = 400, (300, 20_000)


@dataclass(frozen=True, eq=False)
class DividedTable:
    """A table, and its rows that members are fitted to and evaluated on.

    `folds` has pairs of the rows to fit and the rows to predict: one pair, or a pair for each fold.
    `held` are all predicted rows, in rising order, and `scored` says which of them occur once.
    Members predict them in the order `order` (numbers of `held`). `first` ranks all rows: fits to a
    part of the rows take those of the lowest rank. `levels` encodes categories with many levels,
    where there are any.
    """

    X: np.ndarray
    y: np.ndarray
    known: np.ndarray | None
    levels: TargetCodes | None
    folds: list[tuple[np.ndarray, np.ndarray]]
    held: np.ndarray
    scored: np.ndarray
    order: np.ndarray
    first: np.ndarray
    encoded: dict[int, tuple[TargetCodes, np.ndarray]] = field(default_factory=dict)

    def columns(self, some: np.ndarray, kept: bool) -> tuple[TargetCodes | None, np.ndarray]:
        """The encoder of many levels, and the columns of some rows, with codes if they are `kept`.

        The encoder learns from all rows of the part that the rows are from, so that a fit to few of
        them knows as much about levels as a fit to all; it never sees the part's held-out rows.
        """
        if self.levels is None:
            return None, self.X[some]
        used = np.zeros(len(self.y), bool)
        used[some] = True
        parts = (k for k, (_, new) in enumerate(self.folds) if not used[new].any())
        part = next(parts, -1)
        if part not in self.encoded:
            within = np.arange(len(self.y)) if part < 0 else self.folds[part][0]
            codes = clone(self.levels).set_params(kept=True)
            with few_threads(len(within)):
                found = codes.fit_transform(self.X[within], self.y[within])
                every = np.empty((len(self.y), found.shape[1]))
                every[within] = found
                if part >= 0:
                    new = self.folds[part][1]
                    every[new] = codes.transform(self.X[new])
            self.encoded[part] = codes, every
        codes, every = self.encoded[part]
        first = 0 if kept else len(codes.columns)
        return codes.keeping(kept), every[some, first:]

    def unseen(self, inner: Any, new: np.ndarray) -> tuple[Any, np.ndarray]:
        """A fitted member without its encoder of many levels, and these columns of `new` rows.

        The encoder has encoded its part's held-out rows once for all members.
        """
        own = getattr(inner[0], "encoder_", None) if isinstance(inner, Pipeline) else None
        for part, (codes, every) in self.encoded.items():
            if part >= 0 and codes.encoder_ is own:
                rest = inner[1:] if len(inner) > 2 else inner[-1]
                return rest, every[new, 0 if inner[0].kept else len(codes.columns) :]
        return inner, self.X[new]

    def drawn(self, most: int | None, random_state: np.random.RandomState) -> np.ndarray | None:
        """Random rows of the first part, at most so many; None if it has no more, and for folds."""
        some = self.folds[0][0]
        if self.cross_fitted or most is None or len(some) <= most:
            return None
        return np.sort(random_state.choice(some, most, replace=False))

    def predicted(self, n_predicted: list[int]) -> np.ndarray:
        """Which held-out rows all members have predicted."""
        seen = np.zeros(len(self.held), bool)
        seen[self.order[: min(n_predicted)]] = True
        return seen

    def common(self, n_predicted: list[int]) -> np.ndarray:
        """Which held-out rows are scored, of those that all members have predicted."""
        seen = self.predicted(n_predicted)
        both = seen & self.scored
        return both if both.any() else seen

    def on_all(self, seconds: float) -> float:
        """Time that must be left before a fit of so many seconds is repeated on all rows."""
        return MARGIN * seconds * len(self.y) / len(self.folds[0][0])

    @property
    def same_columns(self) -> bool:
        """Whether all parts have the same columns, as a kernel that they share needs."""
        return len({str(codes.pairs_) for codes, _ in self.encoded.values()}) < 2

    @property
    def cross_fitted(self) -> bool:
        return len(self.folds) > 1


def divided(
    X: np.ndarray,
    y: np.ndarray,
    known: Any,
    run: FitRun,
    *,
    codes: Sequence[int],
    fraction: float,
    classes: bool = False,
) -> DividedTable:
    """Choose the rows that members are fitted to and those that they are evaluated on.

    Parameters
    ----------
    X, y : ndarray
        The encoded table.
    known : ndarray or None
        Known noise variances.
    run : FitRun
    codes : sequence of int
        Columns that hold codes of categories with many levels.
    fraction : float
        Share of the rows that are held out where there are no folds.
    classes : bool, default=False
        Whether y are codes of classes, which then have equal shares in all parts.
    """
    n, seed = len(X), int(run.random_state.randint(2**31 - 1))
    pairs = _pairs(X, y, None, seed, classes, fraction)
    held = np.sort(np.concatenate([new for _, new in pairs]))
    groups = copies(X, y, classes)
    scored = occur_once(groups, held)
    few = scored.sum() < FEWEST_UNIQUE or scored.mean() < _MOSTLY
    if few and groups.max() >= FOLDS:
        # Copies stay on the same side, so that none reveals the target of another one. If there are
        # many copies, the rows that occur once are not representative.
        pairs = _pairs(X, y, groups, seed, classes, fraction)
        held = np.sort(np.concatenate([new for _, new in pairs]))
        scored = np.ones(len(held), bool)
    elif not scored.any():
        scored = np.ones(len(held), bool)
    if n <= SMALL_TABLE:
        run.ignores("validation_fraction", f"{FOLDS} folds are better on {n:,} rows")
    mixed = np.random.RandomState(seed)
    order = np.concatenate([mixed.permutation(np.searchsorted(held, new)) for _, new in pairs])
    first = mixed.permutation(n)
    if classes:
        # Two rows of each class come first, so that no part lacks one.
        for label in np.unique(y):
            rows = np.flatnonzero(y == label)
            first[rows[np.argsort(first[rows])[:2]]] -= n
    levels = _level_encoder(X, y, pairs, codes, run, classes)
    rows = DividedTable(X, y, known, levels, pairs, held, scored, order, first)
    if levels is not None:
        # Before the members, so that shared work is not counted in their time.
        with run.stage("levels"):
            for some in [fitted for fitted, _ in pairs] + [np.arange(n)] * rows.cross_fitted:
                rows.columns(some, False)
    return rows


def _level_encoder(
    X: np.ndarray,
    y: np.ndarray,
    pairs: list[tuple[np.ndarray, np.ndarray]],
    columns: Sequence[int],
    run: FitRun,
    classes: bool,
) -> TargetCodes | None:
    """An encoder of categories with many levels that is not fitted.

    Its columns are fixed where one part of the rows is held out. Each fold has its own: the rows of
    one fold are held out of others.
    """
    if not columns or classes:
        return TargetCodes(columns) if columns else None
    limit, (fewest, most) = run.budget.limit, _LEVEL_ROWS
    if limit is not None:
        most = int(np.clip(_LEVEL_ROWS_A_SECOND * limit, fewest, most))
    some = pairs[0][0]
    slopes = slopes_that_differ(X[some], y[some], columns) if len(pairs) == 1 else None
    return TargetCodes(columns, slopes, most)


def _pairs(
    X: np.ndarray, y: np.ndarray, groups: Any, seed: int, classes: bool, fraction: float
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows to fit and rows to predict: folds up to 2,000 rows, otherwise one held-out part."""
    n = len(X)
    fewest = int(np.unique(y, return_counts=True)[1].min()) if classes else 0
    strata, parts = fewest >= FOLDS, None
    if n <= SMALL_TABLE and groups is not None:
        folds = StratifiedGroupKFold if strata else GroupKFold
        parts = folds(FOLDS, shuffle=True, random_state=seed)
    elif n <= SMALL_TABLE:
        folds = StratifiedKFold if strata else KFold
        parts = folds(min(FOLDS, n), shuffle=True, random_state=seed)
    else:
        held = max(1, min(int(fraction * n), _MOST_HELD_OUT))
        once = StratifiedShuffleSplit if strata else ShuffleSplit
        size: Any = held
        if groups is not None:
            once, size = GroupShuffleSplit, held / n
        parts = once(1, test_size=size, random_state=seed)
    pairs = [(np.sort(a), np.sort(b)) for a, b in parts.split(X, y, groups)]
    return [_with_all_classes(*pair, y) for pair in pairs] if classes else pairs


def _with_all_classes(
    fitted: np.ndarray, new: np.ndarray, y: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The parts with rows moved to the first one of classes that it lacks; no fit may lack one."""
    moved = ~np.isin(y[new], y[fitted])
    if moved.all():
        return fitted, new
    return np.sort(np.concatenate([fitted, new[moved]])), new[~moved]


def copies(X: np.ndarray, y: np.ndarray, classes: bool = False) -> np.ndarray:
    """The numbers of rows, equal for copies.

    Rows with equal entries of X and different targets show the noise, as new rows with these
    entries will. They are no copies, unless targets take so few values that most rows of equal
    entries have equal targets by chance.
    """
    if classes or len(np.unique(y)) < _MOSTLY * len(y):
        return numbered(X)
    return numbered(np.column_stack([X, y]))
