"""Errors of a regressor at rows that it has not seen, and what noise models are evaluated on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from ..core import LeftOut
from ._scaled import noise_features


@dataclass(frozen=True, eq=False)
class Errors:
    """Errors at some rows, and their expected squares.

    Attributes
    ----------
    rows : ndarray of int of shape (k,)
    errors : ndarray of shape (k,)
    variance : ndarray of shape (k,)
        The regressor's variances, without known noise: those that a noise model multiplies.
    total : ndarray of shape (k,)
        With known noise.
    """

    rows: Int[np.ndarray, " k"]
    errors: Float[np.ndarray, " k"]
    variance: Float[np.ndarray, " k"]
    total: Float[np.ndarray, " k"]

    @classmethod
    def of(cls, left: LeftOut, y: Any, extra: float, contained: Any, known: Any) -> Errors:
        """Those of predictions of left-out rows.

        Parameters
        ----------
        left : LeftOut
        y, known : ndarray of shape (n,)
            Targets and known noise variances of all rows.
        extra : float
            What is added to the regressor's variances.
        contained : ndarray of shape (n,)
            The known noise that its predictions contain.
        """
        rows, variance = left.rows, np.zeros(len(left.rows))
        if left.variance is not None:
            variance = np.maximum(left.variance - contained[rows], 1e-12 * left.variance)
        variance = extra + variance
        return cls(rows, y[rows] - left.mean, variance, variance + known[rows])

    @property
    def squares(self) -> Float[np.ndarray, " k"]:
        """Squared standardised errors."""
        return np.square(self.errors) / self.total

    def some(self, use: np.ndarray) -> Errors:
        """The same at some of the rows, of which `use` is a mask over all rows of the table."""
        at = use[self.rows]
        return Errors(self.rows[at], self.errors[at], self.variance[at], self.total[at])

    def features(self, X: np.ndarray, means: np.ndarray | None) -> np.ndarray:
        """Features of a noise model; X and the means are those of all rows."""
        mean = None if means is None else means[self.rows]
        return noise_features(X[self.rows], mean, self.variance)

    @classmethod
    def joined(cls, parts: list[Errors]) -> Errors:
        """Those of several folds."""
        fields = ("rows", "errors", "variance", "total")
        return cls(*(np.concatenate([getattr(p, name) for p in parts]) for name in fields))
