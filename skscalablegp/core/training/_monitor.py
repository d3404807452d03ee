"""What watches a training run: history, progress, callbacks, budgets, interruption."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tqdm import tqdm

from ...linalg.gradients import GradientEstimate
from ...linalg.solvers import SolveSummary


class StopTraining(Exception):
    """Ends an optimiser from inside an evaluation; carries the reason."""


@dataclass(frozen=True)
class TrainingStep:
    """What a callback sees after each evaluation of the objective.

    Attributes
    ----------
    stage : str
        The number of rows ("2000"), "neighbourhood 1" or "start" while initialising, "full"
        afterwards; "expert 1" for separate experts; "batches" where every step sees a random batch.
    iteration : int
        Evaluations so far in this stage, from 1.
    theta : ndarray of shape (p,)
        Log hyperparameters at which the objective was evaluated.
    grad : ndarray of shape (p,)
        The (estimated) gradient of the log marginal likelihood.
    objective : float
        The log marginal likelihood, NaN where the estimator does not know it; with random batches
        the score, which is minimised.
    residual : float
        Largest relative residual of the linear solve, 0 for direct methods.
    epochs : float
        Epochs of that solve; with random batches, passes over the data so far.
    seconds : float
        Since the fit began.
    """

    stage: str
    iteration: int
    theta: np.ndarray
    grad: np.ndarray
    objective: float
    residual: float
    epochs: float
    seconds: float


@dataclass
class Monitor:
    """Records every step and decides when a run has to stop.

    Parameters
    ----------
    callbacks : sequence of callable
        Each is called with a TrainingStep; a true return value stops the training.
    max_seconds : float or None
        Time budget from the monitor's creation.
    verbose : int
        0 silent, 1 a progress bar.
    """

    callbacks: Sequence[Callable[[TrainingStep], bool | None]] = ()
    max_seconds: float | None = None
    verbose: int = 0
    steps: list[TrainingStep] = field(default_factory=list)
    solutions: list[SolveSummary] = field(default_factory=list)
    started: float = field(default_factory=time.perf_counter)
    _bar: tqdm | None = None
    _stage: str = "full"
    _iteration: int = 0

    def begin(self, stage: str, total: int) -> None:
        """Start a stage of at most `total` evaluations."""
        self.close()
        self._stage, self._iteration = stage, 0
        if self.verbose:
            self._bar = tqdm(total=total, desc=f"fit ({stage} rows)", unit="step", leave=True)

    def record(self, theta: np.ndarray, estimate: GradientEstimate) -> None:
        """Append one evaluation; raises StopTraining when a budget or a callback says so."""
        self._iteration += 1
        solution = estimate.solution
        step = TrainingStep(
            stage=self._stage,
            iteration=self._iteration,
            theta=theta.copy(),
            grad=estimate.grad.cpu().numpy().copy(),
            objective=float("nan") if estimate.value is None else float(estimate.value),
            residual=0.0 if solution is None else float(solution.residuals.max()),
            epochs=0.0 if solution is None else float(solution.epochs),
            seconds=time.perf_counter() - self.started,
        )
        self.note(estimate)
        self._announce(step, self._summary(step))

    def _announce(self, step: TrainingStep, summary: dict[str, str]) -> None:
        self.steps.append(step)
        if self._bar is not None:
            self._bar.set_postfix(summary, refresh=False)
            self._bar.update()
        if any([callback(step) for callback in self.callbacks]):
            raise StopTraining("callback")
        self.check_time()

    def record_score(self, theta: np.ndarray, score: float, epochs: float) -> None:
        """Append one score of a run of random batches; raises StopTraining as `record` does."""
        self._iteration += 1
        step = TrainingStep(
            stage=self._stage,
            iteration=self._iteration,
            theta=theta.copy(),
            grad=np.empty(0),
            objective=score,
            residual=0.0,
            epochs=epochs,
            seconds=self.seconds,
        )
        self._announce(step, {"score": f"{score:.4g}"})

    def note(self, estimate: GradientEstimate) -> None:
        """Keep how an evaluation's linear solve ended, of a rejected evaluation too."""
        solution = estimate.solution
        if solution is not None:
            self.solutions.append(solution.summary())

    def check_time(self) -> None:
        """Raise StopTraining when the time budget is spent."""
        if self.max_seconds is not None and self.seconds > self.max_seconds:
            raise StopTraining("max_seconds")

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.started

    def spent(self) -> float:
        """The share of the time budget that has gone; 0 where there is none."""
        return 0.0 if self.max_seconds is None else self.seconds / max(self.max_seconds, 1e-9)

    @property
    def seconds_left(self) -> float | None:
        """Of the time budget, at least 0; None where there is none."""
        return None if self.max_seconds is None else max(0.0, self.max_seconds - self.seconds)

    def _summary(self, step: TrainingStep) -> dict[str, str]:
        if np.isnan(step.objective):
            return {"gradient": f"{np.abs(step.grad).max():.2g}", "epochs": f"{step.epochs:.0f}"}
        return {"log likelihood": f"{step.objective:.4g}"}

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None

    def history(self) -> dict[str, list]:
        """One list a quantity, one entry a step."""
        fields = ("stage", "theta", "objective", "residual", "epochs", "seconds")
        return {name: [getattr(step, name) for step in self.steps] for name in fields}
