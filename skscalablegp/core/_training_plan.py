"""The plan of training in stages: what "auto" means for the optimiser and its steps."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from .._end import End
from ._plan import Choice, Plan, ignore, is_auto, resolve
from .training import LBFGS, NaturalGradient, Optimizer, QuasiNewton, resolve_optimizer

# Maximum number of steps of an exact fit, which usually converges earlier.
EXACT_STEPS = 100
# Maximum number of steps from the optimum of a subset, whose curvature is known.
REFINING_STEPS = 25
# Budget of solver epochs for these steps: if systems are hard to solve, there are fewer steps.
_REFINING_EPOCHS = 600
# Maximum number of natural steps without an initialisation, and after one.
_NATURAL_STEPS = {False: 200, True: 50}
# Number of Adam steps without an initialisation (Lin et al. 2024), and after one.
_ADAM_STEPS = 100
_REFINING_ADAM_STEPS = 30
# Adam steps are smaller above this number of rows (Lin et al. 2024, appendix B).
_LARGE_ROWS = 50_000
# Relative tolerance on all rows. On small tables steps are cheap, so that the optimum under a given
# kernel is found as precisely as by scikit-learn, with which users compare it.
_TOL, _SMALL_TOL, _SMALL_ROWS = 1e-6, 1e-11, 1_000
# Up to this number of rows finding the best of many local optima matters more than time.
_TWICE_ROWS, _SCIPYS_TOL = 500, 2.2e-9
# A predicted gain below this, in nats per row, is not worth another step.
GAIN_PER_ROW = 1e-4
# Settings of training of all models that train in stages.
_OF_TRAINING = ("learning_rate", "max_iter", "n_iter_no_change", "n_restarts_optimizer")


@dataclass(frozen=True)
class Subsets:
    """The exact fits of a few rows with which training begins.

    Attributes
    ----------
    size : int
        Number of rows in the first one.
    largest : int
        Number of rows in the last of nested random subsets.
    count : int
        1 for nested random subsets, more for neighbourhoods whose results are averaged.
    only : bool
        Whether they alone give the hyperparameters. The number of steps is then limited for each.
    """

    size: int
    largest: int = 0
    count: int = 1
    only: bool = False

    @classmethod
    def of(cls, size: int | None, largest: int = 0) -> Subsets | None:
        """Nested random subsets that begin with so many rows; None if that is None."""
        return None if size is None else cls(size, largest)


@dataclass(frozen=True)
class StageSettings:
    """The settings of training, from which `plan_training` makes a plan.

    Attributes
    ----------
    optimizer : "auto", str, object or callable
    max_iter : "auto" or int
        Maximum number of steps on all rows.
    learning_rate : "auto" or float
    n_restarts : int
    n_iter_no_change : int or None
    max_epochs : "auto", float or None
        Budget of solver epochs for training on all rows. "auto" is 600 if a subset gives the
        curvature and `max_iter` is also "auto". None sets no limit.
    subsets : Subsets or None
        None begins with all rows.
    precision : {"given", "adapted", "factorised"}
        "adapted" moves an ill-conditioned problem from float32 to float64, and "factorised" trains
        it with Cholesky factorisations, too.
    as_scikit_learn : bool
        Whether a small table is also trained with scikit-learn's steps from every start.
    exact_steps : int
        The meaning of `max_iter="auto"` for quasi-Newton steps without an initialisation.
    gain_per_row : float
        A predicted gain below this, in nats per row, is not worth another step.
    natural : bool
        Whether the Fisher information of random rows is available. Without exact values or a
        curvature, "auto" then chooses natural steps instead of Adam.
    """

    optimizer: Any
    max_iter: Any = "auto"
    learning_rate: Any = "auto"
    n_restarts: int = 0
    n_iter_no_change: int | None = 5
    max_epochs: Any = "auto"
    subsets: Subsets | None = None
    precision: str = "given"
    as_scikit_learn: bool = False
    exact_steps: int = EXACT_STEPS
    gain_per_row: float = GAIN_PER_ROW
    natural: bool = False

    @property
    def follows_scikit_learn(self) -> bool:
        """Whether the optimiser is the user's callable, or scikit-learn's on the user's kernel."""
        named = isinstance(self.optimizer, str) and self.optimizer == "fmin_l_bfgs_b"
        return callable(self.optimizer) or (named and self.as_scikit_learn)

    @property
    def has_curvature(self) -> bool:
        """Whether subsets give the curvature of the likelihood, and not only a start."""
        return self.subsets is not None and self.subsets.count == 1

    @property
    def subsets_only(self) -> bool:
        """Whether subsets alone give the hyperparameters."""
        return self.subsets is not None and self.subsets.only

    def twice(self, n: int) -> bool:
        """Whether two optimisers run from every start, of which the better result counts."""
        named = isinstance(self.optimizer, str) and self.optimizer in ("auto", "fmin_l_bfgs_b")
        return named and self.as_scikit_learn and n <= _TWICE_ROWS

    @property
    def most_steps(self) -> int | None:
        """The user's limit of the number of steps; None without one."""
        return None if is_auto(self.max_iter) else self.max_iter

    @classmethod
    def of(cls, estimator: Any, n_restarts: int = 0, **more: Any) -> StageSettings:
        """The settings that the parameters of an estimator give."""
        return cls(
            optimizer=estimator.optimizer,
            max_iter=estimator.max_iter,
            learning_rate=estimator.learning_rate,
            n_restarts=n_restarts,
            n_iter_no_change=estimator.n_iter_no_change,
            **more,
        )


@dataclass(frozen=True, kw_only=True)
class TrainingPlan(Plan):
    """How hyperparameters are trained on all rows.

    Attributes
    ----------
    optimizer, max_iter, learning_rate, subset_size, training_max_epochs : Choice
        Of the parameters. The largest number of steps is that of each subset if these alone are
        trained, and 0 stands for "auto" then.
    methods : tuple of Optimizer
        The optimisers that run from every start, of which the best result counts.
    schedule : tuple of End
        The reasons to stop that are no limits of an unfinished optimisation, but planned.
    settings : StageSettings
    exact : bool
        Whether values and gradients on all rows are exact.
    n : int
        Number of rows.
    """

    optimizer: Choice
    max_iter: Choice
    learning_rate: Choice
    subset_size: Choice
    training_max_epochs: Choice
    methods: tuple[Optimizer, ...]
    schedule: tuple[End, ...]
    settings: StageSettings
    exact: bool
    n: int

    def factorised(self) -> TrainingPlan:
        """The plan with exact gradients, after subsets have shown that estimates would fail."""
        return self if self.exact else plan_training(self.settings, True, self.n)


def plan_training(settings: StageSettings, exact: bool, n: int) -> TrainingPlan:
    """Resolve the settings of training for n rows, whose gradients are exact or estimates.

    Raises
    ------
    ValueError
        For an unknown optimiser, or one that needs exact values if there are none.
    """
    given, subsets, rows = settings, settings.subsets, f"{n:,} rows"
    method = _method(settings, exact, n)
    ignored = _without_effect(settings, method, exact)
    if settings.subsets_only:
        settings = replace(settings, optimizer="auto", learning_rate="auto")
        method = _method(settings, exact, n)
    twice = exact and settings.twice(n)
    why = "no subset gives a curvature, and gradients are estimates"
    if exact or settings.has_curvature:
        why = "values and gradients are exact" if exact else "a subset gives the curvature"
    if twice:
        why += "; with few rows, scikit-learn's optimiser also runs, and the better optimum is kept"
    name = "adam" if method.patient else "natural" if method.redraws else "bfgs"
    named = isinstance(settings.optimizer, str) and settings.optimizer in ("auto", name)
    return TrainingPlan(
        optimizer=Choice(name, why) if named else Choice(settings.optimizer, "as given"),
        max_iter=_steps(settings, method),
        learning_rate=resolve(settings.learning_rate, adam_rate(n), rows),
        subset_size=_subset_size(subsets, rows),
        training_max_epochs=_epochs(settings, exact),
        methods=(method, LBFGS(_SCIPYS_TOL, scaled=False)) if twice else (method,),
        schedule=_schedule(settings, method),
        settings=given,
        exact=exact,
        n=n,
        ignored=ignored,
    )


def plan_stages(
    settings: StageSettings, exact: bool, n: int, n_params: int = 1, unused: tuple[str, ...] = ()
) -> Plan:
    """The `TrainingPlan`, or another one where no hyperparameter is trained.

    Parameters
    ----------
    settings : StageSettings
    exact : bool
        Whether values and gradients on all rows are exact.
    n : int
        Number of rows.
    n_params : int
        Number of free hyperparameters.
    unused : tuple of str
        Parameters that have no effect if nothing is trained, beside those of all models.
    """
    if settings.optimizer is not None and n_params > 0:
        return plan_training(settings, exact, n)
    why, names = "optimizer=None keeps the hyperparameters", (*_OF_TRAINING, *unused)
    if n_params == 0:
        why, names = "all hyperparameters are fixed", ("optimizer", *names)
    return Plan(ignored=ignore(*names, because=why))


def _method(settings: StageSettings, exact: bool, n: int) -> Optimizer:
    """The optimiser of the stage on all rows."""
    choice, gain = settings.optimizer, max(0.5, settings.gain_per_row * n)
    if is_auto(choice):
        # Without values BFGS needs an initial curvature; natural steps compute their own.
        choice = "natural" if settings.natural else "adam"
        if exact or settings.has_curvature:
            if settings.as_scikit_learn and n <= _SMALL_ROWS:
                # The Fisher information has fewer digits than such a comparison.
                return QuasiNewton(_SMALL_TOL, information_rows=0)
            return QuasiNewton(_TOL, gain_tol=gain)
    if settings.natural and isinstance(choice, str) and choice == "natural":
        return NaturalGradient(gain)
    rate = adam_rate(n) if is_auto(settings.learning_rate) else settings.learning_rate
    optimizer = resolve_optimizer(choice, rate, ("auto",), informed=settings.natural)
    own = getattr(optimizer, "learning_rate", settings.learning_rate)
    if settings.learning_rate not in ("auto", own):
        raise ValueError(
            f"learning_rate={settings.learning_rate!r} contradicts optimizer={choice!r}, which has "
            f"learning_rate={own!r}: use learning_rate='auto', or optimizer='adam'."
        )
    if optimizer.exact_only and not exact:
        raise ValueError(
            f"optimizer={settings.optimizer!r} needs exact values and gradients, which this fit "
            "does not have: use optimizer='adam'."
        )
    return optimizer


def adam_rate(n: int) -> float:
    """The learning rate of "auto" for n rows."""
    return 0.1 if n <= _LARGE_ROWS else 0.03


def _default_steps(settings: StageSettings, method: Optimizer) -> int:
    initialised = settings.subsets is not None
    if method.patient:
        return _REFINING_ADAM_STEPS if initialised else _ADAM_STEPS
    if method.redraws:
        return _NATURAL_STEPS[initialised]
    return REFINING_STEPS if initialised else settings.exact_steps


def _steps(settings: StageSettings, method: Optimizer) -> Choice:
    subsets, steps = settings.subsets, _default_steps(settings, method)
    why = "there is no start from a subset"
    if subsets is not None:
        why = "a subset gives the start"
        if subsets.only:
            steps, why = 0, "subsets give the hyperparameters, and leave-one-out errors their scale"
    return resolve(settings.max_iter, steps, why)


def _subset_size(subsets: Subsets | None, rows: str) -> Choice:
    if subsets is None:
        return Choice(None, f"{rows}: a start on a subset would save no time")
    around = "" if subsets.count == 1 else f" of {subsets.count} neighbourhoods"
    return Choice(subsets.size, f"{rows}: an exact start{around} saves time")


def _epochs(settings: StageSettings, exact: bool) -> Choice:
    """Budget of solver epochs for training on all rows."""
    hard = not exact and settings.has_curvature and is_auto(settings.max_iter)
    limit = _REFINING_EPOCHS if hard else None
    why = "hard systems get fewer steps" if limit else "max_iter limits training"
    return resolve(settings.max_epochs, limit, why)


def _schedule(settings: StageSettings, method: Optimizer) -> tuple[End, ...]:
    enough = settings.most_steps is None or settings.most_steps >= _default_steps(settings, method)
    if settings.subsets_only:
        return (End.MAX_ITER,) if enough else ()
    schedule = (End.MAX_EPOCHS,) if is_auto(settings.max_epochs) else ()
    started = settings.subsets is not None or method.patient
    return (End.MAX_ITER, *schedule) if enough and started and not method.redraws else schedule


def _without_effect(settings: StageSettings, method: Optimizer, exact: bool) -> dict[str, str]:
    ignored = {}
    if not method.patient:
        ignored["learning_rate"] = "only Adam has a learning rate"
        ignored["n_iter_no_change"] = "only Adam stops when the iterates hardly move"
    elif not isinstance(settings.optimizer, str):
        ignored["learning_rate"] = "the optimizer object has its own"
    if callable(settings.optimizer):
        ignored["max_iter"] = "a callable decides when to stop"
    if settings.subsets_only and not is_auto(settings.optimizer):
        why = "subsets are trained with quasi-Newton steps"
        ignored |= ignore("optimizer", "learning_rate", because=why)
    if exact or settings.subsets_only:
        ignored["training_max_epochs"] = "exact gradients need no solver epochs"
    else:
        ignored["n_restarts_optimizer"] = "values are not exact: starts cannot be compared"
    return ignored
