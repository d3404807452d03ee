"""Columns with heavy tails as normal scores, where a Gaussian process then explains more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from jaxtyping import Float
from scipy.special import ndtr, ndtri
from sklearn.base import BaseEstimator, TransformerMixin, clone

from ..core import FitRun
from ..models.iterative import IterativeGPRegressor
from ._below import fit_below, opened, told_noise
from ._division import DividedTable

# A column has heavy tails if one of its outermost thousandths is so many spreads away from the
# median; the spread is half of what the middle 68 % of the rows cover. A normal column has 3.1, an
# exponential one 6.7, and the exponential of a standard normal column 17.
_HEAVY, _TAIL, _MIDDLE = 8.0, 0.001, 0.16
# Columns with fewer values are counts or codes, and so many random rows show the tails.
_FEWEST_VALUES, _SHOWN = 20, 20_000
# Number of knots, and of rows beyond the outermost ones.
_KNOTS, _BEYOND = 51, 5
# Rows and steps of the processes that are compared, and the gain in nats a row for which scores
# are kept. Friedman's function of ten log-normal columns gains more (benchmarks/awkward.py --cases
# tails --max-seconds 60). Smaller gains on the suite's tables for choices did not show in held-out
# rows.
_ROWS, _STEPS, _WORTH = 300, 6, 0.4
# Fewer rows show no tails. In a shorter budget the comparison costs others more than it gains.
_FEWEST_ROWS, _LEAST_SECONDS = 200, 20.0


@dataclass(frozen=True)
class NormalScores:
    """A rising, piecewise linear function that makes a column about normal.

    It takes the column's quantiles to those of the standard normal distribution (van der Waerden,
    1952), and continues beyond the outermost ones with the slope that it has there. Distinct
    entries remain distinct.

    Attributes
    ----------
    values, scores : ndarray of shape (k,)
        Both rise strictly.
    """

    values: np.ndarray
    scores: np.ndarray

    @classmethod
    def of(cls, x: Float[np.ndarray, " n"]) -> NormalScores:
        """The scores of a column with at least two different values."""
        end = -ndtri(min(0.25, _BEYOND / len(x)))
        z = np.linspace(-end, end, _KNOTS)
        values, place = np.unique(np.quantile(x, ndtr(z)), return_inverse=True)
        if len(values) < 2:
            values, place = np.array([x.min(), x.max()]), np.arange(2)
            z = np.array([-end, end])
        return cls(values, np.bincount(place, z) / np.bincount(place))

    @property
    def _slopes(self) -> np.ndarray:
        return np.diff(self.scores) / np.diff(self.values)

    def __call__(self, x: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
        inside, slopes = np.clip(x, self.values[0], self.values[-1]), self._slopes
        beyond = np.where(x < inside, slopes[0], slopes[-1])
        return np.interp(inside, self.values, self.scores) + beyond * (x - inside)


class ScoredColumns(TransformerMixin, BaseEstimator):
    """A step of a pipeline that replaces some columns by their normal scores.

    Parameters
    ----------
    scores : dict of int to NormalScores
    """

    def __init__(self, scores: Any = None):
        self.scores = scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.requires_fit = False
        return tags

    def fit(self, X: np.ndarray, y: Any = None) -> ScoredColumns:
        """There is nothing to learn."""
        return self

    def transform(self, X: Float[np.ndarray, "m d"]) -> Float[np.ndarray, "m d"]:
        """A copy with normal scores."""
        X = np.array(X, np.float64)
        for j, score in (self.scores or {}).items():
            X[:, j] = score(X[:, j])
        return X


def heavy_columns(X: Float[np.ndarray, "n d"]) -> list[int]:
    """Numbers of the columns with heavy tails."""
    few = X
    if len(X) > _SHOWN:
        few = X[np.random.RandomState(0).choice(len(X), _SHOWN, replace=False)]
    return [j for j, column in enumerate(few.T) if _is_heavy(column)]


def _is_heavy(x: Float[np.ndarray, " n"]) -> bool:
    shares = [_TAIL, _MIDDLE, 0.5, 1 - _MIDDLE, 1 - _TAIL]
    lowest, low, median, high, highest = np.quantile(x, shares)
    spread = (high - low) / 2
    if spread == 0 or max(highest - median, median - lowest) < _HEAVY * spread:
        return False
    return len(np.unique(x)) >= _FEWEST_VALUES


def useful_scores(
    rows: DividedTable, codes: list[int], outer: Any, run: FitRun
) -> dict[int, NormalScores]:
    """Normal scores of the columns with heavy tails; none if a process on some rows gains little.

    Two exact processes are compared by their marginal likelihoods, on rows to which members are
    fitted. Other members keep the columns: a linear one may need them, and trees see no difference.

    Parameters
    ----------
    rows : DividedTable
    codes : list of int
        Columns that hold codes of categories.
    outer : estimator
        Of which the processes receive their device and their precision.
    run : FitRun

    Notes
    -----
    O(n log n) for each column with heavy tails, and a few seconds of one core for the comparison.
    """
    limit, within = run.budget.limit, rows.folds[0][0]
    if len(within) < _FEWEST_ROWS or (limit is not None and limit < _LEAST_SECONDS):
        return {}
    X = rows.X[within]
    found = {j: NormalScores.of(X[:, j]) for j in heavy_columns(X) if j not in codes}
    if not found:
        return {}
    some = np.sort(np.random.RandomState(0).permutation(len(X))[:_ROWS])
    tables = [np.delete(X[some], codes, axis=1)]
    tables.append(np.delete(ScoredColumns(found).transform(X[some]), codes, axis=1))
    fresh = opened(IterativeGPRegressor(max_iter=_STEPS), outer, run)
    told = told_noise(fresh, None if rows.known is None else rows.known[within[some]])
    share, values = run.budget.share("normal scores"), []
    with run.stage("normal scores"), run.budget.may_end(inner=True):
        for table in tables:
            inner = clone(fresh)
            fit = partial(fit_below, inner, run, table, rows.y[within[some]], None, share)
            if fit(False, True, **told)[0].ends_fit:
                return {}
            values.append(inner.log_marginal_likelihood_value_)
    return found if len(values) == 2 and values[1] - values[0] > _WORTH * len(some) else {}
