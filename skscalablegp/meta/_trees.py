"""Boosted trees on top of a linear model."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import LinearRegression
from sklearn.utils.validation import check_is_fitted


class TreesOnALine(RegressorMixin, BaseEstimator):
    """Boosted trees on the errors of a linear model.

    Trees approximate a slope by steps, which are coarse where rows are few. For example, each
    minute of delay at a flight's departure adds a minute at its arrival, for delays of up to a day.

    Parameters
    ----------
    max_iter, max_leaf_nodes : int
        As in `HistGradientBoostingRegressor`.
    random_state : int, RandomState instance or None, default=None
        Seed of the trees.
    """

    def __init__(self, max_iter: int = 400, max_leaf_nodes: int = 127, random_state: Any = None):
        self.max_iter = max_iter
        self.max_leaf_nodes = max_leaf_nodes
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> TreesOnALine:
        """Fit the line to all rows, and the trees to its errors."""
        self.line_ = LinearRegression().fit(X, y, sample_weight)
        self.trees_ = HistGradientBoostingRegressor(
            max_iter=self.max_iter,
            max_leaf_nodes=self.max_leaf_nodes,
            random_state=self.random_state,
        ).fit(X, y - self.line_.predict(X), sample_weight)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """The sum of both predictions."""
        check_is_fitted(self)
        return self.line_.predict(X) + self.trees_.predict(X)
