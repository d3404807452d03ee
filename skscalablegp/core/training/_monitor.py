"""The monitor of a training run: history, progress and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields, replace
from logging import LoggerAdapter
from typing import Any, NamedTuple

import numpy as np
import torch
from tqdm import tqdm

from ..._clock import now
from ..._end import End
from ...linalg.gradients import GradientEstimate
from ...linalg.solvers import SolveSummary
from ._budget import Budget, StopTraining

LOG_LIKELIHOOD = "log marginal likelihood"


class Evaluated(NamedTuple):
    """One evaluation of the training objective, as optimisers and the history have it.

    Attributes
    ----------
    value : float
        NaN if it is unknown.
    grad : ndarray of shape (p,)
    residual, probe_residual, epochs : float
        As in `TrainingStep`.
    solve : SolveSummary or None
    """

    value: float
    grad: np.ndarray
    residual: float = 0.0
    probe_residual: float = 0.0
    epochs: float = 0.0
    solve: SolveSummary | None = None

    @classmethod
    def of(cls, estimate: GradientEstimate) -> Evaluated:
        """The numbers of an estimate, without its tensors."""
        value = float("nan") if estimate.value is None else float(estimate.value)
        grad, solution = estimate.grad.cpu().numpy().copy(), estimate.solution
        if solution is None:
            return cls(value, grad)
        residuals = solution.residuals.cpu().numpy()
        own, probes = np.split(residuals, [solution.stats.get("n_targets", len(residuals))])
        probed = float(probes.mean()) if len(probes) else 0.0
        epochs = float(solution.epochs)
        return cls(value, grad, float(own.max()), probed, epochs, solution.summary())


@dataclass(frozen=True)
class TrainingStep:
    """The argument of callbacks, which are called after each step or score.

    Attributes
    ----------
    stage : str
        Name of the stage. Initial stages are named by their number of rows ("2000"), or
        "neighbourhood 1", or "start"; training on all rows is "full". If training continues for a
        function without noise, the stage is "below the bound of the noise". Other names are "expert
        1" for experts that are trained separately, "batches" for steps on random batches, and
        "network" and "network and kernel" for networks that are trained before the kernel. Steps of
        auxiliary fits, such as checks, are not reported.
    iteration : int
        Number of the step in this stage, from 1.
    theta : ndarray of shape (p,)
        Logarithms of the hyperparameters at which the objective was evaluated.
    grad : ndarray of shape (p,)
        The (estimated) gradient of the objective; empty if it is unknown.
    objective : float
        Value of the objective, which training maximises; NaN if it is unknown.
    objective_name : str
        Name of the objective, such as "log marginal likelihood".
    residual : float
        Largest relative residual of the linear solve for the targets; 0 for direct methods.
    probe_residual : float
        Mean relative residual of the solves for the probe vectors; 0 without probe vectors.
    epochs : float
        Number of epochs of that solve; for random batches, passes over the data so far.
    seconds : float
        Time since the fit began.
    preview : callable or None
        The function that `model` calls; None if the stage has no model to show.
    """

    stage: str
    iteration: int
    theta: np.ndarray
    grad: np.ndarray
    objective: float
    objective_name: str
    residual: float
    epochs: float
    seconds: float
    probe_residual: float = 0.0
    preview: Callable[[TrainingStep], Any] | None = field(default=None, repr=False, compare=False)

    def model(self):
        """The estimator as it would be if training ended here; call it inside the callback.

        Returns
        -------
        model : estimator or None
            A fitted copy. None if the stage has no model, or if the model at these
            hyperparameters cannot be computed for numerical reasons.
        """
        try:
            return None if self.preview is None else self.preview(self)
        except (torch.linalg.LinAlgError, FloatingPointError):
            return None

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"preview": None}  # outside of the fit there is no model


HISTORY = tuple(f.name for f in fields(TrainingStep) if f.name not in ("grad", "preview"))


@dataclass
class Monitor:
    """Records every step, and ends the run if a callback returns true or the time is spent.

    Parameters
    ----------
    callbacks : sequence of callable
        Each is called with a TrainingStep; a true return value stops the training.
    budget : Budget, optional
        The time of the run; without a limit by default.
    verbose : int
        1 shows a progress bar, 0 nothing.

    Attributes
    ----------
    stage_seconds : dict of str to float
        Wall time of every finished stage.
    failures : list of str
        Parts of the training that failed while others succeeded.
    preview : callable or None
        The `preview` of every step.
    log : LoggerAdapter or None
        Where the beginning and the end of each stage are logged.
    """

    callbacks: Sequence[Callable[[TrainingStep], bool | None]] = ()
    budget: Budget = field(default_factory=Budget)
    verbose: int = 0
    steps: list[TrainingStep] = field(default_factory=list)
    solutions: list[SolveSummary] = field(default_factory=list)
    stage_seconds: dict[str, float] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    preview: Callable[[TrainingStep], Any] | None = None
    log: LoggerAdapter | None = None
    _bar: tqdm | None = None
    _stage: str | None = None
    _stage_started: float = 0.0
    _objective: str = LOG_LIKELIHOOD
    _iteration: int = 0

    def begin(self, stage: str, total: int | None = None, objective: str = LOG_LIKELIHOOD) -> None:
        """Start a stage of at most `total` steps; None for a stage without steps."""
        self.close()
        self._stage, self._iteration, self._objective = stage, 0, objective
        self._stage_started = now()
        if self.log is not None:
            limit = "" if total is None else f", at most {total:,} steps"
            self.log.info("stage %r begins%s", stage, limit)
        if self.verbose and total is not None:
            self._bar = tqdm(total=total, desc=f"fit ({stage})", unit="step", leave=True)

    @property
    def in_stage(self) -> bool:
        """Whether a stage is under way."""
        return self._stage is not None

    def adds(self, name: str) -> None:
        """Add a term to the name of this stage's objective."""
        self._objective = f"{self._objective} + {name}"

    def record(self, theta: np.ndarray, evaluated: Evaluated) -> None:
        """Record one evaluation; raise StopTraining if a budget or a callback ends training."""
        self.note(evaluated)
        self._announce(
            theta,
            grad=evaluated.grad,
            objective=evaluated.value,
            residual=evaluated.residual,
            probe_residual=evaluated.probe_residual,
            epochs=evaluated.epochs,
        )

    def relay(self, step: TrainingStep) -> bool:
        """Record a step of a fit inside this one; returns whether a callback stops both."""
        asked = self.hear(replace(step, seconds=self.budget.seconds))
        if asked:
            self.budget.end(End.CALLBACK)
        return asked

    def record_score(self, theta: np.ndarray, objective: float, epochs: float) -> None:
        """Record one value of the objective; raise StopTraining as `record` does."""
        none = np.empty(0)
        self._announce(theta, grad=none, objective=float(objective), residual=0.0, epochs=epochs)

    def _announce(self, theta: np.ndarray, **facts: Any) -> None:
        self._iteration += 1
        step = TrainingStep(
            stage=self.stage,
            iteration=self._iteration,
            theta=np.array(theta),
            objective_name=self._objective,
            seconds=self.budget.seconds,
            **facts,
        )
        if self._bar is not None:
            self._bar.set_postfix(_summary(step), refresh=False)
            self._bar.update()
        if self.hear(step):
            raise StopTraining(End.CALLBACK)
        self.budget.check()

    def hear(self, step: TrainingStep) -> bool:
        """Record a step of this or another monitor; returns whether a callback stops training."""
        step = replace(step, preview=self.preview)
        self.steps.append(step)
        return any([callback(step) for callback in self.callbacks])

    def note(self, evaluated: Evaluated) -> None:
        """Record the linear solve of an evaluation, which may be a rejected one."""
        if evaluated.solve is not None:
            self.solutions.append(evaluated.solve)

    @property
    def stage(self) -> str:
        """The name of the stage under way."""
        return self._stage or "full"

    def close(self) -> None:
        """End the stage under way."""
        if self._bar is not None:
            self._bar.close()
            self._bar = None
        if self._stage is not None:
            passed = now() - self._stage_started
            self.stage_seconds[self._stage] = self.stage_seconds.get(self._stage, 0.0) + passed
            if self.log is not None:
                steps = f", {self._iteration} steps" if self._iteration else ""
                self.log.info("stage %r ended after %.2g s%s", self._stage, passed, steps)
            self._stage = None

    def history(self) -> dict[str, list]:
        """A list for each quantity, with an entry for each step."""
        return {name: [getattr(step, name) for step in self.steps] for name in HISTORY}


def _summary(step: TrainingStep) -> dict[str, str]:
    if np.isnan(step.objective):
        return {"gradient": f"{np.abs(step.grad).max():.2g}", "epochs": f"{step.epochs:.0f}"}
    return {step.objective_name: f"{step.objective:.4g}"}
