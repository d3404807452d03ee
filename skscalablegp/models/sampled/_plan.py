"""Plans of sampled models: what "auto" stands for, from parameters and sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ...core import LARGEST_FEATURE_SIGNAL, Choice, MemoryNeed, Plan, ignore, is_auto, resolve
from ...core.likelihoods import Likelihood

# Up to this number of functions full-batch linear algebra is cheaper than steps.
EXACT_FEATURES = 2048
# Multiplications of full batches that "auto" accepts. They take some seconds.
_EXACT_WORK = 5e10
# Above this number of rows there are as many random features as in the paper.
_SMALL_ROWS = 2_000
# From this number of rows on there are more steps and more support rows.
_MANY_ROWS = 20_000
# Up to this number of rows the default basis is kernel functions at pivots, whose choice may take
# this many multiplications. Fits by many Newton steps have lower limits.
_PIVOT_ROWS, _PIVOT_WORK = 12_000, 2.5e10
# If the work allows more than this share of the rows as points, all rows are points. Where a few
# rows are none, the functions of points near them fit what these rows have of their own, and
# leave-one-out predictions of such points, which keep their functions, are far from the targets.
_MOST_POINTS = 0.75
# On drawn tables of 3,000 rows Newton steps take 1 to 2 s of one core, also with two positive rows,
# and have the log loss of stochastic steps, which take minutes.
_NEWTON_ROWS, _NEWTON_PIVOTS = 5_000, 1024
# Newton steps of full batches under a likelihood that is not Gaussian.
_NEWTON_STEPS = 100
# Steps use all functions at their rows if these are at most so many times as many values as a
# draw takes, so many values, and so many rows.
_WHOLE_WORK, _WHOLE_NUMBERS, _WHOLE_ROWS = 4, 2**26, 2_000
# Learning rates for "auto".
_RATES = {"preconditioned": 1.0, "adagrad": 0.1}
_START_ROWS = 1000
# From this number of rows on, some are held out to choose the scale of variances.
_HELD_FROM = 2_000
# Smallest number of these held-out rows, and their smallest share of the table.
_HELD, _HELD_SHARE = 200, 0.1
# The steps of one round that reduces a dictionary, and the largest dictionary without rounds.
_ROUND_STEPS = 40
EXACT_DICTIONARY = 2048
# Largest dictionary for "auto".
_DICTIONARY = 10_000

# Parameters that only steps use, and those that only the first fit of several uses.
_OF_STEPS = (
    "n_dense",
    "batch_size",
    "component_batch_size",
    "control_variate",
    "control_variate_rank",
    "variational_optimizer",
    "variational_learning_rate",
    "decay",
    "learning_rate",
    "freeze",
    "n_iter_no_change",
)
_OF_THE_FIRST = (
    "kernel",
    "n_components",
    "basis",
    "n_dense",
    "subset_size",
    "n_restarts_optimizer",
    "normalize_y",
    "standardize",
)


@dataclass(frozen=True)
class TableSize:
    """n rows with t targets, and the number of points of a kernel basis if they are given."""

    n: int
    t: int
    points: int | None = None


@dataclass(frozen=True, kw_only=True)
class StartPlan(Plan):
    """Settings of the exact start.

    Attributes
    ----------
    kernel : Kernel or None
        The user's kernel.
    rows : int
    trains : bool
        Whether hyperparameters are trained.
    n_restarts : int
    compares_smooth : bool
        Whether a squared exponential is compared with the default kernel. Steps converge far better
        with the noise estimate of a kernel that suits the data.
    largest_signal : float or None
        Bound of the signal variance of the default kernel, in units of the target's mean square.
    every_row : bool
        Whether kernel functions at as many rows as there are may follow, which represent functions
        without noise.
    """

    kernel: Any
    rows: int
    trains: bool
    n_restarts: int
    compares_smooth: bool
    largest_signal: float | None
    every_row: bool = False


@dataclass(frozen=True, kw_only=True)
class StepPlan(Plan):
    """Settings of stochastic steps.

    Attributes
    ----------
    dual : bool
        Whether the functions are those of a kernel at all rows, with one weight for each.
    batch_size, n_steps : int
        Number of rows in a step, and of steps.
    decay : float
        Fraction of the learning rates that remains at the last step.
    adaptive : bool
        Whether the optimiser is AdaGrad, rather than gradient descent with a preconditioner.
    control_variate : {"regression", "squares"} or None
    by_support : bool
        Whether predictive variances are those given the support rows.
    calibrates : bool
        Whether rows are held out for the scale of variances.
    whole : bool
        Whether steps use all functions at their rows, and solve for the dual weights of these.
    theta_rate, freeze : float
        Learning rate of the hyperparameters, 0 if they stay at those of the exact start, and the
        share of the steps before they move.
    n_iter_no_change : int or None
    """

    n_dense: Choice
    component_batch_size: Choice
    control_variate_rank: Choice
    variational_learning_rate: Choice
    dtype: Choice
    batch_size: int
    n_steps: int
    dual: bool = False
    decay: float = 0.1
    adaptive: bool = False
    control_variate: str | None = "regression"
    by_support: bool = False
    calibrates: bool = False
    whole: bool = False
    theta_rate: float = 0.0
    freeze: float = 0.0
    n_iter_no_change: int | None = None

    @property
    def preconditioned(self) -> bool:
        """Whether steps have a preconditioner, and means start at the support rows' posterior."""
        return self.dual or not self.adaptive

    @property
    def torch_dtype(self) -> torch.dtype:
        return getattr(torch, self.dtype.value)


@dataclass(frozen=True, kw_only=True)
class SampledPlan(Plan):
    """How one fit is carried out.

    Attributes
    ----------
    functions : {"fourier", "pivots", "points"}
        Random features, kernel functions at rows that are chosen, or at given points.
    n_drawn : int
        Number of functions in one draw of steps.
    planned : bool
        Whether the number of steps is a schedule to be completed, rather than a limit.
    start : StartPlan
    steps : StepPlan or None
        None for full batches.
    """

    functions: str
    n_drawn: int
    n_components: Choice
    basis: Choice
    inference: Choice
    max_iter: Choice
    planned: bool
    start: StartPlan
    steps: StepPlan | None

    def summary(self, m: int) -> str:
        """A line of the report on the final number of functions, m."""
        steps = self.steps
        if steps is None:
            return f"full batches, {m} basis functions, full covariance of their weights"
        columns = "" if steps.dual else f", {steps.n_dense.value} dense columns"
        return (
            f"at most {steps.n_steps} steps of {steps.batch_size} rows and "
            f"2 x {steps.component_batch_size.value} of {m} functions{columns}"
        )


@dataclass(frozen=True, kw_only=True)
class RelevancePlan(Plan):
    """How a relevance vector machine is fitted.

    Attributes
    ----------
    most : int
        Largest number of functions that full batches train.
    rounds : StepPlan or None
        None for dictionaries that are not larger.
    """

    n_components: Choice
    most: int
    start: StartPlan
    rounds: StepPlan | None


def _plan_start(
    params: Any, kernel: Any, steps: bool, finite: bool, every_row: bool = False
) -> StartPlan:
    """The plan of the exact start; `steps` may follow, for a `finite` number of features."""
    size, untrained = params.subset_size, params.optimizer is None
    why = "optimizer=None keeps the kernel's hyperparameters"
    return StartPlan(
        kernel=kernel,
        rows=_START_ROWS if size is None else size,
        trains=not untrained and size is not None,
        n_restarts=params.n_restarts_optimizer,
        compares_smooth=steps,
        # The error of random features is proportional to the signal's variance.
        largest_signal=LARGEST_FEATURE_SIGNAL if finite else None,
        every_row=every_row,
        ignored=ignore("n_restarts_optimizer", because=why) if untrained else {},
    )


def pivot_limit(params: Any, likelihood: Likelihood, n: int) -> int:
    """Largest number of kernel functions in the default basis; 0 for another basis."""
    auto = all(map(is_auto, (params.basis, params.n_components, params.n_dense)))
    rows = _PIVOT_ROWS if likelihood.conjugate else _NEWTON_ROWS
    if not (auto and params.inference != "stochastic" and n <= rows):
        return 0
    most = min(n, int((_PIVOT_WORK / max(n, 1)) ** 0.5))
    most = n if most > _MOST_POINTS * n else most
    return most if likelihood.conjugate else min(most, _NEWTON_PIVOTS)


def plan(
    params: Any,
    kernel: Any,
    size: TableSize,
    likelihood: Likelihood,
    past: Any = None,
    grows: bool = False,
) -> SampledPlan:
    """The plan of a fit.

    Parameters
    ----------
    params : QSGPRegressor or QSGPClassifier
    kernel : Kernel or None
        The user's kernel with column numbers.
    size : TableSize
    likelihood : Likelihood
    past : ExactModel, SampledModel or None
        The model that training continues from. It determines the size.
    grows : bool, default=False
        Whether these are the first rows of a stream. If so, functions are not chosen for them
        alone.

    Raises
    ------
    ValueError
        For unknown names, and for numbers that contradict each other.
    """
    _check("variational_optimizer", params.variational_optimizer, tuple(_RATES))
    _check("optimizer", params.optimizer, ("bfgs", "adam", None))
    n, points = size.n, size.points
    most_pivots = 0 if past is not None or grows else pivot_limit(params, likelihood, n)
    m, method = most_pivots, "exact"
    if not most_pivots:
        features = min(1024, max(256, 4 * n)) if n <= _SMALL_ROWS else 100_000
        m = resolve(params.n_components, points or features, "").value
        method = _method(params, size, m)
    if past is not None:
        method, m = past.method, past.functions.n_components
    exact, fourier = method == "exact", not most_pivots and points is None
    default = 100 if n <= _SMALL_ROWS else 200 if n <= _MANY_ROWS else 500
    default = _NEWTON_STEPS if exact else default
    limit = resolve(params.max_iter, default, f"{n:,} rows")
    drawn = functions_drawn(params, m, f"of {m:,} functions", m if points else None, 10_000)
    steps = None
    if not exact:
        steps = _plan_steps(params, likelihood, n, drawn, limit.value, m, method == "dual", past)
    why = f"{n:,} rows: kernel functions at rows that determine the others"
    if fourier:
        why = f"{n:,} rows, a stream, or other settings that need random features or steps"
    because = f"full batches of {m:,} functions at {n:,} rows would cost too much"
    if exact:
        because = "full batches are cheaper" if fourier else "kernel functions are few"
    return SampledPlan(
        functions="pivots" if most_pivots else "fourier" if fourier else "points",
        n_drawn=drawn.value,
        n_components=Choice(m, f"{n:,} rows" if fourier else "as many points"),
        basis=Choice("fourier" if fourier else "rows", why),
        inference=Choice("exact" if exact else "stochastic", because),
        max_iter=limit._replace(value=1) if exact and likelihood.conjugate else limit,
        planned=limit.value >= default,
        start=_plan_start(params, kernel, not exact, fourier, most_pivots == n),
        steps=steps,
        ignored=_ignored(params, m, steps, likelihood, past),
        needs=(_memory(params, size, m, steps),),
    )


def plan_relevance(params: Any, kernel: Any, n: int) -> RelevancePlan:
    """The plan of a QSRVMRegressor for n rows.

    Raises
    ------
    ValueError
        For an unknown optimizer, and for more functions than rows.
    """
    _check("optimizer", params.optimizer, ("bfgs", None))
    m = resolve(params.n_components, min(n, _DICTIONARY), f"{n:,} rows")
    if m.value > n:
        raise ValueError(
            f"n_components={m.value} is more than the {n} rows of the table: use a smaller number."
        )
    rounds, ignored = None, {}
    if m.value > EXACT_DICTIONARY:
        rounds = StepPlan(
            n_dense=Choice(0, "of the rounds"),
            batch_size=min(params.batch_size, n),
            component_batch_size=functions_drawn(params, m.value, "of the first round"),
            control_variate_rank=_support(params, n, "of the rounds"),
            variational_learning_rate=Choice(_RATES["preconditioned"], "of the rounds"),
            dtype=resolve(params.dtype, "float32", "of the rounds of steps"),
            n_steps=_ROUND_STEPS,
            decay=0.3,
        )
    else:
        names = ("batch_size", "component_batch_size", "control_variate_rank", "dtype")
        why = f"dictionaries of up to {EXACT_DICTIONARY:,} functions take no such steps"
        ignored = ignore(*names, because=why)
    need = MemoryNeed(
        8 * 8 * min(m.value, EXACT_DICTIONARY) ** 2,
        f"A dictionary of {m.value} functions",
        f"use fewer, for example n_components={max(1, m.value // 4)}",
    )
    return RelevancePlan(
        n_components=m,
        most=EXACT_DICTIONARY,
        start=_plan_start(params, kernel, True, True),
        rounds=rounds,
        ignored=ignored,
        needs=(need,),
    )


def functions_drawn(
    params: Any, m: int, reason: str, default: int | None = None, most: int | None = None
) -> Choice:
    """Choose the number of functions in a draw: by default a tenth of m, but at least 1,024."""
    usual = min(max(min(m, 1024), m // 10), most or m)
    return _capped(params.component_batch_size, default or usual, m, reason)


def _check(name: str, value: Any, known: tuple[str | None, ...]) -> None:
    if value not in known:
        *others, last = map(repr, known)
        raise ValueError(f"Unknown {name}={value!r}: use {', '.join(others)} or {last}.")


def _method(params: Any, size: TableSize, m: int) -> str:
    """The method of training; raises a ValueError for settings that contradict each other."""
    n, points = size.n, size.points
    if points is not None and m != points:
        more = "more" if m > points else "fewer"
        raise ValueError(
            f"n_components={m} is {more} than the {points} points of the kernel basis: use "
            f'n_components="auto", or basis="fourier", which can have any number.'
        )
    # Steps for kernel functions have one weight for each row, and a diagonal covariance.
    stepwise = points is None or (isinstance(params.basis, str) and points == n)
    if not stepwise and params.inference == "stochastic":
        raise ValueError(
            'inference="stochastic" needs basis="fourier", or basis="rows" with all rows; a model '
            'of kernel functions at given points is solved by full batches (inference="auto").'
        )
    cheap = m <= EXACT_FEATURES and n * m**2 <= _EXACT_WORK
    all_dense = points is not None or params.n_dense in ("auto", m)
    exact = params.inference == "exact" or (params.inference == "auto" and cheap and all_dense)
    return "exact" if exact or not stepwise else "steps" if points is None else "dual"


def _plan_steps(
    params: Any,
    likelihood: Likelihood,
    n: int,
    drawn: Choice,
    n_steps: int,
    m: int,
    dual: bool,
    past: Any,
) -> StepPlan:
    """The plan of steps that draw some of m functions."""
    optimizer, by_support = params.variational_optimizer, params.covariance == "support"
    calibrates = not dual and by_support and likelihood.additive and n >= _HELD_FROM
    support = _support(params, n, f"{n:,} rows")
    if calibrates:
        most = max(1, n - max(_HELD, int(_HELD_SHARE * n)))
        support = support._replace(value=min(support.value, most))
    n_dense = Choice(0, "") if dual else _capped(params.n_dense, 20, m, "of steps")
    steps = StepPlan(
        n_dense=n_dense if past is None else Choice(past.n_dense, "of the past fit"),
        batch_size=min(params.batch_size, n),
        component_batch_size=drawn,
        control_variate_rank=support,
        variational_learning_rate=resolve(
            params.variational_learning_rate, _RATES[optimizer], optimizer
        ),
        dtype=resolve(params.dtype, "float32", "steps"),
        n_steps=n_steps,
        dual=dual,
        decay=params.decay,
        adaptive=optimizer == "adagrad",
        control_variate=params.control_variate,
        by_support=by_support,
        calibrates=calibrates,
        theta_rate=float(params.learning_rate) if params.optimizer == "adam" else 0.0,
        freeze=params.freeze,
        n_iter_no_change=params.n_iter_no_change,
    )
    return replace(steps, whole=past is None and _is_whole(steps, m))


def _is_whole(steps: StepPlan, m: int) -> bool:
    """Whether steps use all m functions at the rows of a batch.

    They do if that costs about as much as draws do, and if no setting of the paper asks for sampled
    functions. Two draws are evaluated at the support rows and at the scores' rows, too.
    """
    sampled = steps.dual or steps.adaptive or steps.theta_rate > 0 or not steps.by_support
    rate, b = steps.variational_learning_rate.value, steps.batch_size
    s = steps.control_variate_rank.value
    work = steps.component_batch_size.value * (b + s + max(50, s // 2))
    cheap = b <= _WHOLE_ROWS and b * m <= min(_WHOLE_NUMBERS, _WHOLE_WORK * work)
    return cheap and rate == 1 and steps.control_variate == "regression" and not sampled


def _capped(given: Any, default: int, most: int, reason: str) -> Choice:
    choice = resolve(given, default, reason)
    return choice._replace(value=min(choice.value, most))


def _support(params: Any, n: int, reason: str) -> Choice:
    """Number of support rows."""
    return _capped(params.control_variate_rank, 500 if n <= _MANY_ROWS else 1000, n, reason)


def _ignored(
    params: Any, m: int, steps: StepPlan | None, likelihood: Likelihood, past: Any
) -> dict[str, str]:
    """Parameters without effect."""
    ignored = {}
    if steps is None:
        ignored |= ignore(*_OF_STEPS, because="the model is solved by full batches, without steps")
        ignored["covariance"] = "full batches compute the full covariance of the weights"
        ignored["dtype"] = "full batches are in float64"
        if likelihood.conjugate:
            ignored["max_iter"] = "one solve finds the optimum of a Gaussian likelihood"
    elif steps.control_variate == "squares" and not likelihood.conjugate:
        ignored["control_variate"] = "'squares' is for a Gaussian likelihood: there is none"
    if steps is not None and steps.dual:
        own = "kernel functions at all rows have a diagonal covariance of their own"
        ignored |= ignore("n_dense", *["covariance"] * likelihood.additive, because=own)
        if steps.component_batch_size.value == m:
            why = "draws that contain all functions have no variance to reduce"
            ignored.setdefault("control_variate", why)
    fixed = steps is None or steps.dual or steps.theta_rate == 0
    if fixed:
        why = "the hyperparameters of the exact start are kept"
        ignored |= ignore("learning_rate", "freeze", because=why)
    if past is not None:
        ignored |= ignore(*_OF_THE_FIRST, because="the fit continues from the last one")
        if params.optimizer != "adam":
            ignored["optimizer"] = "the fit continues with the last one's hyperparameters"
    return ignored


def _memory(params: Any, size: TableSize, m: int, steps: StepPlan | None) -> MemoryNeed:
    if steps is None:
        # The basis at all rows, weighted, and its product with C; the precision, two factors, an
        # inverse.
        other = ', or inference="stochastic"' if isinstance(params.basis, str) else ""
        return MemoryNeed(
            8 * (3 * size.n * m + 4 * m * m),
            f"A full-batch model of {m} basis functions at {size.n} rows",
            f"use fewer functions, for example {max(2, m // 10)}{other}",
        )
    c, t = steps.n_dense.value, size.t
    rows = steps.batch_size + steps.control_variate_rank.value
    if steps.whole:
        rows += steps.batch_size * m // max(1, 4 * steps.component_batch_size.value)
    numbers = m * (3 * (t + c) + t + 2) + rows * steps.component_batch_size.value * 4
    return MemoryNeed(
        (8 if steps.torch_dtype == torch.float64 else 4) * numbers,
        f"A model of {m} basis functions with {c} dense columns",
        f"use fewer, for example n_components={max(2, m // 10)}, or n_dense=0",
    )
