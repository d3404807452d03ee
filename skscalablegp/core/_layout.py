"""Starting hyperparameters, and where theta has its length scales and noise variances."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._length_scales import OF_DISTANCES
from ..kernels import Columns, TorchKernel


@dataclass(frozen=True)
class Start:
    """Hyperparameters from which training may begin.

    Attributes
    ----------
    origin : str
        Where the length scales come from, for the report.
    theta : ndarray of shape (p,)
    value : float
        Log likelihood plus log prior of the compared rows, in nats a row; minus infinity before
        the comparison, or without a Cholesky factor.
    before : ndarray of shape (p,) or None
        The hyperparameters before a few steps of training, if there were any.
    tied : ndarray of shape (p,) or None
        Groups of hyperparameters that further steps move together; see `GPProblem`.
    """

    origin: str
    theta: np.ndarray
    value: float = -math.inf
    before: np.ndarray | None = None
    tied: np.ndarray | None = None

    def describe(self) -> str:
        """A sentence for the report; empty if there was nothing to compare."""
        if self.value == -math.inf:
            return ""
        return (
            f"training began at length scales from {self.origin}, with a log likelihood of "
            f"{self.value:.3g} per row of a subset"
        )


@dataclass(frozen=True)
class Layout:
    """The places of length scales and of noise variances in theta, and the columns of the former.

    Without places there is nothing that data could set; `own` then marks the length scales.
    """

    lengths: slice | None
    columns: np.ndarray
    noise: np.ndarray
    own: np.ndarray

    @classmethod
    def of(cls, kernel: TorchKernel) -> Layout:
        params, d = kernel.kernel.get_params(), kernel.n_features
        places: list[tuple[slice, np.ndarray]] = []
        noise: list[int] = []
        own: list[int] = []
        begin = 0
        for parameter in kernel.kernel.hyperparameters:
            if parameter.fixed:
                continue
            path, _, leaf = parameter.name.rpartition("__")
            end = begin + parameter.n_elements
            # A kernel that is not an expression has no entry.
            owner = params.get(path, kernel.kernel) if path else kernel.kernel
            if leaf == "length_scale" and type(owner) in OF_DISTANCES:
                places.append((slice(begin, end), _columns_of(path, params, kernel.kernel, d)))
                own += range(begin, end)
            if leaf == "noise_level":
                noise += range(begin, end)
            begin = end
        single = len(places) == 1
        lengths, columns = places[0] if single else (None, np.arange(d))
        return cls(lengths, columns, np.array(noise, dtype=int), np.array(own, dtype=int))

    @property
    def n_lengths(self) -> int:
        """The number of length scales that data could set."""
        return 0 if self.lengths is None else self.lengths.stop - self.lengths.start

    def length(self, column: int) -> int:
        """The place of a column's length scale, if each has one."""
        assert self.lengths is not None
        return self.lengths.start + column


def _columns_of(path: str, params: dict[str, Any], kernel: Any, d: int) -> np.ndarray:
    """The columns that the kernel at a path sees: all but inside `Columns`."""
    steps = path.split("__")
    outer = [kernel, *(params.get("__".join(steps[:k])) for k in range(1, len(steps)))]
    columns = np.arange(d)
    for part in outer:
        if isinstance(part, Columns):
            columns = columns[list(part.numbers(len(columns)))]
    return columns
