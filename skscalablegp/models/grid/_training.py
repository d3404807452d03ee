"""From a table to a trained model on a grid, and what is kept of its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from sklearn.base import clone

from ...core import Run, StageSettings, fit_hyperparameters
from ...core.data import Table
from ...core.training import Monitor, TrainingResult
from ...kernels import compile_kernel
from ._gradient import GridGradient
from ._grid import Grid
from ._grid_kernel import GridKernel
from ._moments import GridMoments, grid_moments
from ._network import SHORTEST_FEATURE_LENGTH, Network, apply_network, held_rows, train_network
from ._objective import (
    CommonNoise,
    FixedNoise,
    GridProblem,
    NoiseByRow,
    Rows,
    check_rank,
    noise_jitter,
)
from ._plan import grid_default_kernel


@dataclass(frozen=True, eq=False)
class KeptRows:
    """All that a fitted model keeps of its rows.

    Attributes
    ----------
    moments : GridMoments
        With weights 1, or 1 / D where rows have noise variances D of their own.
    known : float or None
        The rows' common known noise variance; None where they have their own.
    log_det : float
        Sum of log D where they have.
    jitter : float
        The largest that is in any D where they have.
    """

    moments: GridMoments
    known: float | None
    log_det: float = 0.0
    jitter: float = 0.0

    @classmethod
    def of(cls, rows: Rows, white: float, prior: float) -> KeptRows:
        """What to keep once the white noise and the prior variance are trained."""
        if isinstance(rows, CommonNoise):
            return cls(rows.moments, rows.smallest)
        jitter = rows.jitter(white, prior)
        noisy = rows.at(white + jitter)
        return cls(noisy.first, None, noisy.log_det, jitter)

    def rows(self, grid: Grid) -> Rows:
        if self.known is None:
            return FixedNoise(self.moments, self.log_det, self.jitter)
        return CommonNoise(self.moments, grid.shapes, grid.starts, self.known)

    def moved(self, numbers: np.ndarray, grid: Grid) -> KeptRows:
        """The same on a grid in which point i has become ``numbers[i]``."""
        return replace(self, moments=self.moments.moved(numbers, grid.n_points))

    def plus(
        self,
        grid: Grid,
        X: np.ndarray,
        Y: np.ndarray,
        known: np.ndarray,
        white: float,
        prior: float,
    ) -> KeptRows:
        """With further rows, exactly, at trained variances of the white noise and the prior."""
        if self.known is not None and (known == self.known).all():
            return replace(self, moments=self.moments + grid_moments(grid, X, Y))
        old, log_det, jitter = self.moments, self.log_det, self.jitter
        if self.known is not None:
            jitter = noise_jitter(white + self.known, prior)
            D = white + self.known + jitter
            old, log_det = old.scaled(1 / D), old.n * float(np.log(D))
        new = noise_jitter(white + float(known.min()), prior)
        D = white + known + new
        added = grid_moments(grid, X, Y, 1 / D)
        log_det += float(np.log(D).sum())
        return KeptRows(old + added, None, log_det, max(jitter, new))


def learned_features(
    table: Table, layers: list[int], random_state: np.random.RandomState
) -> tuple[Network, Table, np.ndarray]:
    """A network, the table of its features, and which rows it has not seen."""
    held = held_rows(len(table.X), random_state)
    network = train_network(table.X[~held], table.targets[~held], layers, random_state)
    Z = apply_network(network, table.X)
    return network, Table(Z, table.y, table.y_mean, table.y_std, table.noise), held


def kernel_on_grid(
    kernel: Any, table: Table, grid: Grid, on_features: bool, budget: float | None
) -> GridKernel:
    """A user's kernel, or the default one, on the grid.

    Raises
    ------
    MemoryError
        Where its covariance would not fit as it is, before any row is read.
    """
    if kernel is None:
        shortest = SHORTEST_FEATURE_LENGTH if on_features else 0.0
        kernel = grid_default_kernel(table.X, table.y, grid, shortest)
    else:
        kernel = clone(kernel)
    compiled = compile_kernel(kernel, table.X.shape[1])
    table.check_separable(compiled)
    on_grid = GridKernel(compiled, grid, budget)
    check_rank(on_grid, compiled.theta0)
    return on_grid


def summed(kernel: GridKernel, table: Table, chosen: np.ndarray | None = None) -> Rows:
    """The moments of (chosen) rows; rows of unequal noise are kept while training."""
    X, Y, known = table.X, table.targets, table.noise
    if chosen is not None:
        X, Y, known = X[chosen], Y[chosen], known[chosen]
    if table.noise.min() < table.noise.max():
        return NoiseByRow(kernel, X, Y, known)
    grid = kernel.grid
    return CommonNoise(grid_moments(grid, X, Y), grid.shapes, grid.starts, float(known[0]))


def train_on_grid(
    problem: GridProblem,
    estimator: Any,
    monitor: Monitor,
    random_state: np.random.RandomState,
    generator: torch.Generator,
) -> TrainingResult | None:
    """Hyperparameters that maximise the marginal likelihood, None where there are none to train.

    Parameters
    ----------
    problem : GridProblem
        Moments and kernel.
    estimator : KISSGPRegressor
        For its settings.
    monitor : Monitor
    random_state, generator
        Seeds of restarts.
    """
    kernel = problem.kernel
    if estimator.optimizer is None or kernel.n_params == 0:
        return None
    settings = StageSettings(
        optimizer=estimator.optimizer,
        max_iter=estimator.max_iter,
        n_restarts=estimator.n_restarts_optimizer,
    )
    run = Run(monitor, generator, random_state)
    return fit_hyperparameters(problem, GridGradient(), kernel.theta0.numpy(), settings, run)
