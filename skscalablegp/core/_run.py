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
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from copy import copy, deepcopy
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state

from .._calls import present_call
from .._compat import FitEvents, callbacks_under_way
from .._devices import check_device, resolve_device
from .._end import End
from .._validation import available_memory, check_memory
from ..linalg.operators import compiler_for
from ..storage import ModelFileError
from ..workers import leading, n_workers
from ._awkward import (
    describe_offset,
    describe_targets,
)
from ._checkpoint import Checkpoint, digest_of, parts_of
from ._edge import ours, translated
from ._given import check_own_rows
from ._learned import nothing_learned, rows_without_correlation
from ._log import FitLog
from ._plan import Machine, Plan
from ._record import FitRecord
from .data import n_columns
from .training import Budget, Monitor, StopTraining, TrainingStep, present

T = TypeVar("T")

# Names of the estimators whose fits are under way, from the outermost. Fits below another see parts
# of its table, or residuals.
_UNDER_WAY: ContextVar[tuple[str, ...]] = ContextVar("fits under way", default=())
# Whether the next fit leaves its warnings to an outer fit, which reads its report.
_REPORTS_ONLY: ContextVar[bool] = ContextVar("fits that only report", default=False)
# Whether the next fit leaves the comparison with simple models to an outer fit.
_UNCHECKED: ContextVar[bool] = ContextVar("fits that an outer one evaluates", default=False)
# Up to this number of rows a fit that has ended as planned is compared with simple models even if
# this has taken all of its time: it would otherwise claim a success that nobody has seen.
_COMPARED_ROWS = 5000


@contextmanager
def reporting_only(evaluated: bool = False) -> Iterator[None]:
    """Fits in this block do not warn, because the outer fit reads their reports.

    If the outer fit evaluates them on held-out rows, they are not compared with simple models.
    """
    tokens = _REPORTS_ONLY.set(True), _UNCHECKED.set(evaluated)
    try:
        yield
    finally:
        _REPORTS_ONLY.reset(tokens[0])
        _UNCHECKED.reset(tokens[1])


class FitRun(FitRecord):
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
    random_state, generator
        A NumPy and a torch generator, both seeded by the parameter `random_state`.
    preview : callable or None
        ``preview(model, step)`` sets the fitted attributes of `model`, a copy of the estimator, to
        those at a `TrainingStep`, without changing the fit. It is called only if a callback asks
        for a model: one of scikit-learn's callbacks, or a call of ``step.model()``.
    """

    _committed = False

    def __init__(self, estimator: Any):
        check_own_rows(estimator)
        with translated(estimator):
            self.device = resolve_device(estimator.device)
            check_device(estimator, self.device)
            callbacks = _checked_callbacks(estimator.callbacks)
        monitor = Monitor(callbacks, Budget(estimator.max_seconds), int(estimator.verbose))
        super().__init__(estimator, monitor)
        self._follows, self._offset = False, 0.0
        self._events: FitEvents | None = None
        self._Y: np.ndarray | None = None
        self._table: tuple[Any, Any] | None = None
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

    @contextmanager
    def apart(self) -> Iterator[FitRun]:
        """Be a part of a fit that another process or thread makes, which commits the model."""
        self.__enter__()
        try:
            yield self
        finally:
            self._ends()
            self.monitor.close()

    def _ends(self) -> None:
        """Restore what the context has changed outside of the estimator."""
        _UNDER_WAY.reset(self._token)
        _REPORTS_ONLY.reset(self._mode)
        _UNCHECKED.reset(self._outer_check)
        torch.set_grad_enabled(self._gradients)

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> bool:
        self._ends()
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
                self._checkpoint.end(self.budget.ended is End.INTERRUPTED)
            if not self._reports_only:
                self.warn_of(self.estimator.fit_report_)
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
                f"{type(self.estimator).__name__}: interrupted before a model was available; {old}."
            )
        if isinstance(error, StopTraining):
            raise TimeoutError(
                f"{type(self.estimator).__name__}: {error} ended the fit before a model was "
                "available. Raise max_seconds, or let the callback stop later."
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
        ranks = self._ranks
        shared = ranks is not None and ranks.tasks > self._tasks
        est.fit_report_ = report = self.report(ranks.size if ranks and shared else 1)
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
            self._log.info("continues after %.2g s, from %s", found.resumed, found.path)

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
        memory, machine = self.memory_budget, Machine.on(self.device)
        if memory is None:
            known = [available_memory(device) for device in {self.device, machine.device}]
            memory = min((free for free in known if free is not None), default=None)
        seconds, compiler = self.estimator.max_seconds, compiler_for(machine.device)
        return replace(
            machine, memory=memory, cores=n_workers(), seconds=seconds, compiler=compiler
        )

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
        self._open_records()
        n = len(X) if n_rows is None else max(1, round(n_rows))
        self.estimator.n_samples_seen_ = seen + n
        if not seen:
            self.estimator._exact = None
        self.estimator.device_ = str(self.device)
        self._log.info("rows: %d, columns: %d, device: %s", len(X), n_columns(X), self.device)
        targets = y if self._Y is None else self._Y
        self.rows, self._table = X, None if seen else (X, targets)
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
        said = describe_targets(self.estimator, Y)
        if said:
            self.warn(said)
            self.reports(far_targets=said)

    def _check_offset(self) -> None:
        """Warn if the mean of the target is very unlikely under the prior."""
        if self._offset == 0:
            return
        said = describe_offset(self.estimator, self.rows, self._offset)
        if said:
            self.warn(said)

    @property
    def _is_small(self) -> bool:
        """Whether the table that the model is compared on is small enough to do so in any case."""
        return self._table is not None and len(self._table[0]) <= _COMPARED_ROWS

    def _check_learned(self) -> None:
        """Compare a model that seems to have learned nothing with simple models."""
        # Of the outermost fit, which has left the context by now.
        if self._table is not None and not _UNDER_WAY.get():
            self._messages += filter(None, [rows_without_correlation(self.estimator, self.rows)])
        trained = self.estimator.get_params(deep=False).get("optimizer", "auto") is not None
        late = self.budget.left == 0 and (self.budget.ended is not None or not self._is_small)
        stopped = self.budget.ended is End.INTERRUPTED or late
        # The inner regressor has checked itself, and the report has a sentence of its own.
        told = self._because and self.budget.ended is None
        if self._table is None or self._unchecked or not trained or stopped or told:
            return
        # The model is complete: what ends the check does not end the fit.
        apart = Budget().may_end()
        with self.stage("check of the signal"), apart, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with suppress(torch.linalg.LinAlgError, MemoryError):
                classes = getattr(self.estimator, "classes_", None)
                self.no_signal = nothing_learned(self.estimator, *self._table, classes)

    def follow(self, plan: Plan) -> None:
        """Report a plan: its choices for parameters that are "auto", and what has no effect.

        A plan that training has changed is followed again; its entries replace earlier ones.

        Raises
        ------
        MemoryError
            If the plan needs more memory than there is, before any work is done.
        """
        # Later, the work itself occupies the memory.
        for need in plan.needs if not self._follows else ():
            self.check_memory(*need)
        self._follows |= bool(plan.needs)
        for name, choice in plan.choices.items():
            self.chose(name, *choice)
        self._ignored |= plan.without_effect

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

    # ------------------------------------------------------------------ the end


def _checked_callbacks(callbacks: Any) -> list[Callable[[TrainingStep], Any]]:
    listed = [] if callbacks is None else [callbacks] if callable(callbacks) else list(callbacks)
    for callback in listed:
        if not callable(callback):
            raise TypeError(f"callbacks must be callable, got {callback!r}.")
    return listed
