"""The record of a fit: its choices, how it ended, its warnings and its report."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from .._end import End
from .._named import changed_parameters
from ..linalg.solvers import Solution, SolveSummary
from ._awkward import columns_that_matter
from ._edge import more_noise, with_name
from ._log import FitLog
from ._plan import Choice, is_auto
from ._report import FitReport, at_bounds
from ._training_run import Run
from ._warn import warn_once
from .training import Monitor, TrainingStep


@dataclass(frozen=True)
class PartRecord:
    """The record of a part of a fit: its steps, the seconds of its stages, and its warnings."""

    steps: list[TrainingStep]
    stage_seconds: dict[str, float]
    messages: list[str]
    advice: list[str]


class FitRecord(Run):
    """What one fit has chosen, measured and found, from which its report is made.

    Parameters
    ----------
    estimator : estimator
        The estimator that is being fitted.
    monitor : Monitor
        Counts the steps and the time of its stages.

    Attributes
    ----------
    priors : dict or None
        The priors of the hyperparameters, after "auto" has been resolved.
    rows : array-like
        The rows of the fit.
    no_signal : str
        Why the model seems to have learned nothing; empty if it has.
    """

    _log: FitLog

    def __init__(self, estimator: Any, monitor: Monitor):
        self.estimator, self.monitor = estimator, monitor
        self.priors: dict[str, Any] | None = None
        self.rows: Any = np.empty((0, 1))
        self.no_signal = ""
        self._choices: dict[str, Choice] = {}
        self._ignored: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self._messages: list[str] = []
        self._advice: list[str] = []
        self._status, self._limit, self._n_iter = End.CONVERGED, "max_iter", 0
        self._rate, self._because, self._shortened = "learning_rate", "", False
        self._final: SolveSummary | None = None

    def chose(self, parameter: str, value: Any, reason: str) -> Any:
        """Report the value of a parameter that was "auto", with the reason; returns the value."""
        if is_auto(self.estimator.get_params(deep=False).get(parameter)):
            choice = Choice(value, reason)
            if str(choice) != str(self._choices.get(parameter)):
                self._log.info("%s = %s", parameter, choice)
            self._choices[parameter] = choice
        return value

    def computes_in_float64(self, reason: str) -> None:
        """Report that the fit uses double precision for every value of `dtype`."""
        self.estimator.dtype_ = self.chose("dtype", "float64", reason)
        if self.estimator.dtype == "float32":
            self.ignores("dtype", reason)

    def ignores(self, parameters: str | Iterable[str], reason: str) -> None:
        """Report one or several parameters that have no effect in this fit."""
        names = [parameters] if isinstance(parameters, str) else parameters
        self._ignored |= dict.fromkeys(names, reason)

    def reports(self, **facts: Any) -> None:
        """Add entries to the report, such as jitter, epochs and summary."""
        self._facts |= facts

    def ended(
        self,
        reason: End,
        *,
        n_iter: int,
        planned: bool = False,
        limit: str = "max_iter",
        rate: str = "learning_rate",
        because: str = "",
    ) -> None:
        """Record how training ended.

        Parameters
        ----------
        reason : End
            The `stop_reason` of a `TrainingResult` or `StepsResult`.
        n_iter : int
            Number of steps of all stages together.
        planned : bool, default=False
            Whether the steps were a schedule that was planned to run out, rather than a limit that
            stopped an unfinished optimisation.
        limit : str, default="max_iter"
            The parameter to raise if a limit stopped training.
        rate : str, default="learning_rate"
            The parameter to lower if the steps diverged.
        because : str, default=""
            A sentence for the report in place of the usual one, if `warn` has given it already.
        """
        self._n_iter, self._because = n_iter, because
        if planned and reason.of_fit is End.MAX_ITER:
            reason = End.COMPLETED
        self._status, self._limit, self._rate = reason.of_fit, limit, rate

    def solved(self, solution: Solution | SolveSummary) -> None:
        """Record the final linear solve, on which predictions are based."""
        summary = solution.summary() if isinstance(solution, Solution) else solution
        self._final = summary
        if isinstance(solution, Solution):
            self._facts["residuals"] = solution.residuals.cpu().numpy()

    def warn(self, message: str) -> None:
        """Add a sentence to the fit's one ConvergenceWarning; a second time it has no effect."""
        if message not in self._messages:
            self._messages.append(message)

    def shortened(self, message: str) -> None:
        """Warn that the time budget has made the model smaller, which then is how the fit ended."""
        self.warn(message)
        self._shortened = True

    def advise_other_model(self, message: str) -> None:
        """Warn that another model suits the table better; the report keeps the advice apart."""
        self._advice.append(message)

    def part(self) -> PartRecord:
        """What `takes` adds to the record of the fit of which this one is a part."""
        steps = [replace(step, preview=None) for step in self.monitor.steps]
        seconds = dict(self.monitor.stage_seconds)
        return PartRecord(steps, seconds, list(self._messages), list(self._advice))

    def takes(self, part: PartRecord) -> None:
        """Add the steps, the stages and the warnings of a part that was done elsewhere."""
        for step in part.steps:
            self.monitor.relay(step)
        for name, seconds in part.stage_seconds.items():
            so_far = self.monitor.stage_seconds.get(name, 0.0)
            self.monitor.stage_seconds[name] = so_far + seconds
        for message in part.messages:
            self.warn(message)
        self._advice += part.advice

    # ------------------------------------------------------------------ the report

    def _settle(self) -> tuple[End, str]:
        """The end of the fit and its reason; adds the reason to the warning if there is one."""
        if self._because and self.budget.ended is None:
            return self._status, self._because
        status = self.budget.ended or self._status
        if status.complete and self._final is not None and not self._final.status.complete:
            return self._final.status.of_fit, "the final linear solve did not reach its tolerance"
        status = End.MAX_SECONDS if self._shortened and status.complete else status
        reason = self._sentence(status)
        if self.no_signal and status.complete:
            status, reason = End.NO_SIGNAL, self.no_signal
        elif self.no_signal:
            self._messages.append(f"{self.no_signal[0].upper()}{self.no_signal[1:]}.")
        if status.fails:
            self._messages.insert(0, f"{reason}.")
        return status, reason

    def _sentence(self, end: End) -> str:
        """The end of the fit in words."""
        if end is End.CONVERGED and not self._n_iter:
            return "there was nothing to train"
        if end is End.DIVERGED and any(
            solve.status is End.BREAKDOWN for solve in self.monitor.solutions
        ):
            end = End.BREAKDOWN
        est, steps = self.estimator, f"{self._n_iter} steps"
        limit, rate = self._value_of(self._limit), self._value_of(self._rate)
        norm = self._gradient_norm()
        # Restarts and subsets may take this number of steps each.
        several = isinstance(limit, int) and self._n_iter > limit
        return end.said.format(
            steps=steps,
            kept="the best state so far is kept",
            limit=self._limit,
            value=limit,
            where=f"a stage of training, {steps} in all," if several else f"training after {steps}",
            slope="" if norm is None else f" (the norm of the gradient was {norm:.2g})",
            seconds=getattr(est, "max_seconds", None) or 0.0,
            more_noise=more_noise(est),
            smaller="" if rate is None else f": try a {self._rate} below {rate}",
        )

    def _value_of(self, parameter: str) -> Any:
        """The value that the fit has used, or None if the estimator has no such parameter."""
        value, choice = getattr(self.estimator, parameter, None), self._choices.get(parameter)
        return value if choice is None else choice.value

    def _gradient_norm(self) -> float | None:
        """The norm of the last step's gradient, if steps have one."""
        last = self.monitor.steps[-1].grad if self.monitor.steps else ()
        return float(np.linalg.norm(last)) if len(last) else None

    def report(self, n_ranks: int) -> FitReport:
        """The report of the fit, whose model is complete; `n_ranks` processes have shared it."""
        solves = [*self.monitor.solutions, *([self._final] if self._final is not None else [])]
        failed = [s for s in solves if not s.status.complete]
        status, reason = self._settle()
        # Training that succeeded in spite of unfinished solves needs no warning of them.
        if failed and not status.complete:
            last = failed[-1]
            self._messages.append(
                f"{len(failed)} linear solves did not reach their tolerance: the last ended at a "
                f"relative residual of {last.residual:.2g} after {last.epochs:.1f} epochs. "
                f"{last.remedy}"
            )
        facts = {
            "epochs": float(sum(s.epochs for s in solves)),
            "residuals": None,
            "jitter": 0.0,
            "summary": "",
            "remark": " ".join(self._advice),
            "far_targets": "",
            "start": "",
            "columns": columns_that_matter(self.estimator, self.rows),
            "failures": tuple(self.monitor.failures),
            "ranks": n_ranks,
        }
        if (norm := self._gradient_norm()) is not None:
            facts["gradient_norm"] = norm
        facts |= self._facts | self.estimator._prior_facts(self.priors)
        settings = self.estimator.get_params(deep=False)
        kernel, ends = getattr(self.estimator, "kernel_", None), {}
        if kernel is not None and self._n_iter and settings.get("optimizer", "auto") is not None:
            ends = at_bounds(kernel, default=settings.get("kernel") is None)
        said = [ends[name] for name in ends if _specified(name, settings.get("kernel"))]
        if self._messages:
            said.append(with_name(self.estimator, " ".join(self._messages)))
        return FitReport(
            status=status.value,
            stop_reason=reason,
            choices={k: v for k, v in self._choices.items() if k not in self._ignored},
            ignored={name: why for name, why in self._ignored.items() if name in settings},
            changed=changed_parameters(self.estimator),
            n_iter=self._n_iter,
            seconds=self.monitor.stage_seconds | {"total": self.budget.seconds},
            n_unconverged=len(failed),
            at_bounds=ends,
            warnings=tuple(said),
            **facts,
        )

    def warn_of(self, report: FitReport) -> None:
        """Give the warnings of the report."""
        said = list(report.warnings)
        if self._advice:
            # The sentences on this fit are one warning.
            before = said.pop() if self._messages else ""
            said.append(with_name(self.estimator, " ".join([before, *self._advice]).strip()))
        for text in said:
            warn_once(text)


def _specified(name: str, kernel: Kernel | None) -> bool:
    """Whether a trained hyperparameter has bounds that the user chose.

    Bounds of the default kernel are not worth a warning: a length scale at its upper bound is how
    the model leaves out a column. Some models add a WhiteKernel to the user's kernel, whose
    hyperparameters then have the prefix "k1__".
    """
    names = [] if kernel is None else [h.name for h in kernel.hyperparameters]
    name = name.split()[0]
    return name in names or name.removeprefix("k1__") in names
