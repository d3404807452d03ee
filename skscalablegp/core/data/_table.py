"""A validated training table with the scale of its target."""

from __future__ import annotations

from collections.abc import Callable
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
from ._merging import Merged
from ._rows import (
    MOVED,
    WIDTH,
    Moments,
    column_limits,
    limit_rows,
    ranges_within,
    rows_beyond,
    weighted_moments,
)


@dataclass(frozen=True)
class Table:
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

    @classmethod
    def read(
        cls,
        X: np.ndarray,
        found: Merged,
        alpha: Callable[[np.ndarray], np.ndarray],
        noise_variance: Any,
        normalize_y: bool,
        shared: bool = False,
    ) -> Table:
        """Normalise the target, and express known noise in its units.

        `alpha` maps the scales of the targets to the noise of every row. With `shared` all targets
        have the same scale, as noise known in the units of y requires. `found` has the targets of
        these rows, and what they stand for.
        """
        Y, counts, within = found.y.reshape(len(X), -1), found.counts, found.within
        moments = weighted_moments(Y, counts, normalize_y, shared, within=within)
        table = cls.scaled(X, found.y, *moments, alpha, noise_variance)
        return replace(table, counts=counts, within=(within / np.square(moments[1])).sum(1))

    @classmethod
    def scaled(
        cls,
        X: np.ndarray,
        y: np.ndarray,
        y_mean: np.ndarray,
        y_std: np.ndarray,
        alpha: Callable[[np.ndarray], np.ndarray],
        noise_variance: Any,
    ) -> Table:
        """The table with given means and scales (t,) of the targets; otherwise as `read`."""
        mean, std = (moment.reshape(y.shape[1:]) for moment in (y_mean, y_std))
        noise = alpha(std) + known_noise(noise_variance, len(X), std)
        return cls(X, (y - mean) / std, mean, std, noise)

    # ------------------------------------------------------------------ sums over rows

    def each(self, work: Callable[..., Any], *args: Any) -> list[Any]:
        """The answers ``work(part, *args)`` for each part of the table, a table of some rows.

        A table in one process has one part. If ranks have rows of their own, each of them answers
        for its part, so that `work` is a function of a module.
        """
        return [work(self, *args)]

    def whole(self) -> Table:
        """The table with all rows in this process, for methods that need few rows."""
        return self

    def sample(self) -> Table:
        """The rows that stand for all in checks and limits: all, or evenly spaced ones of ranks."""
        return self

    def limits(self, width: float = WIDTH) -> tuple[np.ndarray, np.ndarray]:
        """Limits beyond which an entry of a column counts as far (`column_limits`)."""
        return column_limits(self.sample().X, width)

    def robust_moments(self) -> tuple[np.ndarray, np.ndarray]:
        """Means and standard deviations of the columns, in which far entries count as limits."""
        return reduce(add, self.each(_moments, self.limits())).scales()

    def mean_square(self) -> float:
        """The mean of the squared targets as the model sees them."""
        squares, count = reduce(add, self.each(_squares))
        return float(squares / count)

    def ranges(self) -> tuple[np.ndarray, np.ndarray]:
        """The lowest and the highest entry of each column that is not very far."""
        low, high = zip(*self.each(_ranges, self.limits(MOVED)), strict=True)
        return np.min(low, axis=0), np.max(high, axis=0)

    def limited(self, low: np.ndarray, high: np.ndarray) -> Table:
        """The table with entries moved into these ranges of the columns."""
        return replace(self, X=np.clip(self.X, low, high))

    def far_rows(self) -> np.ndarray:
        """Numbers of the rows with an entry beyond the limits of its column."""
        return np.concatenate(self.each(rows_beyond_limits, self.limits()))

    def noise_range(self) -> tuple[float, float]:
        """The smallest and the largest known noise variance of a row."""
        low, high = zip(*self.each(_noises), strict=True)
        return min(low), max(high)

    # ------------------------------------------------------------------ rows

    @property
    def targets(self) -> np.ndarray:
        """The normalised targets as (n, t)."""
        return self.y.reshape(len(self.X), np.size(self.y_mean))

    def rows(self, chosen: np.ndarray) -> Table:
        """Some of the rows."""
        return replace(
            self,
            X=self.X[chosen],
            y=self.y[chosen],
            noise=self.noise[chosen],
            counts=self.counts[chosen],
            within=self.within[chosen],
        )

    def joined(self, more: Table) -> Table:
        """The table with further rows in the same units below its own."""
        return replace(
            self,
            X=np.concatenate([self.X, more.X]),
            y=np.concatenate([self.y, more.y]),
            noise=np.concatenate([self.noise, more.noise]),
            counts=np.append(self.counts, more.counts),
            within=np.append(self.within, more.within),
        )

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


def _moments(table: Table, limits: tuple[np.ndarray, np.ndarray]) -> Moments:
    return Moments.of(table.X, limits, counts=table.counts)


def _squares(table: Table) -> np.ndarray:
    """The sum of the squared targets of all rows, and their number."""
    Y, counts = table.targets, table.counts
    squares = (counts[:, None] * np.square(Y)).sum() + table.within.sum()
    return np.array([squares, counts.sum() * Y.shape[1]])


def _ranges(table: Table, limits: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    return ranges_within(table.X, limits)


def rows_beyond_limits(table: Table, limits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    """Numbers of the rows of one part with an entry beyond limits of its column."""
    return rows_beyond(table.X, limits)


def _noises(table: Table) -> tuple[float, float]:
    return float(table.noise.min(initial=np.inf)), float(table.noise.max(initial=0.0))


def problem_spread(problem: GPProblem, columns: np.ndarray) -> np.ndarray:
    """The robust standard deviation of some columns of a problem, 1 where one is constant."""
    n = len(problem.X)
    few = problem.subset(torch.arange(n)[limit_rows(n)].to(problem.X.device))
    limits = column_limits(_columns(few, columns))
    return reduce(add, problem.each(_problem_moments, columns, limits)).scales()[1]


def problem_square(problem: GPProblem) -> float:
    """The mean of the squared targets of a problem."""
    squares, count = reduce(add, problem.each(_problem_squares))
    return float(squares / count)


def problem_varies(problem: GPProblem) -> bool:
    """Whether not all targets of a problem are equal."""
    low, high = zip(*problem.each(_problem_ends), strict=True)
    return bool((torch.stack(low).amin(0) < torch.stack(high).amax(0)).any())


def _columns(problem: GPProblem, columns: np.ndarray) -> np.ndarray:
    return problem.X[:, columns].double().cpu().numpy()


def _problem_moments(
    problem: GPProblem, columns: np.ndarray, limits: tuple[np.ndarray, np.ndarray]
) -> Moments:
    counts = problem.rows.weight.double().cpu().numpy()
    return Moments.of(_columns(problem, columns), limits, counts=counts)


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
