"""Predictions as pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

# Columns of intervals.
INTERVAL = ("lower", "upper")


def as_data_frame(values: np.ndarray, X: Any, columns: Iterable[Any]) -> Any:
    """Predicted quantiles as a pandas data frame.

    Parameters
    ----------
    values : ndarray of shape (m, k) or (m, t, k)
        Quantiles of one or of t targets.
    X : array-like of shape (m, d)
        The predicted rows. The data frame has their index if X has one, otherwise row numbers.
    columns : iterable of length k
        Names of the columns. With several targets, the columns have two levels: the number of the
        target, and these names.

    Raises
    ------
    ImportError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "as_frame=True needs pandas: install pandas, or use as_frame=False."
        ) from error
    index = X.index if isinstance(X, pd.DataFrame | pd.Series) else None
    names: Any = list(columns)
    if values.ndim == 3:
        names = pd.MultiIndex.from_product([range(values.shape[1]), names])
        values = values.reshape(len(values), -1)
    return pd.DataFrame(values, index=index, columns=names)
