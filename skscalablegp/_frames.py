"""Tables that are given, and predictions as pandas data frames."""

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


def readable(X: Any) -> Any:
    """A table whose columns have names of their own, as a data frame if it is one of Arrow.

    Raises
    ------
    ValueError
        If several columns have the same name.
    ImportError
        For a table of Arrow without pandas.
    """
    if hasattr(X, "__arrow_c_stream__") and not (hasattr(X, "iloc") or hasattr(X, "to_series")):
        if not hasattr(X, "to_pandas"):
            raise TypeError(
                f"X is a {type(X).__name__}, whose columns cannot be read: convert it, for example "
                "by polars.DataFrame(X)."
            )
        try:
            X = X.to_pandas()
        except ImportError as error:
            raise ImportError(
                f"A {type(X).__name__} is read through pandas: install pandas, or convert X, for "
                "example by polars.DataFrame(X)."
            ) from error
    names = list(X.columns) if hasattr(X, "columns") and hasattr(X, "shape") else []
    if len(set(names)) < len(names):
        again = [name for name in dict.fromkeys(names) if names.count(name) > 1]
        raise ValueError(
            f"X has several columns of the same name ({', '.join(map(repr, again[:5]))}): give "
            "each column a name of its own."
        )
    return X


def is_numeric(X: Any) -> bool:
    """Whether a table has nothing but numbers, so that scikit-learn can read it."""
    if hasattr(X, "columns"):
        return all(getattr(X[name].dtype, "kind", "O") in "iuf" for name in X.columns)
    if not hasattr(X, "dtype"):
        try:
            X = np.asarray(X)
        except ValueError:  # rows of different lengths, which scikit-learn names
            return True
    return X.dtype.kind in "biufc" if hasattr(X.dtype, "kind") else True
