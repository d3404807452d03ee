"""The context of a fit, which implements the promises of all estimators about fits.

A model's training reads top to bottom inside the context::

    with FitRun(self) as run:
        table = self._read_table(X, y, noise_variance, run)
        run.begin(table.X, table.y)
        run.chose("solver", "cholesky", "4,000 rows: a factorisation is cheaper than solves")
        run.check_memory(need, "Exact training on 4,000 rows", "use solver='cg'")
        run.preview = lambda model, step: model._finish(step.theta, ...)
        result = train(..., monitor=run.monitor)
        run.ended(result.stop_reason, n_iter=result.n_iter)
        with run.stage("final solve"):
            self._finish(result.theta, ...)
    return self
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from copy import copy, deepcopy
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import Kernel
from sklearn.utils import check_random_state

from .._calls import present_call
from .._compat import FitEvents, callbacks_under_way
from .._devices import check_float64, precise_device, resolve_device
from .._named import changed_parameters
from .._validation import available_memory, check_memory
from ..linalg.operators import compiler_for
from ..linalg.parallel import n_workers
from ..linalg.solvers import Solution, SolveSummary, Status
from ..ranks import leading
from ..storage import ModelFileError
from ._awkward import (
    assumes_normal_noise,
    columns_that_matter,
    describe_far_targets,
    far_targets,
)
from ._checkpoint import Checkpoint, digest_of, parts_of
from ._edge import more_noise, ours, translated, with_name
from ._learned import nothing_learned, rows_without_correlation
from ._log import FitLog
from ._own_rows import check_own_rows
from ._plan import Choice, Machine, Plan, is_auto
from ._report import STATUSES, FitReport, at_bounds
from ._warn import warn_once
from .data import n_columns
from .training import Budget, Monitor, StopTraining, TrainingStep, present

T = TypeVar("T")

# The status of a fit whose training was complete, but whose final linear solve was not.
_OF_SOLVES = {
    Status.MAX_EPOCHS: "max_iter",
    Status.MAX_ITER: "max_iter",
    Status.MAX_SECONDS: "max_seconds",
    Status.STAGNATED: "stagnated",
    Status.BREAKDOWN: "diverged",
}

# A fit warns if the mean of the target is this many standard deviations of the prior away from
# zero. The prior is evaluated at the first few rows.
_FAR, _FEW_ROWS = 10.0, 20

# Names of the estimators whose fits are under way, from the outermost. Fits below another see parts
# of its table, or residuals.
_UNDER_WAY: ContextVar[tuple[str, ...]] = ContextVar("fits under way", default=())
# Whether the next fit leaves its warnings to an outer fit, which reads its report.
_REPORTS_ONLY: ContextVar[bool] = ContextVar("fits that only report", default=False)
# Whether the next fit leaves the comparison with simple models to an outer fit.
_UNCHECKED: ContextVar[bool] = ContextVar("fits that are judged by an outer one", default=False)


@contextmanager
def reporting_only(judged: bool = False) -> Iterator[None]:
    """Fits in this block do not warn, because the outer fit reads their reports.

    If held-out rows of the outer fit judge them, they are not compared with simple models either.
    """
    tokens = _REPORTS_ONLY.set(True), _UNCHECKED.set(judged)
    try:
        yield
    finally:
        _REPORTS_ONLY.reset(tokens[0])
        _UNCHECKED.reset(tokens[1])


class Run:
    """The monitor and the random generators that all stages of one training share.

    Parameters
    ----------
    monitor : Monitor
    generator : torch.Generator
        For random numbers from torch.
    random_state : RandomState
        For random numbers from NumPy and scikit-learn.
    """

    def __init__(
        self, monitor: Monitor, generator: torch.Generator, random_state: np.random.RandomState
    ):
        self.monitor, self.generator, self.random_state = monitor, generator, random_state

    @property
    def restarts(self) -> np.random.RandomState:
        """Generator of additional starting points of an optimiser."""
        return self.random_state

    @property
    def budget(self) -> Budget:
        """The time that the fit may take, and what has ended it."""
        return self.monitor.budget

    def silent(self, share: str | float) -> Run:
        """A run for fits beside that of the model, with a share of the time left.

        Callbacks do not see its steps; an interrupt ends both runs.
        """
        monitor = Monitor(budget=self.budget.share(share))
        return Run(monitor, self.generator, self.random_state)

    def reports(self, **facts: Any) -> None:
        """Add entries to the report of the fit, if this run has one."""


class FitRun(Run):
    """Clock, seeds, memory, callbacks, progress, interrupts, warnings and the commit of one fit.

    If the body raises an exception of any kind, the estimator is restored to its state before the
    fit, including the model of the previous fit. Otherwise `fit_report_` and `history_` are set,
    the callbacks are notified, and at most one ConvergenceWarning says what to change. In addition,
    there is one warning in scikit-learn's words for each hyperparameter of a user's kernel that
    ended at its bound.

    Parameters
    ----------
    estimator : estimator
        The estimator that is being fitted. It has the parameters callbacks, max_seconds, verbose,
        memory_budget, device and random_state.

    Attributes
    ----------
    monitor : Monitor
        Passed to the drivers of training.
    device : torch.device
        The device that the parameter `device` stands for on this machine.
    priors : dict or None
        The priors of the hyperparameters, after "auto" has been resolved.
    random_state, generator
        A NumPy and a torch generator, both seeded by the parameter `random_state`.
    preview : callable or None
        ``preview(model, step)`` sets the fitted attributes of `model`, a copy of the estimator, to
        those at a `TrainingStep`, without changing the fit. It is called only if a callback asks
        for a model: one of scikit-learn's callbacks, or a call of ``step.model()``.
    """

    _committed = False

    def __init__(self, estimator: Any):
        self.estimator = estimator
        check_own_rows(estimator)
        with translated(estimator):
            self.device = resolve_device(estimator.device)
            callbacks = _checked_callbacks(estimator.callbacks)
        self.monitor = Monitor(callbacks, Budget(estimator.max_seconds), int(estimator.verbose))
        self.priors: dict[str, Any] | None = None
        self._follows = False
        self._choices: dict[str, Choice] = {}
        self._ignored: dict[str, str] = {}
        self._facts: dict[str, Any] = {}
        self._messages: list[str] = []
        self._advice: list[str] = []
        self._events: FitEvents | None = None
        self._status, self._limit, self._n_iter = "converged", "max_iter", 0
        self._rate = "learning_rate"
        self._because = ""
        self._final: SolveSummary | None = None
        self._offset, self._X = 0.0, np.empty((0, 1))
        self._Y: np.ndarray | None = None
        self._table: tuple[Any, Any] | None = None
        self._nothing = ""
        self._records = ExitStack()
        self._checkpoint: Checkpoint | None = None
        self._opened = False

    # ------------------------------------------------------------------ the context

    def __enter__(self) -> FitRun:
        est = self.estimator
        self._before = dict(vars(est))
        self._ranks = leading()
        self._tasks = 0 if self._ranks is None else self._ranks.tasks
        self._old_posterior = est._remembered()
        est._remember(None)
        names = (*_UNDER_WAY.get(), type(est).__name__)
        self._token = _UNDER_WAY.set(names)
        self.monitor.log = self._log = FitLog(names)
        # Fits below this one warn as usual, unless their reports are read.
        self._reports_only, self._mode = _REPORTS_ONLY.get(), _REPORTS_ONLY.set(False)
        self._unchecked, self._outer_check = _UNCHECKED.get(), _UNCHECKED.set(False)
        # Fits need gradients, also inside a user's `torch.no_grad()`, or after an interrupt inside
        # one of torch's own, which can leave it in force.
        self._gradients = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        _UNDER_WAY.reset(self._token)
        _REPORTS_ONLY.reset(self._mode)
        _UNCHECKED.reset(self._outer_check)
        torch.set_grad_enabled(self._gradients)
        try:
            return self._leave(error)
        except BaseException:
            # An exception or a signal arrived before the new model was complete.
            if not self._committed:
                self._restore()
            raise
        finally:
            self._records.close()

    def _leave(self, error: BaseException | None) -> bool:
        """Commit the new model, or restore the old one and translate the error."""
        self.monitor.close()
        if error is None:
            self._commit()
            self._committed = True
            if self._checkpoint is not None:
                self._checkpoint.end(self.budget.ended == "interrupted")
            self._warn()
            return False
        self._restore()
        if self._checkpoint is not None:
            if isinstance(error, ModelFileError):
                raise self._checkpoint.refusal(error) from error
            self._checkpoint.end(unfinished=True)
        if isinstance(error, KeyboardInterrupt):
            refitted = "n_iter_" in self._before
            old = "the model of the last fit is unchanged" if refitted else "there is no model"
            error.add_note(
                f"{type(self.estimator).__name__}: interrupted before there was a model to keep; "
                f"{old}."
            )
        if isinstance(error, StopTraining):
            raise TimeoutError(
                f"{type(self.estimator).__name__}: {error} ended the fit before there was a model "
                "to keep. Raise max_seconds, or let the callback stop later."
            ) from error
        made = ours(error, self.estimator)
        if made is not None:
            raise made from error
        return False

    def _restore(self) -> None:
        """Restore the estimator in one assignment, except for attributes of its callbacks."""
        self.estimator.__dict__ = self._before | callbacks_under_way(self.estimator)
        self.estimator._remember(self._old_posterior)

    def _commit(self) -> None:
        est = self.estimator
        est.n_iter_ = self._n_iter
        est.history_ = self.monitor.history()
        self._check_offset()
        self._check_learned()
        est.fit_report_ = report = self._report()
        total = report.seconds["total"]
        self._log.info("%s after %.2g s: %s", report.status, total, report.stop_reason)
        if self._events is not None:
            self._events.end()

    # ------------------------------------------------------------------ seeds and memory

    def _open_records(self) -> None:
        """Go on from the checkpoint of this fit, or begin one; its arguments are valid by now.

        Fits inside another one are parts of its checkpoint.
        """
        if self._opened:
            return
        self._opened, call, outer = True, present_call(), present()
        if call is None or call.estimator is not self.estimator:
            return
        if outer is not None:
            name = f"{type(self.estimator).__name__}-{digest_of(parts_of(call, inside=True))}"
            self._records.enter_context(outer[0].inside(name))
            return
        folder = self.estimator.get_params(deep=False).get("checkpoint")
        if folder is None or call.method.__name__ != "fit":
            return
        self._checkpoint = found = Checkpoint(folder, call, self.device, self.warn)
        self._records.enter_context(found.journal.kept(""))
        if found.resumed:
            self.reports(resumed=found.resumed)
            self._log.info("goes on after %.2g s, from %s", found.resumed, found.path)

    @cached_property
    def _seeds(self) -> tuple[np.random.RandomState, torch.Generator, np.random.RandomState]:
        self._open_records()
        records, given = present(), self.estimator.random_state
        if records is not None and given is None:
            random_state = records[0].random_state()
        else:
            random_state = check_random_state(given)
        before = deepcopy(random_state)
        seed = int(random_state.randint(2**31 - 1))
        return random_state, torch.Generator().manual_seed(seed), before

    @property
    def random_state(self) -> np.random.RandomState:
        """Generator of random numbers for NumPy and scikit-learn."""
        return self._seeds[0]

    @property
    def generator(self) -> torch.Generator:
        """Generator of random numbers for torch."""
        return self._seeds[1]

    @property
    def restarts(self) -> np.random.RandomState:
        """Generator of additional starting points: those of scikit-learn for the same seed."""
        return self._seeds[2]

    @property
    def memory_budget(self) -> float | None:
        """The limit in bytes; None stands for the free memory of the machine."""
        return self.estimator._budget()

    @cached_property
    def machine(self) -> Machine:
        """The device, memory, cores and seconds from which a plan is made."""
        self._check_device()
        memory, there = self.memory_budget, precise_device(self.device)
        if memory is None:
            known = [available_memory(device) for device in {self.device, there}]
            memory = min((free for free in known if free is not None), default=None)
        seconds, compiler = self.estimator.max_seconds, compiler_for(there)
        products_on = None if there == self.device else self.device
        return Machine(there, memory, n_workers(), seconds, compiler, products_on)

    def _check_device(self) -> None:
        """Refuse a device without the precision that the estimator needs."""
        estimator = self.estimator
        check_float64(self.device, type(estimator).__name__, estimator._needs_float64)

    def check_memory(self, need_bytes: float, what: str, remedy: str) -> None:
        """Raise a MemoryError before work that does not fit into memory on the fit's device.

        See `check_memory` in ``_validation`` for the parameters.
        """
        check_memory(need_bytes, what, remedy, self.memory_budget, device=self.device)

    # ------------------------------------------------------------------ the beginning

    def begin(self, X: Any, y: Any, seen: int = 0, n_rows: float | None = None) -> None:
        """Notify scikit-learn's callbacks that a fit on these validated arrays begins.

        Sets ``n_samples_seen_`` to the number of rows plus the number `seen` by earlier calls, and
        ``device_``, which previews and final solves read. `n_rows` is the number of rows before
        they were merged, or the sum of their weights, which is rounded.
        """
        self._check_device()
        self._open_records()
        n = len(X) if n_rows is None else max(1, round(n_rows))
        self.estimator.n_samples_seen_ = seen + n
        if not seen:
            self.estimator._exact = None
        self.estimator.device_ = str(self.device)
        self._log.info("rows: %d, columns: %d, device: %s", len(X), n_columns(X), self.device)
        targets = y if self._Y is None else self._Y
        self._X, self._table = X, None if seen else (X, targets)
        if len(_UNDER_WAY.get()) == 1:
            self._check_targets(targets)
        self._events = FitEvents(self.estimator, X, y)
        if self.estimator.get_params(deep=False).get("optimizer") is None:
            self.ignores("priors", "optimizer=None keeps the hyperparameters")
        self.monitor.callbacks = [*self.monitor.callbacks, self._tell]

    @property
    def preview(self) -> Callable[[TrainingStep], Any] | None:
        return self.monitor.preview

    @preview.setter
    def preview(self, show: Callable[[Any, TrainingStep], Any] | None) -> None:
        self.monitor.preview = None if show is None else partial(self._model_at, show)

    def _tell(self, step: TrainingStep) -> bool:
        assert self._events is not None  # `begin` has opened them before it adds this callback.
        return self._events.step(None if step.preview is None else lambda: self._attributes(step))

    def _model_at(self, show: Callable[[Any, TrainingStep], None], step: TrainingStep) -> Any:
        """A copy of the estimator with the fitted attributes of a step."""
        model = copy(self.estimator)
        # These attributes, if present, belong to the previous fit.
        for name in ("history_", "fit_report_"):
            vars(model).pop(name, None)
        state = self.generator.get_state()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                show(model, step)
            finally:
                self.generator.set_state(state)
        model.n_iter_ = step.iteration
        return model

    def _attributes(self, step: TrainingStep) -> dict[str, Any] | None:
        model = step.model()
        if model is None:
            return None
        parameters = model.get_params(deep=False)
        return {name: value for name, value in vars(model).items() if name not in parameters}

    def normalizes(self, Y: np.ndarray, additive: bool = True, scaled: bool = False) -> bool:
        """Whether to normalise a target; resolves and reports ``normalize_y="auto"``.

        Parameters
        ----------
        Y : ndarray of shape (n,) or (n, t)
            The target in its own units. If it is not normalised, and its mean is far from zero in
            units of the prior's standard deviation, the warning of the fit says so.
        additive : bool, default=True
            Whether noise is added to the latent function. If not, as for counts, the target has
            units of its own, and "auto" does not normalise it.
        scaled : bool, default=False
            Whether the model divides the target by its size in any case. A kernel is then not a
            prior for y in its own units, and "auto" normalises under every kernel.
        """
        self._Y = Y
        given = self.estimator.normalize_y
        if given == "auto":
            own = self.estimator.kernel is not None and not scaled
            why = "no kernel was given" if additive else "the likelihood is in the units of y"
            given = self.chose(
                "normalize_y",
                additive and not own,
                "a given kernel is a prior for y in its own units" if own else why,
            )
        if additive and not (given or scaled):
            self._offset = float(np.abs(np.mean(Y, axis=0)).max())
        return bool(given)

    def _check_targets(self, Y: np.ndarray) -> None:
        """Warn of targets that no normal likelihood survives."""
        if not assumes_normal_noise(self.estimator):
            return
        columns = np.reshape(np.asarray(Y, dtype=float), (len(Y), -1)).T
        said = [
            describe_far_targets(
                y, rows, "y" if len(columns) == 1 else f"Column {k} of y", self.estimator
            )
            for k, y in enumerate(columns)
            if len(rows := far_targets(y))
        ]
        if said:
            self.warn(" ".join(said))
            self.reports(far_targets=" ".join(said))

    def _check_offset(self) -> None:
        """Warn if the mean of the target is very unlikely under the prior."""
        if self._offset == 0:
            return
        rows, kernel = self._X[:_FEW_ROWS], self.estimator.kernel_
        network = self.estimator.get_params(deep=False).get("feature_extractor")
        # `diag` would include white noise. A network's features have other columns than the rows.
        diagonal = np.diag(kernel(rows, rows)) if network is None else kernel.diag(rows)
        prior = float(np.sqrt(np.mean(diagonal)))
        if self._offset > _FAR * prior:
            self.warn(
                f"The mean of y, {self._offset:.3g}, is far from 0, where the prior of the kernel "
                f"expects it with a standard deviation of {prior:.3g}. Far from the training rows "
                "predictions fall back to 0. Use normalize_y=True."
            )

    def _check_learned(self) -> None:
        """Compare a model that seems to have learned nothing with simple models."""
        # Of the outermost fit, which has left the context by now.
        if self._table is not None and not _UNDER_WAY.get():
            self._messages += filter(None, [rows_without_correlation(self.estimator, self._X)])
        trained = self.estimator.get_params(deep=False).get("optimizer", "auto") is not None
        stopped = self.budget.ended == "interrupted" or self.budget.left == 0
        # A regressor below has checked itself, and the report has a sentence of its own.
        told = self._because and self.budget.ended is None
        if self._table is None or self._unchecked or not trained or stopped or told:
            return
        # The model is complete: what ends the check does not end the fit.
        apart = Budget().may_end()
        with self.stage("check of the signal"), apart, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(torch.linalg.LinAlgError, MemoryError):
                classes = getattr(self.estimator, "classes_", None)
                self._nothing = nothing_learned(self.estimator, *self._table, classes)

    def chose(self, parameter: str, value: Any, reason: str) -> Any:
        """Report the value of a parameter that was "auto", with the reason; returns the value."""
        if is_auto(self.estimator.get_params(deep=False).get(parameter)):
            choice = Choice(value, reason)
            if str(choice) != str(self._choices.get(parameter)):
                self._log.info("%s = %s", parameter, choice)
            self._choices[parameter] = choice
        return value

    def follow(self, plan: Plan) -> None:
        """Report a plan: its choices for parameters that are "auto", and what has no effect.

        A plan that training has changed is followed again; its entries replace earlier ones.

        Raises
        ------
        MemoryError
            If the plan needs more memory than there is, before any work is done.
        """
        # Later, the work itself has taken the memory.
        for need in plan.needs if not self._follows else ():
            self.check_memory(*need)
        self._follows |= bool(plan.needs)
        for name, choice in plan.choices.items():
            self.chose(name, *choice)
        self._ignored |= plan.without_effect

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

    # ------------------------------------------------------------------ progress

    @property
    def stopped(self) -> bool:
        """Whether a budget, a callback or an interrupt has ended training; no stage may follow."""
        return self.budget.ended is not None

    @contextmanager
    def stage(self, name: str, optional: bool = False) -> Iterator[None]:
        """Measure the time of a part of the fit other than training, such as a calibration.

        Parameters
        ----------
        name : str
            Name of the part in the report.
        optional : bool, default=False
            Whether the model is complete without this part. An interrupt, or a spent time budget
            that `Budget.check` notices, then ends only this part.
        """
        self.monitor.begin(name)
        try:
            with self.budget.may_end() if optional else nullcontext():
                yield
        finally:
            self.monitor.close()

    def finish(self, name: str, part: Callable[[], T]) -> T:
        """Run the final part of a fit, without which there is no model, as a stage of its own.

        It may use all of the remaining time, including the reserved time. `Budget.completed` says
        what interrupts do.
        """
        self.budget.reserve(0.0)
        with self.stage(name):
            return self.budget.completed(part)

    def ended(
        self,
        reason: str,
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
        reason : str
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
        if reason in ("max_iter", "max_epochs"):
            reason = "completed" if planned else "max_iter"
        self._status, self._limit, self._rate = reason, limit, rate

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

    def advise_other_model(self, message: str) -> None:
        """Warn that another model suits the table better; the report keeps the advice apart."""
        self._advice.append(message)

    # ------------------------------------------------------------------ the end

    def _settle(self) -> tuple[str, str]:
        """Final status and its reason; adds the reason to the warning if there is one."""
        if self._because and self.budget.ended is None:
            return self._status, self._because
        status = self.budget.ended or self._status
        if status in ("converged", "completed") and self._final is not None:
            status = _OF_SOLVES.get(self._final.status, status)
            if status not in ("converged", "completed"):
                return status, "the final linear solve did not reach its tolerance"
        reason = self._sentence(status)
        if self._nothing and status in ("converged", "completed"):
            status, reason = "no_signal", self._nothing
        elif self._nothing:
            self._messages.append(f"{self._nothing[0].upper()}{self._nothing[1:]}.")
        if status not in ("converged", "completed", "callback"):
            self._messages.insert(0, f"{reason}.")
        return status, reason

    def _sentence(self, status: str) -> str:
        est, steps, limit = self.estimator, f"{self._n_iter} steps", self._limit
        chosen = self._choices.get(limit)
        kept = "the best state so far is kept"
        if status == "converged":
            trained = f"training converged after {steps}"
            return trained if self._n_iter else "there was nothing to train"
        if status == "completed":
            return f"the planned {steps} are done"
        if status == "max_iter":
            norm = self._gradient_norm()
            slope = "" if norm is None else f" (the norm of the gradient was {norm:.2g})"
            value = chosen.value if chosen else getattr(est, limit)
            # Restarts and subsets may take this number of steps each.
            several = isinstance(value, int) and self._n_iter > value
            where = (
                f"a stage of training, {steps} in all," if several else f"training after {steps}"
            )
            return (
                f"{limit}={value!r} ended {where} before it had converged{slope}, {kept}: "
                f"raise {limit}"
            )
        if status == "max_seconds":
            return (
                f"the time budget max_seconds={est.max_seconds:g} ended the fit after {steps}, "
                f"{kept}: raise max_seconds"
            )
        if status == "callback":
            return f"a callback ended training after {steps}, {kept}"
        if status == "interrupted":
            return f"the fit was interrupted after {steps}, {kept}: fit again to complete it"
        if status == "stagnated":
            return (
                f"training stagnated after {steps} although the gradient is not small, {kept}: no "
                f"step along the gradient raises the objective. Use "
                f"dtype='float64', {more_noise(est)}, and look for columns or a target of extreme "
                "size"
            )
        if any(s.status is Status.BREAKDOWN for s in self.monitor.solutions):
            return (
                f"training stopped after {steps} because a linear solve broke down, {kept}: "
                f"{more_noise(est)}, or use dtype='float64'"
            )
        rate = getattr(est, self._rate, None)
        if isinstance(rate, str) and self._rate in self._choices:
            rate = self._choices[self._rate].value
        smaller = "" if rate is None else f": try a {self._rate} below {rate}"
        return f"training diverged after {steps}, {kept}{smaller}"

    def _gradient_norm(self) -> float | None:
        """The norm of the last step's gradient, if steps have one."""
        last = self.monitor.steps[-1].grad if self.monitor.steps else ()
        return float(np.linalg.norm(last)) if len(last) else None

    def _report(self) -> FitReport:
        solves = [*self.monitor.solutions, *([self._final] if self._final is not None else [])]
        failed = [s for s in solves if s.status is not Status.CONVERGED]
        status, reason = self._settle()
        # Training that succeeded in spite of unfinished solves needs no warning of them.
        if failed and status not in ("converged", "completed"):
            last = failed[-1]
            self._messages.append(
                f"{len(failed)} linear solves did not reach their tolerance: the last ended at a "
                f"relative residual of {last.residual:.2g} after {last.epochs:.1f} epochs. "
                f"{last.remedy}"
            )
        assert status in STATUSES, status
        facts = {
            "epochs": float(sum(s.epochs for s in solves)),
            "residuals": None,
            "jitter": 0.0,
            "summary": "",
            "remark": " ".join(self._advice),
            "far_targets": "",
            "start": "",
            "columns": columns_that_matter(self.estimator, self._X),
            "failures": tuple(self.monitor.failures),
            "ranks": 1,
        }
        if self._ranks is not None and self._ranks.tasks > self._tasks:
            facts["ranks"] = self._ranks.size
        if (norm := self._gradient_norm()) is not None:
            facts["gradient_norm"] = norm
        facts |= self._facts | self.estimator.prior_facts(self.priors)
        settings = self.estimator.get_params(deep=False)
        kernel, ends = getattr(self.estimator, "kernel_", None), {}
        if kernel is not None and self._n_iter and settings.get("optimizer", "auto") is not None:
            ends = at_bounds(kernel, default=settings.get("kernel") is None)
        said = [ends[name] for name in ends if _specified(name, settings.get("kernel"))]
        if self._messages:
            said.append(with_name(self.estimator, " ".join(self._messages)))
        return FitReport(
            status=status,
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

    def _warn(self) -> None:
        if self._reports_only:
            return
        said = list(self.estimator.fit_report_.warnings)
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


def _checked_callbacks(callbacks: Any) -> list[Callable[[TrainingStep], Any]]:
    listed = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
    for callback in listed:
        if not callable(callback):
            raise TypeError(f"callbacks must be callable, got {callback!r}.")
    return listed
