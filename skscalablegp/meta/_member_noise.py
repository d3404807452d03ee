"""Noise models of a pool and of its single members, from errors on held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from jaxtyping import Bool, Float, Int

from ..core.training import Budget, StopTraining
from ._division import DividedTable, copies
from ._noise import ROUNDS, NoiseModel, best_noise
from ._pool import Validated, negative_log_density
from ._scaled import noise_features

# Only the best members have noise models of their own, since each one costs several fits of trees.
MOST_VARYING = 4
# No variance is smaller than the mean square of this number of usual errors among all scored rows.
_MISSES = 0.5


@dataclass(frozen=True, eq=False)
class Errors:
    """Held-out rows whose errors a noise model learns.

    Attributes
    ----------
    at : ndarray of shape (k,)
        Numbers of the rows among all held-out ones, in rising order.
    X, y, known : ndarray of shape (k, d), (k,) and (k,)
        The rows, their targets and their known noise variances.
    scored : ndarray of bool of shape (k,)
        The rows that occur once. A copy of a fitted row may show that errors are large, but not
        that they are small.
    """

    at: Int[np.ndarray, " k"]
    X: Float[np.ndarray, "k d"]
    y: Float[np.ndarray, " k"]
    known: Float[np.ndarray, " k"]
    scored: Bool[np.ndarray, " k"]

    @classmethod
    def of(
        cls, rows: DividedTable, at: Int[np.ndarray, " k"], scored: Bool[np.ndarray, " m"]
    ) -> Errors:
        """Some of the held-out rows, in any order."""
        at = np.sort(at)
        held = rows.held[at]
        known = np.zeros(len(at)) if rows.known is None else rows.known[held]
        return cls(at, rows.X[held], rows.y[held], known, scored[at])

    def model(
        self,
        mean: Float[np.ndarray, " k"],
        variance: Float[np.ndarray, " k"],
        level: float,
        seed: int,
        share: Budget,
    ) -> tuple[NoiseModel, Float[np.ndarray, " k"]]:
        """The noise model of predictions, and the logarithms of its factors without each row.

        `level` is the logarithm of the constant factor that suits the variances.
        """
        squares = np.square(self.y - mean) / (variance + self.known)
        raised = np.where(self.scored, squares, np.maximum(squares, np.exp(level)))
        F = noise_features(self.X, mean, variance)
        # Copies have one error, which each of them would tell of the others.
        numbers = copies(self.X, self.y)
        groups = numbers if numbers.max(initial=-1) + 1 < len(numbers) else None
        noise, logs = best_noise(F, raised, None, np.random.RandomState(seed), share.check, groups)
        square = np.square(self.y - mean)[self.scored].mean()
        least = float(np.log(max(_MISSES * square / self.scored.sum(), np.finfo(float).tiny)))
        bound = least - np.log(variance) if noise.parts else np.full(len(logs), -np.inf)
        # The raised squares shape the model, and do not calibrate it. Nor do rows with the least
        # variance, whose errors are too small for it.
        shift = 0.0
        for _ in range(ROUNDS):
            free = self.scored & (logs + shift > bound)
            left = (squares[free] * np.exp(-logs[free])).mean() if free.any() else 0.0
            shift = float(np.log(left)) if left > 0 else 0.0
        noise = replace(noise, level=noise.level + shift, least=least if noise.parts else -np.inf)
        return noise, np.maximum(logs + shift, bound)


def varying_members(
    members: list[Validated], rows: DividedTable, errors: Errors, seed: int, share: Budget
) -> tuple[dict[int, Validated], bool]:
    """The best members, each with a noise model of its own errors.

    Members that have not predicted all the rows are left out.

    Returns
    -------
    varying : dict of Validated
        By their numbers.
    cut : bool
        Whether time has left out members.
    """
    at, some = errors.at, errors.at[errors.scored]
    y, known = errors.y[errors.scored], errors.known[errors.scored]
    losses = {
        k: negative_log_density(y, each.mean[some], each.variance[some] + known).mean()
        for k, each in enumerate(members)
        if np.isfinite(each.variance[at]).all()
    }
    found: dict[int, Validated] = {}
    for k in sorted(losses, key=losses.__getitem__)[:MOST_VARYING]:
        each = members[k]
        try:
            learned = errors.model(each.mean[at], each.plain[at], each.level, seed, share)
        except StopTraining:
            return found, True
        found[k] = each.varying(rows.X[rows.held], at, *learned)
    return found, False
