"""Boosted trees of the size that suits the table, and randomised trees with their spread."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.ensemble import (
    ExtraTreesRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
)
from sklearn.linear_model import LinearRegression
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..core.training import Budget

# Leaves of a tree, and whether the trees learn the errors of a linear model.
_CANDIDATES = ((31, False), (127, False), (127, True))
# Largest number of trees; boosting ends earlier if the error of held-out rows no longer falls.
_MOST_TREES = 400
# Number of trees of 31 leaves where no candidates are compared, as in scikit-learn.
_PLAIN_TREES = 100
# Largest number of rows on which candidates are compared.
_COMPARED = 50_000
# Number of trees after which a fit with a time budget looks at the clock for the first time.
_FIRST_TREES = 5
# Number of randomised trees, and the share of the target's variance that is added to their spread,
# which is zero where all leaves have the same targets.
_RANDOM_TREES, _LEAST_SPREAD = 50, 0.01
# Boosted trees for classes: with the defaults of scikit-learn they are overconfident on few rows.
_FOR_CLASSES = {"learning_rate": 0.05, "max_leaf_nodes": 15}
# Number of boosted classifiers whose probabilities are averaged, and the share of the rows that
# stops each of them. On the suite's tables for choices and on drawn ones the log loss of five was
# lower than that of one which grows a hundred trees.
_AVERAGED, _STOPPING = 5, 0.1


def grow_until(budget: Budget, most: int, grow: Callable[[int], int]) -> bool:
    """Grow trees in steps, each twice as large as the one before, while time is left for the next.

    Parameters
    ----------
    budget : Budget
        Without a limit, one step takes all trees.
    most : int
        Largest number of trees.
    grow : callable
        ``grow(size)`` grows `size` trees in all, and returns how many there are. If they are fewer,
        no more are needed.

    Returns
    -------
    cut : bool
        Whether time has ended the growth.
    """
    size, before = most if budget.limit is None else _FIRST_TREES, 0
    while True:
        begun = budget.seconds
        reached = grow(size)
        took = budget.seconds - begun
        if reached < size or reached == most:
            return False
        # Twice as many trees take at most twice the time.
        if not budget.allows(2 * took):
            return True
        size, before = min(reached + 2 * (reached - before), most), reached


class BoostedTrees(RegressorMixin, BaseEstimator):
    """Boosted trees whose size is chosen by held-out rows.

    The candidates are trees of 31 and of 127 leaves, and trees of 127 leaves on the errors of a
    linear model. Large trees suit functions that change fast. Trees approximate a slope by steps,
    which are coarse where rows are few: for example, each minute of a flight's delay at departure
    adds a minute at arrival, for delays of up to a day. The candidate with the smallest squared
    error on the tenth of the rows that stops its boosting is kept. Candidates are compared on at
    most 50,000 rows; for a larger table the best one is fitted again to all rows.

    Parameters
    ----------
    compared : bool, default=True
        Whether to compare candidates. Without a comparison there are a hundred trees of 31 leaves,
        and no rows are held out.
    random_state : int, RandomState instance or None, default=None
        Seed of the trees and of the held-out rows.
    categorical_features : list of int or None, default=None
        Columns that hold codes of categories, of which trees split sets. The line sees the others.

    Attributes
    ----------
    line_ : LinearRegression or None
    trees_ : HistGradientBoostingRegressor
    cut_ : bool
        Whether the time budget has left out trees or candidates.
    """

    def __init__(
        self, compared: bool = True, random_state: Any = None, categorical_features: Any = None
    ):
        self.compared, self.random_state = compared, random_state
        self.categorical_features = categorical_features

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, max_seconds: float | None = None
    ) -> BoostedTrees:
        """Fit the candidates, and keep the best.

        Under a time budget the first candidate may take all the time, or half of it if the table is
        larger. If that is not enough, there are no others; otherwise each of the remaining fits may
        take an equal share of the remaining time. Fits are omitted if their first five trees would
        end too late, according to the measured time of a leaf.
        """
        budget = Budget(max_seconds)
        random_state = check_random_state(self.random_state)
        # Candidates with the same seed hold out the same rows.
        seed = random_state.randint(2**31 - 1)
        if not self.compared:
            trees = HistGradientBoostingRegressor(
                early_stopping=False,
                random_state=seed,
                categorical_features=self.categorical_features,
            )
            self.line_ = None
            self.trees_, self.cut_ = _grown(trees, X, y, sample_weight, _PLAIN_TREES, budget)
            return self
        rows = np.arange(len(X))
        if len(X) > _COMPARED:
            rows = np.sort(random_state.choice(len(X), _COMPARED, replace=False))
        some = X[rows], y[rows], None if sample_weight is None else sample_weight[rows]
        n_fits = len(_CANDIDATES) * (2 if len(X) > _COMPARED else 1)
        fitted: list[tuple[LinearRegression | None, HistGradientBoostingRegressor, bool]] = []
        a_leaf = 0.0

        def late(candidate: tuple[int, bool], n: int) -> bool:
            """Whether the first trees of a fit to n rows would end too late."""
            took = a_leaf * n / len(rows)
            return not budget.allows(_FIRST_TREES * candidate[0] * took)

        for k, candidate in enumerate(_CANDIDATES):
            begun = budget.seconds
            if fitted and (fitted[0][2] or late(candidate, len(rows))):
                break
            part = 1 / (n_fits - k) if fitted else len(_CANDIDATES) / n_fits
            fitted.append(self._fit(*some, seed, *candidate, budget.share(part)))
            leaves = fitted[-1][1].n_iter_ * candidate[0]
            a_leaf = (budget.seconds - begun) / leaves
        best = max(range(len(fitted)), key=lambda k: fitted[k][1].validation_score_[-1])
        self.line_, self.trees_, self.cut_ = fitted[best]
        if len(X) > _COMPARED:
            if late(_CANDIDATES[best], len(X)):
                self.cut_ = True
                return self
            found = self._fit(X, y, sample_weight, seed, *_CANDIDATES[best], budget)
            self.line_, self.trees_, self.cut_ = found
        return self

    def predict(self, X) -> np.ndarray:
        """The trees, plus the line where there is one."""
        check_is_fitted(self)
        trees = self.trees_.predict(X)
        return trees if self.line_ is None else self.line_.predict(self._numbers(X)) + trees

    def _fit(self, X, y, sample_weight, seed, leaves, on_a_line, budget):
        """A line or None, the trees on its errors, and whether time has left out some."""
        line, errors = None, y
        if on_a_line:
            line = LinearRegression().fit(self._numbers(X), y, sample_weight)
            errors = y - line.predict(self._numbers(X))
        trees = HistGradientBoostingRegressor(
            max_leaf_nodes=leaves,
            early_stopping=True,
            random_state=seed,
            categorical_features=self.categorical_features,
        )
        return line, *_grown(trees, X, errors, sample_weight, _MOST_TREES, budget)

    def _numbers(self, X: Any) -> Any:
        """The columns that hold no codes."""
        codes = self.categorical_features
        return X if codes is None else np.delete(X, codes, axis=1)


def _grown(trees, X, y, sample_weight, most, budget):
    """The boosted trees after a fit of as many as there is time for, and whether that cut it."""
    trees.set_params(warm_start=True)

    def grow(size: int) -> int:
        return trees.set_params(max_iter=size).fit(X, y, sample_weight).n_iter_

    cut = grow_until(budget, most, grow)
    return trees, cut


class RandomizedTrees(RegressorMixin, BaseEstimator):
    """Extremely randomised trees, with standard deviations from the spread of their predictions.

    The leaves have single rows, so that each tree predicts the target of one of the rows nearby.
    The variance of these targets, plus a hundredth of the variance of all targets, is small where
    rows nearby agree, and large where they do not.

    Parameters
    ----------
    random_state : int, RandomState instance or None, default=None
        Seed of the trees.

    Attributes
    ----------
    trees_ : ExtraTreesRegressor
    least_ : float
        The variance that is added.
    cut_ : bool
        Whether the time budget has left out trees.

    References
    ----------
    P. Geurts, D. Ernst, L. Wehenkel (2006), Extremely randomized trees.
    """

    def __init__(self, random_state: Any = None):
        self.random_state = random_state

    def fit(
        self, X: Any, y: Any, sample_weight: Any = None, max_seconds: float | None = None
    ) -> RandomizedTrees:
        """Fit fifty trees, or as many as there is time for, but at least five."""
        seed = check_random_state(self.random_state).randint(2**31 - 1)
        self.trees_ = ExtraTreesRegressor(warm_start=True, random_state=seed)

        def grow(size: int) -> int:
            return len(self.trees_.set_params(n_estimators=size).fit(X, y, sample_weight))

        self.cut_ = grow_until(Budget(max_seconds), _RANDOM_TREES, grow)
        self.least_ = _LEAST_SPREAD * float(np.var(y))
        return self

    def predict(self, X, return_std: bool = False) -> Any:
        """The mean of the trees, and with `return_std` their standard deviation."""
        check_is_fitted(self)
        if not return_std:
            return self.trees_.predict(X)
        each = np.stack([tree.predict(X) for tree in self.trees_.estimators_])
        return each.mean(0), np.sqrt(each.var(0) + self.least_)


class BoostedClasses(ClassifierMixin, BaseEstimator):
    """The average probabilities of boosted trees, each of which other held-out rows stop.

    Held-out rows decide on the number of trees, and differ from one classifier to the next, so that
    the average has learned from all rows. If a class has a single row, or the held-out rows are
    fewer than the classes, one classifier has a hundred trees.

    Parameters
    ----------
    small : bool, default=True
        Whether trees have 15 leaves and learn slowly, which suits up to 50,000 rows, or are those
        of a `HistGradientBoostingClassifier`.
    random_state : int, RandomState instance or None, default=None
        Seed of the held-out rows.
    categorical_features : list of int or None, default=None
        Columns that hold codes of categories.

    Attributes
    ----------
    classes_ : ndarray of shape (c,)
        The labels.
    trees_ : list of HistGradientBoostingClassifier
        One to five.
    cut_ : bool
        Whether the time budget has left out classifiers.
    """

    def __init__(
        self, small: bool = True, random_state: Any = None, categorical_features: Any = None
    ):
        self.small, self.random_state = small, random_state
        self.categorical_features = categorical_features

    def fit(self, X: Any, y: Any, max_seconds: float | None = None) -> BoostedClasses:
        """Fit five classifiers, or as many as there is time for, but at least one."""
        budget, rng = Budget(max_seconds), check_random_state(self.random_state)
        self.classes_, counts = np.unique(y, return_counts=True)
        stops = counts.min() > 1 and _STOPPING * len(y) >= len(counts)
        settings: dict[str, Any] = {"categorical_features": self.categorical_features}
        settings |= _FOR_CLASSES if self.small else {}
        if stops:
            settings = settings | {"max_iter": _MOST_TREES, "validation_fraction": _STOPPING}
        most = _AVERAGED if stops else 1
        self.trees_ = []
        while len(self.trees_) < most:
            begun, seed = budget.seconds, rng.randint(2**31 - 1)
            trees = HistGradientBoostingClassifier(
                early_stopping=stops, random_state=seed, **settings
            )
            self.trees_.append(trees.fit(X, y))
            if not budget.allows(budget.seconds - begun):
                break
        self.cut_ = len(self.trees_) < most
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """The average of the classifiers' probabilities."""
        check_is_fitted(self)
        return np.mean([trees.predict_proba(X) for trees in self.trees_], axis=0)

    def predict(self, X: Any) -> np.ndarray:
        """The labels of the largest average."""
        return self.classes_[self.predict_proba(X).argmax(1)]
