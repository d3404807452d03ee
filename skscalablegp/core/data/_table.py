"""A validated training table with the scale of its target."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, ClassVar

import numpy as np
import torch

from ..._validation import check_duplicates, check_noise_variance
from ...kernels import ObjectRows, TorchKernel
from ...linalg.gradients import GPProblem, Rows
from ...linalg.operators import Workspace
from ._columns import Columns, Ends, Moments, limit_rows, moments

# What a table has of each row.
OF_ROWS = "X", "y", "noise", "counts", "within"


@dataclass(frozen=True)
class Table(Columns):
    """The data of a fit, which become fitted attributes if the fit succeeds.

    Attributes
    ----------
    X : ndarray of shape (n, d)
    y : ndarray of shape (n,) or (n, t)
        Normalised targets.
    y_mean, y_std : ndarray of shape () or (t,)
        Mean and scale that convert the targets to their own units.
    noise : ndarray of shape (n,)
        Known noise variances in normalised units, those of single rows.
    origin : ndarray of shape (d,) or 0
        The point from which tensors of rows are measured.
    counts, within : ndarray of shape (n,)
        What rows stand for that have been merged, as in `Rows`; y are then the means of their
        targets. By default every row stands for itself.
    """

    # Whether the rows are in this process; otherwise `X`, `y` and `noise` have shapes only.
    here: ClassVar[bool] = True

    X: np.ndarray
    y: np.ndarray
    y_mean: np.ndarray
    y_std: np.ndarray
    noise: np.ndarray
    origin: np.ndarray | float = 0.0
    counts: np.ndarray = None  # type: ignore[assignment]
    within: np.ndarray = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        # A fitted model keeps neither if no rows have been merged.
        if self.counts is None:
            object.__setattr__(self, "counts", np.ones(len(self.X)))
            object.__setattr__(self, "within", np.zeros(len(self.X)))

    # ------------------------------------------------------------------ sums over rows

    @property
    def weight(self) -> np.ndarray:
        """How many equal rows each row stands for."""
        return self.counts

    def whole(self) -> Table:
        """The table with all rows in this process, for methods that need few rows."""
        return self

    def mean_square(self) -> float:
        """The mean of the squared targets as the model sees them."""
        squares, count = reduce(add, self.each(_squares))
        return float(squares / count)

    def limited(self, low: np.ndarray, high: np.ndarray) -> Table:
        """The table with entries moved into these ranges of the columns."""
        return replace(self, X=np.clip(self.X, low, high))

    # ------------------------------------------------------------------ rows

    @property
    def targets(self) -> np.ndarray:
        """The normalised targets as (n, t)."""
        return self.y.reshape(len(self.X), np.size(self.y_mean))

    def rows(self, chosen: np.ndarray) -> Table:
        """Some of the rows."""
        return replace(self, **{name: getattr(self, name)[chosen] for name in OF_ROWS})

    def joined(self, more: Table) -> Table:
        """The table with further rows in the same units below its own."""
        both = {name: [getattr(self, name), getattr(more, name)] for name in OF_ROWS}
        return replace(self, **{name: np.concatenate(parts) for name, parts in both.items()})

    @property
    def n_rows(self) -> float:
        """The number of rows before they were merged: the sum of their weights."""
        return float(self.counts.sum())

    def centred(self, kernel: TorchKernel) -> Table:
        """The table with rows measured from the robust means, if only differences of rows matter.

        Numbers far from zero, such as times in seconds, would lose digits in float32.
        """
        if not kernel.vectors:
            return self
        return replace(self, origin=kernel.origin(self.robust_moments()[0]))

    def problem(
        self, kernel: TorchKernel, dtype: torch.dtype, device: torch.device, keep: bool
    ) -> GPProblem:
        """The same table as tensors, rows measured from `origin`; the device computes products."""
        workspace = Workspace(device)

        def tensor(a: np.ndarray) -> torch.Tensor:
            return torch.tensor(np.ascontiguousarray(a), dtype=dtype, device=workspace.rows_on)

        known = tuple(map(tensor, (self.targets, self.noise, self.counts, self.within)))
        X = tensor(self.X - self.origin) if kernel.vectors else ObjectRows.of(self.X).to(known[0])
        return GPProblem(kernel, Rows(X, *known), keep=keep, workspace=workspace)

    def check_separable(self, kernel: TorchKernel) -> None:
        """Raise a ValueError for equal rows without noise, except under unknown kernels."""
        if kernel.numpy_code or not kernel.vectors:
            return
        with torch.no_grad():
            # torch warns of arrays that are not writable, unless they are copied.
            rows = torch.tensor(np.ascontiguousarray(self.X))
            white = kernel.noise(kernel.theta0, rows).numpy()
        check_duplicates(self.X, white + self.noise, self.counts)


def _squares(table: Table) -> np.ndarray:
    """The sum of the squared targets of all rows, and their number."""
    Y, counts = table.targets, table.counts
    squares = (counts[:, None] * np.square(Y)).sum() + table.within.sum()
    return np.array([squares, counts.sum() * Y.shape[1]])


def problem_spread(problem: GPProblem, columns: np.ndarray) -> np.ndarray:
    """The robust standard deviation of some columns of a problem, 1 where one is constant."""
    n = len(problem.X)
    few = problem.subset(torch.arange(n)[limit_rows(n)].to(problem.X.device))
    limits = _columns(few, columns).limits()
    return reduce(add, problem.each(_problem_moments, columns, limits)).scales()[1]


def problem_square(problem: GPProblem) -> float:
    """The mean of the squared targets of a problem."""
    squares, count = reduce(add, problem.each(_problem_squares))
    return float(squares / count)


def problem_varies(problem: GPProblem) -> bool:
    """Whether not all targets of a problem are equal."""
    low, high = zip(*problem.each(_problem_ends), strict=True)
    return bool((torch.stack(low).amin(0) < torch.stack(high).amax(0)).any())


def _columns(problem: GPProblem, columns: np.ndarray) -> Columns:
    X, weight = problem.X[:, columns], problem.rows.weight
    return Columns(X.double().cpu().numpy(), weight.double().cpu().numpy())


def _problem_moments(problem: GPProblem, columns: np.ndarray, limits: Ends) -> Moments:
    return moments(_columns(problem, columns), limits)


def _problem_squares(problem: GPProblem) -> np.ndarray:
    rows = problem.rows.to(torch.float64)
    return np.array([float(rows.squares_of(rows.Y)), rows.n_rows * rows.Y.shape[1]])


def _problem_ends(problem: GPProblem) -> tuple[torch.Tensor, torch.Tensor]:
    # A rank may have no rows.
    ends = problem.Y.new_full((1, problem.Y.shape[1]), torch.inf)
    low, high = torch.cat([problem.Y, ends]).amin(0), torch.cat([problem.Y, -ends]).amax(0)
    return low.cpu(), high.cpu()


def n_columns(X: np.ndarray) -> int:
    """Number d of columns; 1 if rows are objects."""
    return X.shape[1] if X.ndim > 1 else 1


def known_noise(noise_variance: Any, n: int, y_std: np.ndarray) -> np.ndarray:
    """Known noise of the rows of a fit, in normalised units; zeros without noise_variance.

    Parameters
    ----------
    noise_variance : float, array-like of shape (n,) or (n, t), or None
        Variances in squared units of y.
    n : int
        Number of rows.
    y_std : ndarray of shape () or (t,)
        Scales of the targets.

    Returns
    -------
    noise : ndarray of shape (n,)

    Raises
    ------
    ValueError
        If the noise differs between targets, which share one covariance matrix.
    """
    own = check_noise_variance(noise_variance, n, np.size(y_std))
    if own is None:
        return np.zeros(n)
    scaled = own / np.square(y_std)
    if np.allclose(scaled, scaled[:, :1], rtol=1e-9, atol=0):
        return scaled[:, 0]
    if np.ptp(own, axis=1).any():
        raise ValueError(
            "noise_variance differs between the targets, but the targets of one fit share their "
            "covariance matrix: fit one estimator for each target (MultiOutputRegressor)."
        )
    raise ValueError(
        "noise_variance is in the units of y, and with normalize_y=True the targets "
        f"have {len(np.unique(y_std))} different scales: standardise y yourself, fit one target "
        "at a time (MultiOutputRegressor), or set normalize_y=False."
    )
