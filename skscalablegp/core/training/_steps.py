"""The driver of methods that change their parameters in place, a random batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...linalg.parallel import one_thread
from ._monitor import Monitor, StopTraining

# Operations of a matrix product, about a fiftieth of a second, from which several threads are worth
# what they wait for one another on a busy machine.
_MANY_FLOPS = 1e9

# How much worse than at the start a last score is where steps led astray. Scores are nats a row, or
# squared errors in units of the target's variance.
_LOST = 1.0


class Stepper(ABC):
    """Parameters and the rule that changes them; the driver owns budgets, stopping and the best.

    A step may end in non-finite parameters; the driver then goes back to the best ones.

    Attributes
    ----------
    objective_name : str
        What minus the score is; the history shows it, since it always shows what is maximised.
    flops : float
        Of the largest matrix product or factorisation of a step. Steps of small ones run in one
        thread: they gain little from others, and wait for them where the machine is busy.
    """

    objective_name: str = "minus the score"
    flops: float = 0.0

    @abstractmethod
    def step(self) -> None:
        """Change the parameters by one random batch."""

    @abstractmethod
    def score(self) -> float:
        """How good the parameters are, lower is better; NaN or infinite when they are useless."""

    @abstractmethod
    def theta(self) -> np.ndarray:
        """Log hyperparameters for the history; empty where there are none."""

    @abstractmethod
    def snapshot(self) -> Any:
        """A copy of the parameters."""

    @abstractmethod
    def restore(self, snapshot: Any) -> None:
        """Go back to a copy."""

    def slow_down(self) -> bool:
        """Take smaller steps from now on; whether that is still possible."""
        return False


@dataclass(frozen=True)
class StepsResult:
    """How a run of steps ended.

    Attributes
    ----------
    score : float
        Of the parameters that are kept, infinite if none were ever useful.
    n_steps : int
        Steps taken, those after the best ones included.
    stop_reason : str
        "max_iter", "converged", "max_seconds", "callback", "diverged" or "interrupted".
    """

    score: float
    n_steps: int
    stop_reason: str


def train_steps(
    stepper: Stepper,
    *,
    max_steps: int,
    check_every: int,
    monitor: Monitor,
    n_iter_no_change: int | None = None,
    tol: float = 0.0,
    epochs_per_step: float = 0.0,
    keep_best: bool = True,
    retreat: float | None = None,
) -> StepsResult:
    """Take steps until a budget or patience is spent, and leave the best parameters in place.

    Parameters
    ----------
    stepper : Stepper
        What is trained.
    max_steps : int
        Most steps.
    check_every : int
        Steps from one score to the next; a score is also taken before the first and after the last.
    monitor : Monitor
        History, progress, callbacks and time; sees one entry a score.
    n_iter_no_change : int, optional
        Stop after so many scores in a row that improve the best by less than `tol`.
    tol : float, default=0.0
        See `n_iter_no_change`; in units of the score.
    epochs_per_step : float, default=0.0
        Passes over the data in one step, for the history.
    keep_best : bool, default=True
        Whether the parameters of the best score are kept, or else the last finite ones.
    retreat : float, optional
        A score that is worse than the best by more than this, or not finite, sends the stepper back
        to its best parameters and to smaller steps; without it, and where steps cannot be smaller,
        training that is not finite ends as diverged. For scores that do not vary by themselves.

    Notes
    -----
    Training that never gets better than its start, and ends far worse, has diverged as well.

    Returns
    -------
    result : StepsResult
        A KeyboardInterrupt, a callback or a time budget ends the run with the best state so far.
    """
    run = _Run(stepper, monitor, tol, keep_best, retreat)
    reason, done = monitor.stopped or "max_iter", 0
    try:
        with one_thread(stepper.flops < _MANY_FLOPS):
            run.check(0.0)
            if monitor.stopped is not None:
                max_steps = 0
            while done < max_steps:
                for _ in range(min(check_every, max_steps - done)):
                    stepper.step()
                    done, run.at_best = done + 1, False
                    monitor.check_time()
                run.check(done * epochs_per_step)
                if n_iter_no_change is not None and run.stale >= n_iter_no_change:
                    reason = "converged"
                    break
    except StopTraining as stop:
        reason = str(stop)
    except KeyboardInterrupt:
        if run.kept is None:
            raise
        reason = "interrupted"
    if reason in ("max_iter", "converged") and run.lost:
        reason = "diverged"
    run.finish(reason)
    return StepsResult(run.best, done, monitor.end(reason))


class _Run:
    """The best parameters so far, and how long they have been the best."""

    def __init__(
        self,
        stepper: Stepper,
        monitor: Monitor,
        tol: float,
        keep_best: bool,
        retreat: float | None = None,
    ):
        self.stepper, self.monitor, self.tol = stepper, monitor, tol
        self.keep_best, self.retreat = keep_best, retreat
        self.best, self.kept, self.stale = np.inf, None, 0
        self.scores: list[float] = []
        self.at_best = False

    @property
    def lost(self) -> bool:
        """Whether steps led far away from the start, which nothing since has come up to."""
        first, last = self.scores[0], self.scores[-1]
        return last > first + _LOST and min(self.scores) == first

    def check(self, epochs: float) -> None:
        score = float(self.stepper.score())
        if self._retreats(score):
            self.stepper.restore(self.kept)
            self.at_best = True
            self.monitor.record_score(self.stepper.theta(), -score, epochs)
            return
        if not np.isfinite(score):
            raise StopTraining("diverged")
        self.scores.append(score)
        self.stale = 0 if score < self.best - self.tol else self.stale + 1
        if score < self.best or not self.keep_best:
            self.best, self.kept, self.at_best = score, self.stepper.snapshot(), True
        self.monitor.record_score(self.stepper.theta(), -score, epochs)

    def _retreats(self, score: float) -> bool:
        if self.retreat is None or self.kept is None or score <= self.best + self.retreat:
            return False
        if not self.stepper.slow_down():
            raise StopTraining("diverged")
        return True

    def finish(self, reason: str) -> None:
        """Score what a budget or an interrupt left behind, then go back to the best."""
        if self.at_best:
            return
        if reason in ("max_seconds", "interrupted"):
            score = float(self.stepper.score())
            if np.isfinite(score) and (score < self.best or not self.keep_best):
                self.best, self.kept = score, self.stepper.snapshot()
        if self.kept is not None:
            self.stepper.restore(self.kept)
