"""A dense quasi-Newton method that carries its curvature from a subset to all rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from torch import Generator

from ..._end import End
from ..._validation import check_integer, check_number
from ._optimizers import Optimizer, Optimum

# Longest step of a log hyperparameter, and the length of the first step.
_LONGEST_STEP = 1.0
_FIRST_STEP = 0.2
_SUFFICIENT = 1e-4
# Objectives count as at least this large, in nats, when gains are compared with the tolerance. With
# a tolerance of 1e-6 and a hundred rows a log hyperparameter is then right to a few thousandths.
_SMALLEST_GAIN = 100
_MAX_BACKTRACKS = 8
# The steps diverge if a predicted gain is this many times the smallest one so far.
_LOST = 30.0
# Acceptable remaining gain if gradients are estimates, in units of `gain_tol`.
_NOISE = 10.0
# Relative rounding error of objective values: the condition number of the matrix, here up to 1e6,
# times that of a number in double precision.
ROUNDING = 1e-10
# Variables whose steps exceed their bounds by this share of the largest excess are held together.
_TOGETHER = 0.9
# A variable at this distance from a bound counts as on the bound.
_SLACK = 1e-10
# The Fisher information is computed again after a change of a log hyperparameter by the first
# number, and at the end of the steps after one by the second. The first is not a multiple of the
# longest step: two of these would reach it or not by the last digit of a sum.
_REFRESH, _REFRESH_AT_END = 2.1, 0.1
# Added to its diagonal, in nats: flat directions, such as the length scale of a column that does
# not matter, have no optimum.
_FLAT = 0.1
# Rows for it: the first number divided by the number of hyperparameters, at least the second one,
# and at most the third.
_ROWS_TIMES_PARAMETERS, _FEWEST_ROWS, _MOST_ROWS = 12_000, 120, 300
# With its curvature, the steps of more hyperparameters than the second number end at this fraction
# of `gain_tol`.
_PRECISE, _FEW_PARAMETERS = 0.05, 10


class QuasiNewton(BaseEstimator, Optimizer):
    """BFGS within bounds, with or without objective values.

    The curvature of the marginal likelihood per row hardly depends on the number of rows. An
    inverse Hessian that was found on a subset, divided by the ratio of rows, therefore needs only a
    few more steps on all rows. With fixed probe vectors a stochastic gradient is a smooth function
    of theta, and the same steps find its root without values of the objective.

    Parameters
    ----------
    tol : float, default=1e-6
        The optimiser ends when two steps in a row gained less than `tol` times the objective.
    gain_tol : float, default=0.5
        If a metric is given, or values are unknown, the optimiser also ends when the predicted gain
        of the log likelihood is less than this. A half is far below the noise of any comparison of
        models. Training that finds no better point counts as stagnated if the remaining gain is
        larger, or ten times larger if values are unknown.
    final_gain : float, optional
        The predicted gain of the log likelihood at which steps with the Fisher information end. The
        default is `tol` times the objective for up to ten hyperparameters, and a twentieth of
        `gain_tol` for more.
    information_rows : int, default=300
        Largest number of random rows for the Fisher information, which is computed again when the
        hyperparameters have moved far; 0 for none. Many hyperparameters take fewer rows. Only
        fits of this package have it, whose objectives know their rows; O(p m^3) for p
        hyperparameters and m rows.
    compare_starts : bool, default=True
        Whether a fit compares several starts before the first step. False begins at the given
        hyperparameters, for example those of a fit to other rows of the same table.

    Notes
    -----
    Nocedal and Wright (2006), algorithm 6.1; variables that press against a bound are held there.
    O(p^2) for each step with p hyperparameters. The Fisher information as a metric: Amari (1998).
    """

    def __init__(
        self,
        tol: float = 1e-6,
        *,
        gain_tol: float = 0.5,
        final_gain: float | None = None,
        information_rows: int = 300,
        compare_starts: bool = True,
    ):
        self.tol = tol
        self.gain_tol = gain_tol
        self.final_gain = final_gain
        self.information_rows = information_rows
        self.compare_starts = compare_starts

    def maximize(self, evaluate, theta, bounds, max_iter, metric=None) -> Optimum:  # noqa: C901 (one loop that reads as the algorithm)
        check_number("tol", self.tol)
        check_number("gain_tol", self.gain_tol)
        if self.final_gain is not None:
            check_number("final_gain", self.final_gain)
        check_integer("information_rows", self.information_rows, 0)
        value, grad = evaluate(theta)
        known = self._informed_metric(evaluate, theta) if metric is None else metric.copy()
        informed, fresh, at = metric is None and known is not None, known is None, theta
        B = _first_metric(grad) if known is None else known
        refining = metric is not None or np.isnan(value)
        small, best, lost, reason = 0, (np.inf, theta, B), False, End.CONVERGED
        predicted = 0.0
        for made in range(max_iter):
            moved = np.abs(theta - at).max(initial=0.0)
            for distance in (_REFRESH, _REFRESH_AT_END):
                if informed and moved > distance:
                    B, at = _known(self._informed_metric(evaluate, theta), B), theta
                    moved = 0.0
                step, whole = _direction(B, theta, grad, bounds)
                predicted = float(grad @ step)
                enough = self.gain_tol if refining else 0.0
                if informed:
                    enough = self._enough_informed(value, len(theta))
                done = not predicted > 0 or 0.5 * predicted < enough
                if not done:
                    break
            if np.isnan(value):
                # Without values iterates can only be compared by their predicted gains.
                if predicted < best[0]:
                    best = (predicted, theta, B)
                elif predicted > _LOST * best[0]:
                    lost = True
                    break
            if done:
                break
            if made == max_iter - 1:
                reason = End.MAX_ITER
                break
            new_theta, new_value, new_grad = _search(
                evaluate, theta, value, predicted, step, bounds
            )
            if new_theta is None:
                if informed and not np.array_equal(at, theta):
                    at = np.full_like(theta, np.inf)  # The old curvature may be the cause.
                    continue
                lost = True
                break
            s, y = new_theta - theta, grad - new_grad
            B, fresh = _update(B, s, y, fresh), False
            gain = new_value - value
            theta, value, grad = new_theta, new_value, new_grad
            # A shortened step does not show how much can still be gained.
            least = self.tol * max(abs(value), _SMALLEST_GAIN)
            small = small + 1 if whole and gain < least else 0
            if small == 2:
                break
        left, enough = predicted, self.gain_tol
        if np.isnan(value):
            (left, theta, B), enough = best, _NOISE * self.gain_tol
        if lost and 0.5 * left > enough:
            reason = End.STAGNATED
        return Optimum(theta, B, reason)

    def _enough_informed(self, value: float, p: int) -> float:
        """The predicted gain at which steps with the Fisher information end."""
        if self.final_gain is not None:
            return self.final_gain
        # With few hyperparameters the last digits cost little, and users compare them.
        few = self.tol * max(abs(value), _SMALLEST_GAIN)
        return few if p <= _FEW_PARAMETERS else _PRECISE * self.gain_tol

    def _informed_metric(self, evaluate: Any, theta: np.ndarray) -> np.ndarray | None:
        """The inverse Fisher information at theta, damped in flat directions; None if unknown."""
        known = getattr(evaluate, "informed", False)
        if self.information_rows == 0 or not known or len(theta) == 0:
            return None
        try:
            # The rows do not depend on the seed, because exact fits do not depend on one.
            generator = Generator().manual_seed(0)
            rows = rows_of_information(len(theta), self.information_rows)
            information = evaluate.information(theta, rows, generator)
            metric = np.linalg.inv(information + _FLAT * np.eye(len(theta)))
        except np.linalg.LinAlgError:
            return None
        return metric if np.isfinite(metric).all() else None


def rows_of_information(p: int, most: int = _MOST_ROWS) -> int:
    """Number of rows for the Fisher information of p hyperparameters."""
    return min(most, max(_FEWEST_ROWS, _ROWS_TIMES_PARAMETERS // p))


def _known(metric: np.ndarray | None, otherwise: np.ndarray) -> np.ndarray:
    return otherwise if metric is None else metric


def _first_metric(grad: np.ndarray) -> np.ndarray:
    return np.eye(len(grad)) * (_FIRST_STEP / max(float(np.linalg.norm(grad)), 1e-300))


def _direction(
    B: np.ndarray, theta: np.ndarray, grad: np.ndarray, bounds: np.ndarray
) -> tuple[np.ndarray, bool]:
    """The step to the top of the parabola within the bounds, and whether it is not shortened.

    A variable that would pass a bound moves to it, and the others take the best step given this
    one. Without this, each of many length scales that reach their bound, one after the other, would
    shorten the steps of all. The step of all variables is shortened together where the longest one
    exceeds one, beyond which the curvature changes: its direction then remains.
    """
    low, high = np.minimum(bounds.T - theta, 0.0)[0], np.maximum(bounds.T - theta, 0.0)[1]
    held = ((low >= -_SLACK) & (grad < 0)) | ((high <= _SLACK) & (grad > 0))
    step = np.zeros_like(theta)
    while not held.all():
        free = ~held
        inner, coupled = _reduced(B, held)
        step[free] = inner @ grad[free] + coupled @ step[held]
        limit = np.maximum(np.where(step > 0, high, -low), _SLACK)
        excess = np.where(free, np.abs(step) / limit, 0.0)
        if excess.max() <= 1:
            break
        # Given these steps, the others may remain within their bounds.
        over = excess > max(1.0, _TOGETHER * excess.max())
        step[over] = np.clip(step, low, high)[over]
        held |= over
    if not grad @ step > 0:
        # The steps of variables that are held may cost more than the others gain.
        step = np.clip(B.diagonal() * grad, low, high)
    longest = float(np.abs(step).max(initial=0.0))
    return step / max(1.0, longest / _LONGEST_STEP), longest < _LONGEST_STEP


def _reduced(B: np.ndarray, held: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The inverse Hessian of the free variables, and their response to steps of the others."""
    free = ~held
    if not held.any():
        return B, np.zeros((len(B), 0))
    coupled = np.linalg.solve(B[np.ix_(held, held)], B[np.ix_(held, free)]).T
    return B[np.ix_(free, free)] - coupled @ B[np.ix_(held, free)], coupled


def _search(evaluate, theta, value, predicted, step, bounds):
    """Backtrack until the value has risen enough; without values make the full step."""
    t = 1.0
    for _ in range(_MAX_BACKTRACKS):
        trial = np.clip(theta + t * step, bounds[:, 0], bounds[:, 1])
        if np.array_equal(trial, theta):
            break
        new_value, new_grad = evaluate(trial)
        # Near the optimum, rounding hides gains of the value: the slope must then be smaller.
        level = abs(new_value - value) <= ROUNDING * abs(value) and abs(new_grad @ step) < predicted
        if np.isnan(value) or level or new_value >= value + _SUFFICIENT * t * predicted:
            return trial, new_value, new_grad
        # The parabola through both values and the slope at the start.
        drop = value + t * predicted - new_value
        t *= float(np.clip(0.5 * t * predicted / max(drop, 1e-300), 0.1, 0.5))
    return None, value, None


def _update(B: np.ndarray, s: np.ndarray, y: np.ndarray, fresh: bool) -> np.ndarray:
    """The BFGS update of the inverse Hessian of the negative objective."""
    curvature = float(s @ y)
    square = float(y @ y)
    # Slopes whose square underflows do not determine the curvature.
    if square == 0 or curvature <= 1e-10 * float(np.linalg.norm(s)) * math.sqrt(square):
        return B
    if fresh:
        B = np.eye(len(s)) * (curvature / square)
    rho = 1.0 / curvature
    left = np.eye(len(s)) - rho * np.outer(s, y)
    return left @ B @ left.T + rho * np.outer(s, s)
