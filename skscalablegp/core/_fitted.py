"""What estimators over estimators may ask of a fitted regressor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from .posteriors import (
    Posterior,
    predictive_log_density,
    predictive_quantiles,
)

# Predictions evaluate blocks of k(X_new, X_train) of at most this many bytes.
_CHUNK_BYTES = 2**27


@dataclass(frozen=True, eq=False)
class LeftOut:
    """Predictions of training rows without their own targets, in the units of the targets.

    Attributes
    ----------
    rows : ndarray of shape (k,)
        Row numbers in increasing order.
    mean, std : ndarray of shape (k,) or (k, t)
        Means and standard deviations, noise included. `std` is None for a regressor without
        variances.
    how : {"leave_one_out", "held_out"}
        "leave_one_out" is a closed form at the trained hyperparameters, for the rows that were
        requested. "held_out" rows are predicted by a fit without them, which has chosen the rows.
    fold_mean : ndarray of shape (k,) or None
        Means by fits that have not seen any row of the same fold, if `mean` has others. A noise
        model learns from them: a mean that leaves out one row alone differs from that of all rows
        by the row's own share, and so reveals its target wherever the mean of all rows is known
        from other rows.
    folds : tuple of (LeftOut, LeftOut)
        For each fold, a fit without its rows: its predictions of the other rows, without their own
        targets, and those of the rows of the fold. Only these tell how well errors of some rows
        tell those of others: without one row alone, the error of a neighbour knows its target.
    """

    rows: np.ndarray
    mean: np.ndarray
    std: np.ndarray | None
    how: Literal["leave_one_out", "held_out"]
    fold_mean: np.ndarray | None = None
    folds: tuple[tuple[LeftOut, LeftOut], ...] = ()

    @property
    def variance(self) -> np.ndarray | None:
        return None if self.std is None else self.std**2

    @property
    def feature_mean(self) -> np.ndarray:
        """The means from which a noise model learns."""
        return self.mean if self.fold_mean is None else self.fold_mean


class TargetMoments(NamedTuple):
    """Moments at some rows, for each target in its own units.

    Attributes
    ----------
    mean : ndarray of shape (m, t)
    variance : ndarray of shape (m, t)
        Variance of the noise-free functions.
    noise : ndarray of shape (m, t)
        Variance that the kernel's white noise adds to a new observation.
    """

    mean: np.ndarray
    variance: np.ndarray
    noise: np.ndarray


@dataclass(frozen=True, eq=False)
class FittedProcess:
    """A posterior in the units of the rows and the targets, as NumPy arrays.

    Attributes
    ----------
    posterior : Posterior
    validated : callable
        Validates rows as the predictions of the regressor do.
    inputs : callable
        Turns validated rows (m, d) into the tensor that the posterior takes.
    y_mean, y_std : ndarray of shape () or (t,)
        Mean and scale of the targets.
    left_out : callable
        ``left_out(X, y, noise_variance, rows)`` predicts some rows of the training table, which is
        given in the order of `fit`, without their own targets: a `LeftOut`, or None if there is no
        closed form.
    check_joint_memory : callable
        ``check_joint_memory(X, what)`` raises a MemoryError if a joint prediction does not fit.
    noise_given : bool
        Whether the fit has received noise variances.
    input_module : callable
        Returns `inputs` as a torch module of rows.
    with_rows : callable
        ``with_rows(X, y, noise_variance=None)`` returns a copy of the regressor with further rows
        at the same hyperparameters, which are in the same units.
    """

    posterior: Posterior
    validated: Callable[[Any], np.ndarray]
    inputs: Callable[[np.ndarray], torch.Tensor]
    y_mean: np.ndarray | float
    y_std: np.ndarray | float
    left_out: Callable[[np.ndarray, np.ndarray, Any, np.ndarray], LeftOut | None]
    check_joint_memory: Callable[[np.ndarray, str], None]
    noise_given: bool
    input_module: Callable[[], torch.nn.Module]
    with_rows: Callable[..., Any]

    def mean(self, X: np.ndarray) -> np.ndarray:
        """Means (m, t)."""
        (mean,) = self._in_chunks(X, lambda rows: (self.posterior.mean(rows),))
        return mean * self.y_std + self.y_mean

    def moments(self, X: np.ndarray) -> TargetMoments:
        """Means, variances of the noise-free functions, and noise variances, each (m, t)."""
        mean, variance, noise = self._in_chunks(X, self.posterior.moments)
        square = np.square(self.y_std)
        return TargetMoments(
            mean * self.y_std + self.y_mean, variance[:, None] * square, noise[:, None] * square
        )

    def variance(self, X: np.ndarray) -> np.ndarray:
        """Variances (m, t) of the noise-free functions."""
        (variance,) = self._in_chunks(X, lambda rows: (self.posterior.variance(rows),))
        return variance[:, None] * np.square(self.y_std)

    def quantiles(
        self, X: np.ndarray, q: np.ndarray, include_noise: bool, known: np.ndarray | None
    ) -> np.ndarray:
        """Quantiles (m, t, k) with known noise variances (m, t) or None."""
        noise = None if known is None else known / np.square(self.y_std)
        parts = [
            predictive_quantiles(
                self.posterior,
                self.inputs(X[part]),
                q,
                include_noise,
                None if noise is None else noise[part],
            )
            for part in self._chunks(len(X))
        ]
        scale, mean = (np.atleast_1d(a)[:, None] for a in (self.y_std, self.y_mean))
        return np.concatenate(parts) * scale + mean

    def log_density(self, X: np.ndarray, Y: np.ndarray, known: np.ndarray | None) -> np.ndarray:
        """Log densities (m, t) of targets Y (m, t), with known noise variances (m, t) or None."""
        noise = None if known is None else known / np.square(self.y_std)
        Y = (Y - self.y_mean) / self.y_std
        parts = [
            predictive_log_density(
                self.posterior,
                self.inputs(X[part]),
                Y[part],
                None if noise is None else noise[part],
            )
            for part in self._chunks(len(X))
        ]
        return np.concatenate(parts) - np.log(self.y_std)

    def _chunks(self, m: int) -> list[slice]:
        step = max(1, _CHUNK_BYTES // (8 * max(self.posterior.width, 1)))
        return [slice(start, start + step) for start in range(0, m, step)]

    def _in_chunks(
        self, X: np.ndarray, evaluate: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]
    ) -> list[np.ndarray]:
        answers = [evaluate(self.inputs(X[part])) for part in self._chunks(len(X))]
        return [
            np.concatenate([part.cpu().double().numpy() for part in parts])
            for parts in zip(*answers, strict=True)
        ]


def fitted_process(regressor: Any) -> FittedProcess | None:
    """The process of a fitted regressor; None for a regressor of another package."""
    make = getattr(regressor, "_fitted_process", None)
    return None if make is None else make()
