"""The signal that simple models find: which columns matter, and how much they explain."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from threadpoolctl import threadpool_limits

from .data import Columns, limited

# Largest number of rows that the models learn from, and of held-out rows that evaluate them.
_ROWS, _HELD_OUT = 1400, 600
# With fewer rows, boosted trees find little that a straight line does not.
FEWEST_ROWS = 100
# Number of trees, of leaves of a tree, and fewest rows of a leaf.
_TREES, _LEAVES, _LEAF_ROWS = 80, 15, 20
# Largest number of targets that are looked at; several share their relevant columns.
_TARGETS = 3
# Up to this many columns are permuted one by one, more of them in blocks; a block whose rise of the
# error is below this share of the largest counts as irrelevant.
_FEW_COLUMNS, _OF_LARGEST = 60, 0.003
# Held-out errors have to fall by this many standard errors.
_CLEAR = 3.0


class Signal(NamedTuple):
    """The part of a target that one simple model explains on held-out rows.

    Attributes
    ----------
    model : str
        The name of the model, for reports.
    relevance : ndarray of shape (d,)
        The increase of the squared error of held-out rows when a column is permuted, at least 0.
    explained : float
        Share of the variance of held-out rows that the model explains; may be negative.
    score : float
        The mean fall of the squared errors, in units of its standard error.
    errors : ndarray of shape (m,)
        Squared errors of the held-out rows, which are the last ones, in units of the variances of
        the targets.
    targets, units : ndarray
        The numbers of the targets that were looked at, and their variances.
    """

    model: str
    relevance: np.ndarray
    explained: float
    score: float
    errors: np.ndarray
    targets: np.ndarray
    units: np.ndarray

    @property
    def clear(self) -> bool:
        """Whether held-out rows show that there is a signal."""
        return self.score > _CLEAR


def simple_signals(X: np.ndarray, Y: np.ndarray, seed: int = 0) -> list[Signal]:
    """What boosted trees and a linear model explain, the better one first.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows in random order, of which the first 2,000 are used: seven tenths for training, the
        others for evaluation.
    Y : ndarray of shape (n, t)
        Targets.
    seed : int, default=0
        Seed of the permutations.

    Returns
    -------
    signals : list of Signal
        Empty for fewer than 100 rows or constant targets.

    Notes
    -----
    About half a second of one core for 2,000 rows of 40 columns: O(n d) for each tree, and d
    predictions of the held-out rows. Permutation importance: Breiman (2001), section 10.
    """
    X = np.asarray(X[: _ROWS + _HELD_OUT], dtype=np.float64)
    Y = np.asarray(Y[: len(X)], dtype=np.float64)
    n = min(_ROWS, len(X) * 7 // 10)
    if len(X) < FEWEST_ROWS or np.ptp(Y, axis=0).max() == 0:
        return []
    leaf = max(2, min(_LEAF_ROWS, n // 20))
    trees = HistGradientBoostingRegressor(
        max_iter=_TREES,
        max_leaf_nodes=_LEAVES,
        min_samples_leaf=leaf,
        early_stopping=False,
        random_state=seed,  # or scikit-learn would draw one from the global generator
    )
    # An outlier would dominate its column in a linear model.
    centre, spread = Columns(X[:n]).robust_moments()
    Z = (limited(X) - centre) / spread
    # A second thread of OpenMP would remain after the call, and block forked processes.
    with threadpool_limits(1, user_api="openmp"):
        found = [
            _evaluated("boosted trees", trees, X, Y, n, seed),
            _evaluated("a linear model", Ridge(1.0), Z, Y, n, seed),
        ]
    return sorted(found, key=lambda signal: -signal.explained)


def asked_once() -> Callable[[np.ndarray, np.ndarray], list[Signal]]:
    """`simple_signals`, with the first answer for all further calls, which are on the same rows."""
    found: list[list[Signal]] = []

    def ask(X: np.ndarray, Y: np.ndarray) -> list[Signal]:
        if not found:
            found.append(simple_signals(X, Y))
        return found[0]

    return ask


def _evaluated(name: str, model, X: np.ndarray, Y: np.ndarray, n: int, seed: int) -> Signal:
    """Evaluate a model of the first n rows on the held-out rows, summed over targets."""
    held, d = X[n:], X.shape[1]
    units = Y.var(0)
    targets = np.flatnonzero(units > 0)[:_TARGETS]
    errors, blank, relevance = np.zeros(len(held)), np.zeros(len(held)), np.zeros(d)
    for k in targets:
        y, unit = Y[:, k], units[k]
        model.fit(X[:n], y[:n])
        own = np.square(y[n:] - model.predict(held)) / unit
        errors += own
        blank += np.square(y[n:] - y[:n].mean()) / unit
        relevance += _rises(model, held, y[n:], own.mean() * unit, seed) / unit
    falls = blank - errors
    score = float(falls.mean()) / max(float(falls.std()) / math.sqrt(len(held)), 1e-12)
    explained = float(falls.mean()) / max(float(blank.mean()), 1e-12)
    relevance = np.maximum(relevance, 0.0)
    return Signal(name, relevance, explained, score, errors, targets, units[targets])


def _rises(model, X: np.ndarray, y: np.ndarray, own: float, seed: int) -> np.ndarray:
    """The rise of the mean squared error `own` when each column in turn is permuted.

    Of many columns, those count as 0 that cost nothing as a block.
    """
    order, X, d = np.random.RandomState(seed).permutation(len(X)), X.copy(), X.shape[1]

    def rise(columns: np.ndarray) -> float:
        kept = X[:, columns].copy()
        X[:, columns] = kept[order]
        error = np.mean(np.square(y - model.predict(X)))
        X[:, columns] = kept
        return float(error) - own

    if d <= _FEW_COLUMNS:
        return np.array([rise(np.array([j])) for j in range(d)])
    rises, blocks = np.zeros(d), np.array_split(np.arange(d), math.ceil(math.sqrt(d)))
    of_blocks = [rise(block) for block in blocks]
    for block, together in zip(blocks, of_blocks, strict=True):
        if together > _OF_LARGEST * max(of_blocks):
            rises[block] = [rise(np.array([j])) for j in block]
    return rises
