"""How much of a fit or of a prediction a time budget allows, by what smaller parts have cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..core.training import Budget

# Rows of the first trial of a fit that cannot be stopped, and the growth from trial to trial.
_FIRST, _GROWTH = 2000, 4
# A step begins only if the measured cost of smaller ones, extrapolated, times this factor, is left.
MARGIN = 1.3
# A cost grows at least with this power of the number of rows.
_LEAST_POWER = 0.7
# Rows of the first two blocks of predictions, and of all others. They do not depend on the clock,
# so that a fit that no limit cuts repeats identically.
_BLOCKS, _BLOCK = (200, 800), 3000
# A member is dropped if fewer held-out rows than this are predicted in time.
ENOUGH = 300


class Late(RuntimeError):
    """Time did not suffice to evaluate a member; the fit of the others continues."""


def grown(
    fit: Callable[[int], tuple[Any, bool, float]], n: int, budget: Budget, first: int = _FIRST
) -> tuple[Any, int, bool, float]:
    """A fit to n rows that cannot be stopped, or to as many as there is time for.

    Under a time budget it is tried on 2,000 rows, then on 8,000; its growth tells how many more are
    affordable. Without a limit it is done once.

    Parameters
    ----------
    fit : callable
        ``fit(size)`` fits `size` rows; returns the fit, whether time has cut it short, and the
        seconds of what must follow it.
    n : int
    budget : Budget
    first : int, default=2000
        Rows of the first trial.

    Returns
    -------
    fitted : object
        The last fit that was not cut, or the first one.
    size : int
        Its rows.
    cut : bool
        Whether it has been cut short itself.
    seconds : float
    """
    size, before, kept = n if budget.limit is None else min(n, first), None, None
    while True:
        begun = budget.seconds
        fitted, cut, later = fit(size)
        took = max(budget.seconds - begun, 1e-9)
        if kept is not None and (cut or not budget.allows(later)):
            return kept
        kept = fitted, size, cut, took
        if cut or size == n:
            return kept
        # What follows a fit, such as predictions, need not grow with the rows.
        costs = _Cost(size, took, _LEAST_POWER), _Cost(size, later, 0.0)
        grow = [cost.power(last) for cost, last in zip(costs, before or costs, strict=True)]
        # After a single trial the growth is not known.
        sizes = [n, _GROWTH * size] if size > first else [_GROWTH * size]
        wanted = [min(n, each) for each in sizes]
        needed = [
            MARGIN * sum(each.at(rows, power) for each, power in zip(costs, grow, strict=True))
            for rows in wanted
        ]
        affordable = [each for each, cost in zip(wanted, needed, strict=True)
                      if budget.allows(cost)]  # fmt: skip
        if not affordable:
            return kept
        before, size = costs, affordable[0]


class _Cost(NamedTuple):
    """The measured seconds of some rows, and the least power of the rows with which they grow."""

    size: int
    seconds: float
    least: float

    def power(self, before: _Cost) -> float:
        """The power of their growth from fewer rows; 1 if there is no other measurement."""
        if before.size == self.size or min(before.seconds, self.seconds) <= 0:
            return 1.0
        found = math.log(self.seconds / before.seconds) / math.log(self.size / before.size)
        return max(found, self.least)

    def at(self, size: int, power: float) -> float:
        """Seconds of another number of rows."""
        return self.seconds * (size / self.size) ** power


def filled(
    answer: Callable[[np.ndarray], np.ndarray],
    X: np.ndarray,
    order: np.ndarray,
    out: np.ndarray,
    budget: Budget,
) -> int:
    """Predict rows of X block by block, as many as there is time for, at least the first block.

    Parameters
    ----------
    answer : callable
        ``answer(X)`` gives an array of shape (len(X), q).
    X : ndarray of shape (m, d)
    order : ndarray
        Numbers of the rows, in the order of their predictions.
    out : ndarray of shape (m, q)
        Receives the predictions.
    budget : Budget

    Returns
    -------
    done : int
        How many of `order` were predicted.
    """
    done, rate = 0, 0.0
    while done < len(order):
        size = _BLOCK if done >= sum(_BLOCKS) else _BLOCKS[0] if done < _BLOCKS[0] else _BLOCKS[1]
        if done and budget.left is not None:
            size = min(size, int(budget.left / max(rate, 1e-9)))
        if done and size < min(_BLOCKS[0], len(order) - done):
            break
        rows = order[done : done + size]
        begun = budget.seconds
        out[rows] = answer(X[rows])
        rate = (budget.seconds - begun) / len(rows)
        done += len(rows)
    return done
