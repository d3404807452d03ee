"""A scikit-learn kernel that applies another kernel to some columns."""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Hyperparameter, Kernel

from ._categorical import Categorical, LowRankCategorical
from ._nodes import Node
from ._registry import Layout, register_kernel


class Columns(Kernel):
    """A kernel that uses only some columns of X.

    Sums and products of such kernels treat columns differently, for instance with a trend in one
    column, a season in another and categories in a third. The kernel also works in scikit-learn's
    GaussianProcessRegressor, with column numbers.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel
        The kernel of the chosen columns. If it has one length scale per column, give one for each
        chosen column.
    columns : int, str, or sequence of them
        Column numbers from 0, or names of the columns of a data frame. When an estimator of this
        package is fitted to a data frame, names are replaced by numbers in its `kernel_`.

    Raises
    ------
    ValueError
        When the kernel is used: for columns that X does not have or that are chosen twice, and for
        names if X has none.

    See Also
    --------
    Categorical, LowRankCategorical : Kernels for columns of categories.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.gaussian_process.kernels import RBF, ExpSineSquared
    >>> from skscalablegp import IterativeGPRegressor
    >>> X = pd.DataFrame({"year": [2010.0, 2011.0, 2012.0], "hour": [3.0, 9.0, 15.0]})
    >>> kernel = Columns(RBF(5.0), "year") * Columns(ExpSineSquared(1.0, 24.0), "hour")
    >>> gp = IterativeGPRegressor(kernel, alpha=0.1, optimizer=None).fit(X, [1.0, 2.0, 3.0])
    >>> gp.kernel_.k1
    Columns(RBF(length_scale=5), columns=[0])
    """

    def __init__(self, kernel: Kernel, columns):
        self.kernel = kernel
        self.columns = columns

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters; with `deep` also those of the inner kernel."""
        params = {"kernel": self.kernel, "columns": self.columns}
        if deep:
            inner = self.kernel.get_params()
            params |= {f"kernel__{name}": value for name, value in inner.items()}
        return params

    @property
    def hyperparameters(self) -> list[Hyperparameter]:
        """The hyperparameters of the inner kernel, with the prefix ``kernel__``."""
        return [
            Hyperparameter(f"kernel__{h.name}", h.value_type, h.bounds, h.n_elements)
            for h in self.kernel.hyperparameters
        ]

    @property
    def theta(self) -> np.ndarray:
        """The logarithms of the free hyperparameters."""
        return self.kernel.theta

    @theta.setter
    def theta(self, theta: np.ndarray) -> None:
        self.kernel.theta = theta

    @property
    def bounds(self) -> np.ndarray:
        """The bounds of theta."""
        return self.kernel.bounds

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Columns) or type(self) is not type(other):
            return False
        same = np.array_equal(_listed(self.columns), _listed(other.columns))
        return same and self.kernel == other.kernel

    def __call__(self, X, Y=None, eval_gradient: bool = False):
        Y = None if Y is None else self._of(Y)
        return self.kernel(self._of(X), Y, eval_gradient=eval_gradient)

    def diag(self, X) -> np.ndarray:
        return self.kernel.diag(self._of(X))

    def _of(self, X: Any) -> np.ndarray:
        X = np.atleast_2d(X)
        return X[:, list(self.numbers(X.shape[1]))]

    def is_stationary(self) -> bool:
        return self.kernel.is_stationary()

    def __repr__(self) -> str:
        return f"Columns({self.kernel}, columns={_listed(self.columns)})"

    def numbers(self, n_columns: int, names=None) -> tuple[int, ...]:
        """The numbers of the columns.

        Parameters
        ----------
        n_columns : int
            Number of columns of X.
        names : sequence of str, optional
            Names of the columns of X.
        """
        columns = _listed(self.columns)
        known = [] if names is None else list(names)
        numbers = [known.index(c) if c in known else c for c in columns]
        named = [c for c in numbers if isinstance(c, str)]
        if named and not known:
            raise ValueError(
                f"{self!r} names columns, but X has no column names: give column numbers, or fit "
                "an estimator of skscalablegp to a data frame."
            )
        if named:
            raise ValueError(f"{self!r} names {named}, but the columns of X are {known}.")
        whole = [isinstance(c, Integral) and not isinstance(c, bool) for c in numbers]
        if not (numbers and all(whole) and all(0 <= c < n_columns for c in numbers)):
            raise ValueError(
                f"{self!r} needs names of columns or numbers from 0 to {n_columns - 1}: X has "
                f"{n_columns} column{'s' if n_columns > 1 else ''}."
            )
        if len(set(numbers)) < len(numbers):
            raise ValueError(f"{self!r} has a column twice.")
        return tuple(int(c) for c in numbers)


def _listed(columns: Any) -> list[Any]:
    """The columns as a list of plain numbers and names."""
    if isinstance(columns, str | Integral):
        return [columns]
    try:
        return np.asarray(columns).tolist() if isinstance(columns, np.ndarray) else list(columns)
    except TypeError:
        raise TypeError(
            f"columns must be a name or number of a column, or a list of them; got {columns!r}."
        ) from None


def check_no_columns(kernel: Kernel) -> None:
    """Raise a ValueError for kernels of columns or categories on the outputs of a network."""
    if isinstance(kernel, Columns | Categorical | LowRankCategorical):
        raise ValueError(
            f"{kernel} needs columns of X, but this kernel is applied to the outputs of a network: "
            "use IterativeGPRegressor, SGPRRegressor, or SVGPRegressor without feature_extractor."
        )
    for part in kernel.get_params(deep=False).values():
        if isinstance(part, Kernel):
            check_no_columns(part)


def with_column_numbers(kernel: Kernel, n_columns: int, names=None) -> Kernel:
    """Replace names of columns by numbers, in place, and return the kernel.

    Parameters
    ----------
    kernel : Kernel
        A copy, which is changed.
    n_columns : int
        Number of columns of X.
    names : sequence of str, optional
        Names of the columns of X.

    Raises
    ------
    ValueError
        For columns that X does not have.
    """
    if isinstance(kernel, Columns):
        if not isinstance(kernel.kernel, Kernel):
            raise TypeError(f"kernel of Columns must be a kernel object, got {kernel.kernel!r}.")
        numbers = kernel.numbers(n_columns, names)
        kernel.columns = list(numbers)
        inner = None if names is None else [names[j] for j in numbers]
        with_column_numbers(kernel.kernel, len(numbers), inner)
        return kernel
    for part in kernel.get_params(deep=False).values():
        if isinstance(part, Kernel):
            with_column_numbers(part, n_columns, names)
    return kernel


def _build(kernel: Columns, layout: Layout) -> Node:
    columns = kernel.numbers(layout.n_features)
    return layout.build_on(kernel.kernel, len(columns)).on(columns)


register_kernel(Columns, _build)
