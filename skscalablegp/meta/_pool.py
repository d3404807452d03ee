"""Weights of fitted regressors by the density of their predictions of held-out rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import minimize, minimize_scalar, nnls
from scipy.special import softmax

from .._predicted import normal_crps
from ..core.posteriors import normal_log_density
from ._below import mean_square
from ._noise import NoiseModel
from ._scaled import Scaled, noise_features

# Weight, in rows, of a regressor's own standard deviations in their calibration: a few errors alone
# would say little about their size.
_OWN_STD = 10.0
# Members of a smaller weight are left out, because each one costs predictions.
LEAST_WEIGHT = 0.02
# A mixture whose log density per row is higher by less is a tie, which the best single member wins.
# To ask a standard error of a mixture lost density on parts of the suite's tables for choices.
TIE = 1e-3
# Steps of expectation maximisation, and the change of the weights at which it ends.
_STEPS, _CHANGE = 500, 1e-6
# With fewer held-out rows that occur once, copies stay on the same side of the split.
FEWEST_UNIQUE = 25
# This share of the scored rows has a smaller variance than the floor of all variances.
_FLOOR = 0.01
# Largest logarithm of the factor of a variance, up or down.
_WIDEST = 23.0
# Smallest variance, relative to that of the targets.
_LEAST = 1e-10


@dataclass(frozen=True, eq=False)
class Validated:
    """A fitted regressor, and its predictions of rows that it was not fitted to.

    Attributes
    ----------
    name : str
    fresh : regressor
        The regressor before the fit.
    scaled : Scaled
        The fitted regressor with calibrated standard deviations.
    mean, variance : ndarray of shape (m,)
        Its predictions of the held-out rows, calibrated and with their noise, in units of y; NaN
        where there was no time.
    n_predicted : int
        How many held-out rows it has predicted.
    refits : bool
        Whether a fit on more rows may replace it.
    seconds : float
        Of its fit.
    """

    name: str
    fresh: Any
    scaled: Scaled
    mean: Float[np.ndarray, " m"]
    variance: Float[np.ndarray, " m"]
    n_predicted: int
    refits: bool
    seconds: float

    @property
    def inner(self) -> Any:
        """The fitted regressor."""
        return self.scaled.inner

    def fitted_again(self, inner: Any) -> Validated:
        """The same member with a regressor that was fitted to more rows."""
        return replace(self, scaled=replace(self.scaled, inner=inner), refits=False)

    @property
    def level(self) -> float:
        """Logarithm of its constant noise factor."""
        return self.scaled.noise.level

    @property
    def plain(self) -> Float[np.ndarray, " m"]:
        """Its variances of the held-out rows before that factor."""
        return self.variance / np.exp(self.level)

    def varying(
        self,
        X: Float[np.ndarray, "m d"],
        at: Int[np.ndarray, " k"],
        noise: NoiseModel,
        logs: Float[np.ndarray, " k"],
    ) -> Validated:
        """The same member with a noise model in place of its constant factor.

        Parameters
        ----------
        X : ndarray of shape (m, d)
            The held-out rows.
        at : ndarray of shape (k,)
            Numbers of those from which the model was learned.
        noise : NoiseModel
        logs : ndarray of shape (k,)
            Logarithms of the factors of the variances, each by a model that was fitted without the
            row.
        """
        plain, seen = self.plain, np.isfinite(self.variance)
        factor = noise.factor(noise_features(X[seen], self.mean[seen], plain[seen]))
        variance = np.full(len(plain), np.nan)
        variance[seen] = plain[seen] * factor**2
        variance[at] = plain[at] * np.exp(logs)
        return replace(self, scaled=replace(self.scaled, noise=noise), variance=variance)


def occur_once(numbers: Int[np.ndarray, " n"], rows: np.ndarray) -> np.ndarray:
    """Which of the `rows` occur once, by the numbers of `numbered`: those to score.

    A copy among the rows of a fit would tell the target, whatever the noise.
    """
    return np.bincount(numbers)[numbers[rows]] == 1


def calibrated(
    scaled: Scaled,
    y: Float[np.ndarray, " m"],
    mean: Float[np.ndarray, " m"],
    variance: Float[np.ndarray, " m"] | None,
    scored: np.ndarray,
    known: Float[np.ndarray, " m"] | None = None,
) -> tuple[Scaled, Float[np.ndarray, " m"]]:
    """A regressor with standard deviations that fit its errors on held-out rows.

    Parameters
    ----------
    scaled : Scaled
    y, mean, variance : ndarray of shape (m,)
        Targets and predictions of held-out rows. Without variances the mean square of the errors
        is the variance.
    scored : ndarray of bool of shape (m,)
        The rows whose errors are used.
    known : ndarray of shape (m,) or None
        Known noise variances, which are no part of the variances.

    Notes
    -----
    Where rows are close to fitted ones, or copies of them, a regressor without noise would be sure
    of itself. No variance is smaller than those of the scored rows, but for a hundredth of them.

    Returns
    -------
    scaled : Scaled
    variance : ndarray of shape (m,)
    """
    least = _LEAST * max(float(np.var(y)), np.finfo(float).tiny / _LEAST)
    errors = (y - mean)[scored]
    at = None if known is None else known[scored]
    if variance is None:
        extra = max(mean_square(errors, at), least)
        return replace(scaled, extra=extra), np.full(len(y), extra)
    floor = max(least, float(np.quantile(variance[scored], _FLOOR)))
    variance = np.maximum(variance, floor)
    own = variance[scored]
    if at is None:
        log = log_factor(errors**2 / own)
    else:
        # The same factor where the known noise is zero.
        def loss(log: float) -> float:
            prior = _OWN_STD * 0.5 * (log + np.exp(-log))
            return prior + negative_log_density(errors, 0.0, np.exp(log) * own + at).sum()

        log = minimize_scalar(loss, bounds=(-_WIDEST, _WIDEST), method="bounded").x
    factor = np.exp(np.clip(log, -_WIDEST, _WIDEST))
    noise = NoiseModel(float(np.log(factor)))
    return replace(scaled, noise=noise, floor=floor), factor * variance


def log_factor(squares: Float[np.ndarray, " m"]) -> float:
    """The logarithm of the factor of variances that fits squared standardised errors."""
    return float(np.log((_OWN_STD + squares.sum()) / (_OWN_STD + len(squares))))


def negative_log_density(
    y: Float[np.ndarray, " m"], mean: Any, variance: Float[np.ndarray, " m"]
) -> Float[np.ndarray, " m"]:
    """Minus the logarithm of the normal density of each target, in nats."""
    return -normal_log_density(y, np.asarray(mean, np.float64), variance)


def mean_crps(
    y: Float[np.ndarray, " m"], mean: Float[np.ndarray, " m"], variance: Float[np.ndarray, " m"]
) -> float:
    """Mean continuous ranked probability score of normal predictions."""
    return float(normal_crps(y, mean, np.sqrt(variance)).mean())


def mixed(
    weights: Float[np.ndarray, " k"],
    means: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, "k m"],
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Mean and variance of a mixture."""
    mean = weights @ means
    return mean, weights @ (variances + np.square(means - mean))


def mixture_weights(density: Float[np.ndarray, "k m"]) -> Float[np.ndarray, " k"]:
    """The weights of a mixture with the largest density of the rows.

    The logarithm of that density is concave in the weights; expectation maximisation raises it in
    each step (Dempster, Laird and Rubin, 1977).

    Parameters
    ----------
    density : ndarray of shape (k, m)
        Log density of each row under each member.
    """
    weights = np.full(len(density), 1 / len(density))
    ratio = np.exp(density - density.max(axis=0))
    for _ in range(_STEPS):
        new = weights * (ratio / (weights @ ratio)).mean(1)
        done = np.abs(new - weights).max() < _CHANGE
        weights = new
        if done:
            break
    return weights


def moment_weights(
    y: Float[np.ndarray, " m"],
    means: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, "k m"],
) -> Float[np.ndarray, " k"]:
    """The weights for which the normal density with the moments of the mixture is largest.

    All variances are multiplied by the factor that suits the weights.

    Parameters
    ----------
    y : ndarray of shape (m,)
    means, variances : ndarray of shape (k, m)
    """
    rows = np.stack([negative_log_density(y, *m) for m in zip(means, variances, strict=True)])
    # Squares of far targets would lose the variances.
    center, scale = y.mean(), np.sqrt(variances.mean())
    y, means, variances = (y - center) / scale, (means - center) / scale, variances / scale**2
    second = variances + np.square(means)

    def loss(logits: np.ndarray) -> tuple[float, np.ndarray]:
        weights = softmax(logits)
        mean = weights @ means
        error, variance = y - mean, weights @ second - np.square(mean)
        squares = np.square(error) / variance
        factor = squares.mean()
        # The factor is the best one, so that its own change adds nothing.
        slopes = (0.5 * (1 - squares / factor) / variance) * (second - 2 * mean * means)
        slope = (slopes - error / (factor * variance) * means).mean(axis=1)
        value = 0.5 * (np.log(factor) + np.log(variance).mean())
        return value, weights * (slope - weights @ slope)

    # The loss is not convex.
    starts = np.full(len(means), 1 / len(means)), mixture_weights(-rows)
    logs = [np.log(np.maximum(start, LEAST_WEIGHT)) for start in starts]
    ends = [minimize(loss, start, jac=True, method="L-BFGS-B") for start in logs]
    found = softmax(min(ends, key=lambda end: end.fun).x)
    found = np.where(found < LEAST_WEIGHT, 0.0, found)
    return found / found.sum()


def pool_weights(
    y: Float[np.ndarray, " m"],
    means: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, "k m"],
) -> Float[np.ndarray, " k"]:
    """Weights of members from their predictions of rows that none of them was fitted to.

    These are the weights of `moment_weights` if they raise the log density per row over that of the
    best single member by more than 0.001; otherwise that member has all the weight.
    """
    rows = np.stack([negative_log_density(y, *m) for m in zip(means, variances, strict=True)])
    best = np.eye(len(means))[int(np.argmin(rows.mean(1)))]
    if len(means) == 1:
        return best
    both = best, moment_weights(y, means, variances)
    # Both with a fitted factor of their variances.
    scaled = [scaled_mixture(weights, y, means, variances)[:2] for weights in both]
    losses = [negative_log_density(y, *moments).mean() for moments in scaled]
    return both[int(losses[0] - losses[1] > TIE)]


def scaled_mixture(
    weights: Float[np.ndarray, " k"],
    y: Float[np.ndarray, " m"],
    means: Float[np.ndarray, "k m"],
    variances: Float[np.ndarray, "k m"],
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"], float]:
    """Means and variances of a mixture, and the logarithm of the factor that fits its errors.

    The variances are multiplied by the factor. Where errors of members cancel, those of the mixture
    would be too large.
    """
    mean, variance = mixed(weights, means, variances)
    log = log_factor(np.square(y - mean) / variance)
    return mean, np.exp(log) * variance, log


def clearly_smaller(new: Float[np.ndarray, " m"], old: Float[np.ndarray, " m"]) -> bool:
    """Whether a mean is smaller by more than the standard error of the difference of its rows."""
    gains = old - new
    return bool(gains.mean() > gains.std() / np.sqrt(len(gains)))


def stacking_weights(
    errors: Float[np.ndarray, "k n"], counts: Float[np.ndarray, " n"]
) -> Float[np.ndarray, " k"]:
    r"""The weights w >= 0 with sum one that minimise the squared errors of the weighted average.

    They are the solution of :math:`\min_{v \ge 0} |E' v|^2 + (1 - 1' v)^2`, scaled to a sum of one,
    because along every ray v = t w the minimum over t depends on :math:`|E' w|^2` alone and grows
    with it.

    Parameters
    ----------
    errors : ndarray of shape (k, n)
        Error of each regressor on each row.
    counts : ndarray of shape (n,)
        Weight of each row.
    """
    errors = errors * np.sqrt(counts)
    scale = np.sqrt(np.mean(errors**2, axis=1).min() * errors.shape[1])
    system = np.vstack([errors.T / (scale or 1.0), np.ones(len(errors))])
    weights = nnls(system, np.append(np.zeros(errors.shape[1]), 1.0))[0]
    return weights / weights.sum()
