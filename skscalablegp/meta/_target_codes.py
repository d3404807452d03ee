"""Categories with many levels as columns of numbers that the targets of their rows determine."""

from __future__ import annotations

from copy import copy
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, Int
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import KFold

from .._compat import target_encoder

# Folds in which rows are encoded without their own targets.
_FOLDS = 5
# scikit-learn's histogram-based boosting takes at most 255 categories, of which one is missing.
_MOST_LEVELS = 254
# Slopes of a column differ between levels if they vary by this many standard errors more than
# noise lets them, and if they explain this share of the variance. So many columns have slopes.
_CLEARLY, _LEAST_SHARE, _MOST_SLOPES = 4.0, 0.02, 2
# Boosted trees whose predictions are a column: their number, and that on few rows, which every fold
# encodes anew; the folds of their predictions.
_TREES, _FEW_TREES, _FEW_ROWS, _TREE_FOLDS = 100, 50, 2000, 3
_TREE = {"max_leaf_nodes": 15, "early_stopping": False, "random_state": 0}


class TargetCodes(TransformerMixin, BaseEstimator):
    """Columns of codes become numbers; other columns stay as they are.

    A code becomes the mean target of its level, shrunk towards the mean of all rows. Where the
    slope of the target along another column clearly differs between levels, the slope of the level
    is a further column. Where `trees` are asked for, the prediction of boosted trees that split
    sets of levels is the last column: it carries what the levels have in common with each other
    and with other columns.

    Training rows are encoded without their own targets, by cross-fitting (D. Micci-Barreca, 2001,
    A preprocessing scheme for high-cardinality categorical attributes, has the means).

    Parameters
    ----------
    columns : list of int
        The columns of codes: whole numbers from 0, and -1 for a level that is missing or new.
    slopes : list of (int, int) or None
        Pairs of a column of codes and of another column along which the slopes of its levels are
        learned. None finds them in the rows of the fit, by `slopes_that_differ`.
    tree_rows : int
        Largest number of rows that trees are fitted to, because this encoding is only the start of
        a fit; 0 for no trees.
    kept : bool
        Whether the codes themselves come first, for models that know categories. The 254 most
        frequent levels keep a number of their own; others count as missing.

    Attributes
    ----------
    encoder_ : TargetEncoder
        scikit-learn's encoder by means.
    pairs_ : list of (int, int)
        The pairs of columns with slopes.
    slopes_ : list of ndarray of shape (levels + 1,)
        The slopes of each pair; the last one is that of a level which is missing or new.
    ranks_ : list of ndarray of shape (levels + 1,)
        For each column of codes, the rank of each level by its number of rows, or -1.
    trees_ : HistGradientBoostingRegressor or None
    """

    def __init__(self, columns: Any = (), slopes: Any = (), tree_rows: int = 0, kept: bool = False):
        self.columns, self.slopes, self.tree_rows, self.kept = columns, slopes, tree_rows, kept

    def keeping(self, kept: bool) -> TargetCodes:
        """The same encoder with the codes in front, or without them."""
        other = copy(self)
        other.kept = kept
        return other

    def fit(self, X: np.ndarray, y: np.ndarray) -> TargetCodes:
        """Learn the encoding."""
        self.fit_transform(X, y)
        return self

    def fit_transform(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:  # type: ignore[override]
        """Learn the encoding; the rows are encoded without their own targets."""
        kind, n = "continuous" if np.asarray(y).dtype.kind == "f" else "auto", len(X)
        self.ranks_ = [_ranks(X[:, c]) for c in self.columns]
        folds = max(2, min(_FOLDS, n // 2))
        self.encoder_ = target_encoder(kind, folds=folds)
        # Under metadata routing some versions of the encoder require groups.
        with config_context(enable_metadata_routing=False):
            means = self.encoder_.fit_transform(X[:, self.columns], y)
        pairs = slopes_that_differ(X, y, self.columns) if self.slopes is None else self.slopes
        self.pairs_ = list(pairs)
        found = np.empty((n, len(self.pairs_)))
        if self.pairs_:
            for fitted, new in KFold(folds, shuffle=True, random_state=0).split(X):
                self._learn_slopes(X[fitted], y[fitted])
                found[new] = self._slopes_at(X[new])
            self._learn_slopes(X, y)
        values = self._replaced(X, means, found)
        self.trees_ = None
        if self.tree_rows:
            values = np.column_stack([values, self._cross_fitted_trees(self._for_trees(X), y)])
        return np.hstack([self._codes(X), values]) if self.kept else values

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Encode new rows; a level that the fit has not seen has the mean of all targets."""
        values = self._replaced(X, self.encoder_.transform(X[:, self.columns]), self._slopes_at(X))
        if self.trees_ is not None:
            values = np.column_stack([values, self.trees_.predict(self._for_trees(X))])
        return np.hstack([self._codes(X), values]) if self.kept else values

    def _replaced(self, X: np.ndarray, means: np.ndarray, slopes: np.ndarray) -> np.ndarray:
        if means.shape[1] == len(self.columns):
            X = X.copy()
            X[:, self.columns] = means
            return np.hstack([X, slopes])
        # Several classes give a column for each class.
        rest = np.delete(np.arange(X.shape[1]), self.columns)
        return np.hstack([X[:, rest], means, slopes])

    def _codes(self, X: np.ndarray) -> np.ndarray:
        columns = zip(self.columns, self.ranks_, strict=True)
        return np.column_stack([ranks[_levels(X[:, c], len(ranks))] for c, ranks in columns])

    def _for_trees(self, X: np.ndarray) -> np.ndarray:
        """Columns that no target has determined: means of other rows would know a row's own one."""
        return np.hstack([self._codes(X), np.delete(X, self.columns, axis=1)])

    def _learn_slopes(self, X: np.ndarray, y: np.ndarray) -> None:
        sizes = dict(zip(self.columns, map(len, self.ranks_), strict=True))
        self.slopes_ = [
            level_slopes(_levels(X[:, c], sizes[c]), X[:, j], y, sizes[c]).slopes
            for c, j in self.pairs_
        ]

    def _slopes_at(self, X: np.ndarray) -> np.ndarray:
        if not self.pairs_:
            return np.empty((len(X), 0))
        pairs = zip(self.pairs_, self.slopes_, strict=True)
        return np.column_stack([known[_levels(X[:, c], len(known))] for (c, _), known in pairs])

    def _cross_fitted_trees(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Predictions of trees that have not seen the row; the trees of all rows are kept."""
        some = np.arange(len(X))
        if len(X) > self.tree_rows:
            some = np.random.RandomState(0).permutation(len(X))[: self.tree_rows]
        places = list(range(len(self.columns)))
        size = _TREES if len(some) > _FEW_ROWS else _FEW_TREES
        fresh = HistGradientBoostingRegressor(
            max_iter=size, learning_rate=10 / size, categorical_features=places, **_TREE
        )
        self.trees_ = clone(fresh).fit(X[some], y[some])
        found = self.trees_.predict(X)
        folds = KFold(max(2, min(_TREE_FOLDS, len(some))), shuffle=True, random_state=0)
        for fitted, new in folds.split(some):
            trees = clone(fresh).fit(X[some[fitted]], y[some[fitted]])
            found[some[new]] = trees.predict(X[some[new]])
        return found


class LevelSlopes(NamedTuple):
    """Slopes of a target along a column, for each level of a category.

    Attributes
    ----------
    slopes : ndarray of shape (levels,)
        Shrunk towards the slope that all levels have in common.
    excess : float
        How much more the slopes vary than noise lets them, in standard errors.
    share : float
        Share of the target's variance that their variation explains.
    """

    slopes: Float[np.ndarray, " levels"]
    excess: float
    share: float


def level_slopes(
    levels: Int[np.ndarray, " n"],
    x: Float[np.ndarray, " n"],
    y: Float[np.ndarray, " n"],
    n_levels: int,
) -> LevelSlopes:
    """Slopes of y along x within each level, as random effects, in O(n).

    A slope b has a variance s2 / S, where S is the sum of squares of x about its mean in the level.
    The variance between levels is the estimate of moments of DerSimonian and Laird (1986), and a
    slope is shrunk towards the common one by its share of the sum of both variances.
    """
    n = np.bincount(levels, minlength=n_levels)
    one = np.maximum(n, 1)
    dx = x - (np.bincount(levels, x, n_levels) / one)[levels]
    dy = y - (np.bincount(levels, y, n_levels) / one)[levels]
    squares = np.bincount(levels, dx * dx, n_levels)
    products = np.bincount(levels, dx * dy, n_levels)
    used = (n > 2) & (squares > 1e-9 * squares.max(initial=0))
    k = int(used.sum())
    if k < 3:
        return LevelSlopes(np.zeros(n_levels), 0.0, 0.0)
    safe = np.where(used, squares, 1.0)
    common = products[used].sum() / squares[used].sum()
    own = np.where(used, products / safe, common)
    rest = max(len(y) - int((n > 0).sum()) - k, 1)
    noise = max(float(np.square(dy - own[levels] * dx).sum()) / rest, np.finfo(float).tiny)
    spread = float((squares * np.square(own - common))[used].sum()) / noise
    total = squares[used].sum()
    scale = total - np.square(squares[used]).sum() / total
    between = max(0.0, noise * (spread - (k - 1)) / scale)
    kept = np.where(used, between / (between + noise / safe), 0.0)
    share = between * float(np.var(x)) / max(float(np.var(y)), np.finfo(float).tiny)
    excess = (spread - (k - 1)) / np.sqrt(2.0 * (k - 1))
    return LevelSlopes(common + kept * (own - common), float(excess), share)


def slopes_that_differ(
    X: Float[np.ndarray, "n d"], y: Float[np.ndarray, " n"], columns: list[int]
) -> list[tuple[int, int]]:
    """Pairs of a column of codes and a column along which slopes clearly differ between levels.

    O(n d) for each column of codes.
    """
    pairs = []
    others = np.delete(np.arange(X.shape[1]), columns)
    for c in columns:
        size = int(X[:, c].max()) + 2
        levels = _levels(X[:, c], size)
        found = [(level_slopes(levels, X[:, j], y, size), int(j)) for j in others]
        clear = [
            (each.share, j)
            for each, j in found
            if each.excess > _CLEARLY and each.share > _LEAST_SHARE
        ]
        pairs += [(c, j) for _, j in sorted(clear, reverse=True)[:_MOST_SLOPES]]
    return pairs


def _levels(codes: Float[np.ndarray, " n"], size: int) -> Int[np.ndarray, " n"]:
    """Codes as numbers from 0 to size - 1, of which the last stands for all that are not there."""
    levels = codes.astype(np.int64)
    return np.where((levels < 0) | (levels >= size - 1), size - 1, levels)


def _ranks(codes: Float[np.ndarray, " n"]) -> Float[np.ndarray, " levels"]:
    """The rank of each level by its number of rows; -1 for rare levels and for the last place."""
    size = int(codes.max()) + 2
    counts = np.bincount(_levels(codes, size), minlength=size)[:-1]
    ranks = np.full(size, -1.0)
    order = np.argsort(-counts, kind="stable")[:_MOST_LEVELS]
    order = order[counts[order] > 0]
    ranks[order] = np.arange(len(order))
    return ranks
