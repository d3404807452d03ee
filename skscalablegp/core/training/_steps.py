"""The driver of methods that change their parameters in place, one random batch at a time."""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..._end import End
from ...workers import one_thread
from ._budget import StopTraining
from ._journal import LastState, reading
from ._monitor import Monitor
from ._moving import captured, restored

# Matrix products with fewer operations (about a fiftieth of a second) run in one thread: on a busy
# machine several threads would wait longer for each other than they save.
_MANY_FLOPS = 1e9

# Training has diverged if the last score is worse than the first by this much. Scores are nats per
# row, or squared errors in units of the target's variance.
_LOST = 1.0


class Stepper(ABC):
    """Parameters and the rule that changes them.

    The driver is responsible for budgets, stopping and the best parameters. If a step ends in
    non-finite parameters, the driver restores the best ones.

    Attributes
    ----------
    objective_name : str
        Name of minus the score, which the history shows as the objective.
    flops : float
        Number of operations of the largest matrix product or factorisation of a step. Steps with
        small ones run in one thread.
    moving : tuple of str or None
        The attributes that steps and scores change, as in ``_moving``; with None a checkpoint does
        not keep them.
    """

    objective_name: str = "minus the score"
    flops: float = 0.0
    moving: tuple[str, ...] | None = None

    @abstractmethod
    def step(self) -> None:
        """Change the parameters by one random batch."""

    @abstractmethod
    def score(self) -> float:
        """Score of the parameters, lower is better; NaN or infinite if they are useless."""

    @abstractmethod
    def theta(self) -> np.ndarray:
        """Log hyperparameters for the history; empty if there are none."""

    @property
    def parameters(self) -> list[Tensor]:
        """The tensors that snapshots keep; others override `snapshot` and `restore`."""
        raise NotImplementedError

    def snapshot(self) -> Any:
        """A copy of the parameters."""
        return [tensor.detach().clone() for tensor in self.parameters]

    def restore(self, snapshot: Any) -> None:
        """Restore a copy of the parameters."""
        with torch.no_grad():
            for tensor, kept in zip(self.parameters, snapshot, strict=True):
                tensor.copy_(kept)

    def resumed(self) -> None:  # noqa: B027 (few have something to do)
        """Called when the moving attributes have been set to those of a checkpoint."""

    def slow_down(self) -> bool:
        """Make the following steps smaller; returns whether that is possible."""
        return False


@dataclass(frozen=True)
class StepsResult:
    """The result of a run of steps.

    Attributes
    ----------
    score : float
        Score of the parameters that are kept; infinite if none were useful.
    n_steps : int
        Number of steps, including those after the best parameters.
    stop_reason : End
    """

    score: float
    n_steps: int
    stop_reason: End


def train_steps(  # noqa: PLR0913 (the settings of one training)
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
    """Make steps until a budget or patience is spent, then restore the best parameters.

    Parameters
    ----------
    stepper : Stepper
        Holds and changes the parameters.
    max_steps : int
        Maximum number of steps.
    check_every : int
        Number of steps between scores. There is also a score before the first and after the last
        step.
    monitor : Monitor
        Keeps history, progress, callbacks and time; gets one entry for each score.
    n_iter_no_change : int, optional
        Training stops after this many scores in a row that improve the best by less than `tol`.
    tol : float, default=0.0
        See `n_iter_no_change`; in units of the score.
    epochs_per_step : float, default=0.0
        Passes over the data in one step, for the history.
    keep_best : bool, default=True
        Whether to keep the parameters of the best score; otherwise the last scored ones are kept,
        unless training diverges. A retreat makes the best ones the last.
    retreat : float, optional
        If a score is worse than the best by more than this, or not finite, the best parameters are
        restored and the steps become smaller. Only for scores without noise. Without it, or if
        steps cannot become smaller, a score that is not finite ends training as diverged.

    Notes
    -----
    Training that never improves on its start, and ends far worse, has also diverged.

    Returns
    -------
    result : StepsResult
        A KeyboardInterrupt, a callback or a time budget ends the run with the best state so far.
    """
    name = f"{monitor.stage}/{type(stepper).__name__}/{max_steps}/{check_every}"
    run = _Run(stepper, monitor, LastState(name), tol, keep_best, retreat)
    reason = monitor.budget.ended or End.MAX_ITER
    with monitor.budget.may_end(
        lambda reason: run.kept is not None or reason is not End.INTERRUPTED
    ) as ending:
        with one_thread(stepper.flops < _MANY_FLOPS):
            over = run.begin()
            if over is not None:
                return over
            if monitor.budget.ended is not None:
                max_steps = 0
            while run.done < max_steps and not run.converged(n_iter_no_change):
                run.advance(min(run.done - run.done % check_every + check_every, max_steps))
                run.check(run.done * epochs_per_step)
            if run.converged(n_iter_no_change):
                reason = End.CONVERGED
    reason = ending.reason or reason
    if reason in (End.MAX_ITER, End.CONVERGED) and run.lost:
        reason = End.DIVERGED
    return run.finish(reason)


class _Run:
    """The best parameters so far, the number of scores since, and the record of both."""

    def __init__(
        self,
        stepper: Stepper,
        monitor: Monitor,
        log: LastState,
        tol: float,
        keep_best: bool,
        retreat: float | None = None,
    ):
        self.stepper, self.monitor, self.log, self.tol = stepper, monitor, log, tol
        self.keep_best, self.retreat = keep_best, retreat
        self.best, self.kept, self.stale = np.inf, None, 0
        self.last: tuple[float, Any] | None = None
        self.scores: list[float] = []
        self.moved, self.done, self.resumed = False, 0, False
        # The last values passed to the monitor.
        self.told: list[tuple[np.ndarray, float, float]] = []

    @property
    def lost(self) -> bool:
        """Whether no score has improved on the first, and the last is far worse."""
        first, last = self.scores[0], self.scores[-1]
        return last > first + _LOST and min(self.scores) == first

    def converged(self, patience: int | None) -> bool:
        """Whether so many scores in a row have not improved the best one."""
        return patience is not None and self.stale >= patience

    def begin(self) -> StepsResult | None:
        """Score the start, or continue from a checkpoint; the result if there is nothing to do."""
        if self.log.found is None or self.stepper.moving is None:
            self.check(0.0)
            return None
        with reading():
            over = self._resume(self.log.found)
        preview, self.monitor.preview = self.monitor.preview, None
        try:
            for told in self.told:
                self.monitor.record_score(*told)
        finally:
            self.monitor.preview = preview
        return over

    def advance(self, until: int) -> None:
        """Make steps until there are so many."""
        while self.done < until:
            with self._first_use():
                self.stepper.step()
            self.done, self.moved, self.resumed = self.done + 1, True, False
            if self.log.due and self.done < until:
                self._record()
            self.monitor.budget.check()

    def _first_use(self) -> AbstractContextManager[None]:
        """Parts of a recorded state that do not belong together fail where they are first used."""
        return reading() if self.resumed else nullcontext()

    def check(self, epochs: float) -> None:
        """Score the parameters, and tell the monitor."""
        score = float(self.stepper.score())
        if self._retreats(score):
            self.stepper.restore(self.kept)
            self.moved, self.last = False, (self.best, self.kept)
        elif not np.isfinite(score):
            raise StopTraining(End.DIVERGED)
        else:
            self.scores.append(score)
            self.stale = 0 if score < self.best - self.tol else self.stale + 1
            self._keep(score)
        self.told.append((self.stepper.theta(), -score, epochs))
        self._record()
        self.monitor.record_score(*self.told[-1])

    def _keep(self, score: float) -> None:
        """Keep a copy of the parameters that have this score, if they may be the result."""
        self.moved, better = False, score < self.best
        if better or not self.keep_best:
            state = self.stepper.snapshot()
            self.last = score, state
            if better:
                self.best, self.kept = score, state

    def _retreats(self, score: float) -> bool:
        if self.retreat is None or self.kept is None or score <= self.best + self.retreat:
            return False
        if not self.stepper.slow_down():
            raise StopTraining(End.DIVERGED)
        return True

    def finish(self, reason: End) -> StepsResult:
        """After a budget or an interrupt score the last parameters; then restore those to keep."""
        if reason in (End.MAX_SECONDS, End.INTERRUPTED) and self.moved:
            score = float(self.stepper.score())
            if np.isfinite(score):
                self._keep(score)
        if self.last is not None and not self.keep_best and reason is not End.DIVERGED:
            self.best, self.kept = self.last
        if self.kept is not None:
            with self._first_use():
                self.stepper.restore(self.kept)
        result = StepsResult(self.best, self.done, reason)
        if not reason.ends_fit:
            self._record(result)
            self.log.ended()
        return result

    def _record(self, over: StepsResult | None = None) -> None:
        """Record everything that changes, and the result if there is one."""
        if self.stepper.moving is None or not self.log.kept:
            return
        same = self.last is not None and self.last[1] is self.kept
        names = ("best", "stale", "scores", "moved", "done")
        told = [[theta, float(value), float(epochs)] for theta, value, epochs in self.told]
        self.log.put(
            {name: captured(getattr(self, name)) for name in names}
            | {
                "told": told,
                "kept": captured(self.kept),
                "last": None if self.last is None else [self.last[0], captured(self.last[1])],
                "last is kept": same,
                "stepper": captured(self.stepper),
                "over": None
                if over is None
                else [over.score, over.n_steps, over.stop_reason.value],
            }
        )

    def _resume(self, found: dict[str, Any]) -> StepsResult | None:
        """Set everything to what was recorded; the result if there was one."""
        self.best, self.stale = float(found["best"]), int(found["stale"])
        self.done, self.moved = int(found["done"]), bool(found["moved"])
        self.scores = [float(score) for score in found["scores"]]
        self.told = [
            (np.asarray(theta), float(value), float(epochs))
            for theta, value, epochs in found["told"]
        ]
        new = self.stepper.snapshot()
        if found["kept"] is not None:
            self.kept = restored(new, found["kept"], fresh=True)
        if found["last"] is not None:
            score, state = float(found["last"][0]), found["last"][1]
            same = found["last is kept"]
            self.last = score, self.kept if same else restored(new, state, fresh=True)
        restored(self.stepper, found["stepper"])
        self.stepper.resumed()
        self.resumed = True
        self.log.skip_to(found["seconds"])
        if found["over"] is None:
            return None
        score, n_steps, reason = found["over"]
        return StepsResult(float(score), int(n_steps), End(reason))
