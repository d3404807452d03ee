"""Natural gradient steps for noisy gradients, until the mean gradient is within its noise."""

from __future__ import annotations

import numpy as np
from sklearn.base import BaseEstimator

from ..._end import End
from ..._named import keep_settings
from ..._validation import check_integer, check_number
from ._optimizers import Optimizer, Optimum

# Longest step of a log hyperparameter.
_LONGEST_STEP = 1.0
# Added to the diagonal of the Fisher information, since flat directions have no optimum.
_FLAT = 0.1
# Largest remaining gain compared with the noise, as a fraction of the tolerance.
_LEFT = 0.1
# Change of a log hyperparameter after which the Fisher information is computed again.
_REFRESH = 0.5
# Factor by which steps become longer while most of the slope remains after them.
_LONGER = 1.5
# Exponent with which steps become shorter with the number of turns.
_DECAY = 0.7
# Fewest gradients for a measured curvature, and its least share of the Fisher information.
_FEW, _LEAST_RATIO = 4, 0.02
# A variable at this distance from a bound counts as on the bound.
_SLACK = 1e-10


class NaturalGradient(BaseEstimator, Optimizer):
    """Natural gradient ascent for stochastic gradients, with a stopping rule of its own.

    A step is the gradient multiplied by the inverse Fisher information of random rows, in which
    the curvature along the drift of the iterates is measured from the gradients. If a gradient
    points back along the last step, the steps have turned, and later ones are shorter. After the
    first turn each gradient uses new random numbers, and iterates and gradients are averaged: over
    the last half, the mean gradient gives one more step from the mean iterate. Training ends when
    the noise of that mean costs less than `gain_tol`, and the step would gain little more than its
    noise.

    Parameters
    ----------
    gain_tol : float, default=0.5
        Acceptable loss of log likelihood by noise. All other losses together may be a tenth of it.
    n_rows : int, default=300
        Number of random rows for the Fisher information; O(p n_rows^3) for p hyperparameters.

    Notes
    -----
    Amari (1998), Natural gradient works efficiently in learning; turns shorten steps as in Kesten
    (1958), Accelerated stochastic approximation; averages as in Polyak and Juditsky (1992).
    """

    redraws = True

    def __init__(self, gain_tol: float = 0.5, *, n_rows: int = 300):
        keep_settings(self, locals())

    def maximize(self, evaluate, theta, bounds, max_iter, metric=None) -> Optimum:
        check_number("gain_tol", self.gain_tol, positive=True)
        check_integer("n_rows", self.n_rows)
        expected, at = np.empty((0, 0)), np.full_like(theta, np.inf)
        last, predicted, turns, stretch = None, 0.0, 0, 1.0
        seen: list[tuple[np.ndarray, np.ndarray]] = []
        since: list[tuple[np.ndarray, np.ndarray]] = []
        best, reason = theta, End.MAX_ITER
        for _ in range(max_iter):
            if seen:
                evaluate.redraw()
            _, grad = evaluate(theta)
            if np.abs(theta - at).max(initial=0.0) > _REFRESH:
                expected, at = evaluate.information(theta, self.n_rows), theta
                since = []
            since.append((theta, grad))
            information = _measured(expected, since)
            step, gain = natural_step(information, grad, theta, bounds)
            slope = 1.0 if last is None else float(grad @ last) / max(predicted, 1e-300)
            turns += slope < 0
            # If most of the slope remains, the information overstates the curvature.
            stretch = 1.0 if slope < 0 else stretch * (_LONGER if slope > 0.5 else 1.0)
            if seen or slope < 0 or gain * stretch < self.gain_tol:
                seen.append((theta, grad))
                best, left, noise = _averaged(seen, information, bounds)
                settled = noise < self.gain_tol and left * stretch - noise < _LEFT * self.gain_tol
                if settled and len(since) >= 2 * _FEW:
                    reason = End.CONVERGED
                    break
            step *= min(stretch, _LONGEST_STEP / max(np.abs(step).max(initial=0.0), 1e-300))
            moved = np.clip(theta + step * (1 + turns) ** -_DECAY, *bounds.T)
            theta, last = moved, moved - theta
            predicted = float(grad @ last)
            best = best if seen else theta
        inverse = np.linalg.inv(information + _FLAT * np.eye(len(theta)))
        return Optimum(best, inverse, reason)


def _measured(expected: np.ndarray, since: list) -> np.ndarray:
    """The information with the curvature that gradients show along the drift of the iterates.

    The Fisher information is an expectation over targets. Along a ridge of the likelihood, where
    amplitude and length scales grow together, it may be twenty times the curvature. Steps and the
    gain that they promise are too small there by this factor.
    """
    thetas, grads = map(np.array, zip(*since[-max(_FEW, len(since) // 2) :], strict=True))
    half = len(thetas) // 2
    drift = thetas[half:].mean(0) - thetas[:half].mean(0) if half else np.zeros(len(expected))
    along = expected @ drift
    length = float(drift @ along)
    if len(thetas) < _FEW or length < _SLACK:
        return expected
    # A regression of slopes along the drift on places along it; the expected coefficient is -1.
    x, slope = (thetas - thetas.mean(0)) @ along, (grads - grads.mean(0)) @ drift
    ratio = np.clip(-(x @ slope) / (x @ x), _LEAST_RATIO, 1.0)
    return expected + (ratio - 1) * np.outer(along, along) / length


def _averaged(
    seen: list, information: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, float, float]:
    """One step from the mean of the last half, its predicted gain, and the cost of its noise."""
    thetas, grads = map(np.array, zip(*seen[len(seen) // 2 :], strict=True))
    theta, grad = thetas.mean(0), grads.mean(0)
    step, gain = natural_step(information, grad, theta, bounds)
    if len(grads) == 1:
        return np.clip(theta + step, *bounds.T), gain, np.inf
    apart = [natural_step(information, g - grad, theta, bounds)[1] for g in grads]
    noise = float(np.mean(apart)) / (len(grads) - 1)
    return np.clip(theta + step, *bounds.T), gain, noise


def natural_step(
    information: np.ndarray, grad: np.ndarray, theta: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, float]:
    """(F + l I)^-1 grad for the variables that are free to move, and the predicted gain.

    The damping l keeps the step short. The gain, 1/2 grad' F^-1 grad, is that of the whole step.
    """
    low, high = theta <= bounds[:, 0] + _SLACK, theta >= bounds[:, 1] - _SLACK
    free = ~((low & (grad < 0)) | (high & (grad > 0)))
    F, step, damping = information[np.ix_(free, free)], np.zeros_like(theta), _FLAT
    step[free] = np.linalg.solve(F + damping * np.eye(len(F)), grad[free])
    gain = 0.5 * float(grad @ step)
    while np.abs(step).max(initial=0.0) > _LONGEST_STEP:
        damping *= 2
        step[free] = np.linalg.solve(F + damping * np.eye(len(F)), grad[free])
    return step, gain
