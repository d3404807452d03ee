"""Categories with many levels as the mean targets of their rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import config_context
from sklearn.base import BaseEstimator, TransformerMixin

from .._compat import target_encoder


class TargetCodes(TransformerMixin, BaseEstimator):
    """Columns of codes become the mean target of their level; other columns stay as they are.

    Training rows are encoded without their own targets, by the cross-fitting of scikit-learn's
    `TargetEncoder`.

    Parameters
    ----------
    columns : list of int
        The columns of codes.
    """

    def __init__(self, columns: Any = ()):
        self.columns = columns

    def fit(self, X: np.ndarray, y: np.ndarray) -> TargetCodes:
        """Learn the mean targets."""
        self.fit_transform(X, y)
        return self

    def fit_transform(self, X: np.ndarray, y: np.ndarray) -> np.ndarray:  # type: ignore[override]
        """Learn the mean targets; the rows are encoded without their own."""
        kind = "continuous" if np.asarray(y).dtype.kind == "f" else "auto"
        self.encoder_ = target_encoder(kind, folds=max(2, min(5, len(X) // 2)))
        # Under metadata routing some versions of the encoder require groups.
        with config_context(enable_metadata_routing=False):
            return self._replaced(X, self.encoder_.fit_transform(X[:, self.columns], y))

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Encode new rows; a level that the fit has not seen becomes the mean of all targets."""
        return self._replaced(X, self.encoder_.transform(X[:, self.columns]))

    def _replaced(self, X: np.ndarray, values: np.ndarray) -> np.ndarray:
        X = X.copy()
        if values.shape[1] == len(self.columns):
            X[:, self.columns] = values
            return X
        # Several classes give a column for each class.
        rest = np.delete(np.arange(X.shape[1]), self.columns)
        return np.hstack([X[:, rest], values])
