"""What "auto" means for quadruply stochastic models: decisions from the table's size alone."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch

from ...core import FitRun
from ...core.likelihoods import Likelihood

# Functions up to which full-batch linear algebra is cheaper than steps.
EXACT_FEATURES = 2048
# Multiplications of its products with all rows that "auto" accepts; some seconds.
_EXACT_WORK = 5e10
# Rows above which random features are as many as the paper's.
_SMALL_ROWS = 2_000
# Rows up to which the default basis is kernel functions at pivots, and the multiplications that
# choosing so many of them may take. Newton steps, of which there are many, have their own limits.
_PIVOT_ROWS, _PIVOT_WORK = 12_000, 2.5e10
_NEWTON_ROWS, _NEWTON_PIVOTS = 2_000, 1024
# Newton steps of full batches under a likelihood that is not Gaussian.
_NEWTON_STEPS = 100
# What a learning rate of "auto" is.
_RATES = {"preconditioned": 1.0, "adagrad": 0.1, "adam": 0.01}
_THETA_RATE = 1e-5
_START_ROWS = 1000
# Fewer rows are all trained on; of more some choose the scale of variances.
_HELD_FROM = 2_000
# Rows, or their share if that is more, which then are not support rows.
_HELD, _HELD_SHARE = 200, 0.1


@dataclass(frozen=True)
class Settings:
    """What training takes from an estimator's parameters, whose names these are."""

    kernel: Any
    n_components: Any
    basis: Any
    n_dense: Any
    covariance: str
    batch_size: Any
    component_batch_size: Any
    control_variate: Any
    control_variate_rank: Any
    inference: str
    variational_optimizer: str
    variational_learning_rate: Any
    decay: float
    optimizer: Any
    learning_rate: Any
    freeze: float
    subset_size: Any
    n_restarts_optimizer: int
    max_iter: Any
    n_iter_no_change: int | None
    dtype: str

    def __post_init__(self) -> None:
        if self.variational_optimizer not in _RATES:
            raise ValueError(
                f"Unknown variational_optimizer={self.variational_optimizer!r}: use one of "
                f"{sorted(_RATES)}."
            )
        if self.optimizer not in ("auto", "adam", None):
            raise ValueError(f"Unknown optimizer={self.optimizer!r}: use 'auto', 'adam' or None.")

    @classmethod
    def of(cls, estimator: Any) -> Settings:
        """Of an estimator that has them all."""
        return cls(**{field.name: getattr(estimator, field.name) for field in fields(cls)})

    def pivots(self, likelihood: Likelihood, n: int) -> int:
        """Most kernel functions among which the default basis chooses; 0 for another basis."""
        auto = (self.n_components, self.n_dense) == ("auto", "auto")
        rows = _PIVOT_ROWS if likelihood.conjugate else _NEWTON_ROWS
        if not (self.auto_basis and auto and self.inference != "stochastic" and n <= rows):
            return 0
        most = min(n, int((_PIVOT_WORK / max(n, 1)) ** 0.5))
        return most if likelihood.conjugate else min(most, _NEWTON_PIVOTS)

    @property
    def auto_basis(self) -> bool:
        """Whether the table chooses the functions."""
        return isinstance(self.basis, str) and self.basis == "auto"

    @property
    def rate(self) -> float:
        """Of the weights' means."""
        given = self.variational_learning_rate
        return _RATES[self.variational_optimizer] if given == "auto" else given

    @property
    def theta_rate(self) -> float:
        """Of the hyperparameters; 0 where they stay what the exact start found."""
        if self.optimizer != "adam":
            return 0.0
        return _THETA_RATE if self.learning_rate == "auto" else float(self.learning_rate)

    @property
    def start_rows(self) -> int:
        """Rows that the exact start, or at least the default kernel, looks at."""
        return _START_ROWS if self.subset_size in ("auto", None) else self.subset_size


@dataclass(frozen=True)
class Plan:
    """How one fit is carried out.

    Attributes
    ----------
    method : {"exact", "steps", "dual"}
        Full batches and linear algebra, steps, or steps for kernel functions at all rows.
    basis : {"fourier", "points", "pivots"}
        Random features, or kernel functions at points that are known or are still to be chosen.
    n_components, n_dense : int
        m, of pivots the most that there may be, and c.
    rows : int
        Of a step.
    components : int
        Of each of a step's draws.
    support : int
        Rows of the control variate.
    steps : int
        Most of them.
    planned : bool
        Whether so many steps are a schedule that may run out, not a limit.
    calibrates : bool
        Whether rows are held out for the scale of variances.
    dtype : torch.dtype
    """

    method: str
    basis: str
    n_components: int
    n_dense: int
    rows: int
    components: int
    support: int
    steps: int
    planned: bool
    calibrates: bool
    dtype: torch.dtype

    @property
    def exact(self) -> bool:
        return self.method == "exact"

    def summary(self, m: int) -> str:
        """For the report, with as many functions as there are in the end."""
        if self.exact:
            return f"full batches, {m} functions, all entries of C"
        columns = f", {self.n_dense} dense columns" if self.method == "steps" else ""
        return (
            f"at most {self.steps} steps of {self.rows} rows and 2 x {self.components} of "
            f"{m} functions{columns}"
        )


def _or(value: Any, default: int) -> int:
    return default if value == "auto" else int(value)


def make_plan(
    settings: Settings,
    likelihood: Likelihood,
    n: int,
    points: int | None = None,
    past: Any = None,
    pivots: int = 0,
) -> Plan:
    """Resolve every "auto".

    Parameters
    ----------
    settings : Settings
    likelihood : Likelihood
    n : int
        Rows.
    points : int or None
        Points of a kernel basis, which are as many functions.
    past : ExactModel, SampledModel or None
        A model to go on from, which settles its size.
    pivots : int, default=0
        Most kernel functions to choose from; 0 for another basis.

    Raises
    ------
    ValueError
        For numbers that contradict each other.
    """
    small = n <= _SMALL_ROWS
    few = min(1024, max(256, 4 * n))
    m = pivots or _or(settings.n_components, points or (few if small else 100_000))
    method = "exact" if pivots else _method(settings, n, m, points)
    c = {"exact": m, "dual": 0, "steps": min(_or(settings.n_dense, 20), m)}[method]
    if past is not None:
        method, m, c = past.method, past.functions.n_components, past.n_dense
    newton = method == "exact"
    default = _NEWTON_STEPS if newton else 100 if small else 200 if n <= 20_000 else 500
    steps = _or(settings.max_iter, default)
    support = min(_or(settings.control_variate_rank, 500 if n <= 20_000 else 1000), n)
    calibrates = (
        method == "steps"
        and settings.covariance == "support"
        and likelihood.additive
        and n >= _HELD_FROM
    )
    if calibrates:
        support = min(support, max(1, n - max(_HELD, int(_HELD_SHARE * n))))
    return Plan(
        method=method,
        basis="pivots" if pivots else "fourier" if points is None else "points",
        n_components=m,
        n_dense=c,
        rows=min(_or(settings.batch_size, 500), n),
        components=min(_or(settings.component_batch_size, m if points else drawn(m)), m),
        support=support,
        steps=1 if newton and likelihood.conjugate else steps,
        planned=steps >= default,
        calibrates=calibrates,
        dtype=torch.float64
        if newton
        else torch.float32
        if settings.dtype == "auto"
        else getattr(torch, settings.dtype),
    )


def _method(settings: Settings, n: int, m: int, points: int | None) -> str:
    """Which way of training the settings ask for, and the check that they agree."""
    if points is not None and m != points:
        more = "more" if m > points else "fewer"
        raise ValueError(
            f"n_components={m} is {more} than the {points} points of the kernel basis: use "
            f'n_components="auto", or basis="fourier", which can have any number.'
        )
    # Steps for kernel functions have a weight a row, and keep a diagonal only.
    stepwise = points is None or (isinstance(settings.basis, str) and points == n)
    if not stepwise and settings.inference == "stochastic":
        raise ValueError(
            'inference="stochastic" needs basis="fourier", or basis="rows" with all rows; a model '
            'of kernel functions at given points is solved by full batches (inference="auto").'
        )
    exact = (
        not stepwise
        or settings.inference == "exact"
        or (
            settings.inference == "auto"
            and m <= EXACT_FEATURES
            and n * m**2 <= _EXACT_WORK
            and (points is not None or settings.n_dense in ("auto", m))
        )
    )
    return "exact" if exact else "steps" if points is None else "dual"


def drawn(m: int) -> int:
    """Fourier features of a draw."""
    return min(10_000, max(m // 10, min(m, 1024)))


def check_room(plan: Plan, n: int, t: int, run: FitRun, stepwise: bool) -> None:
    """Refuse a plan that does not fit; of an exact one the basis at all rows is the largest part.

    Parameters
    ----------
    plan : Plan
    n, t : int
        Rows and latent functions.
    run : FitRun
    stepwise : bool
        Whether steps are a way out.

    Raises
    ------
    MemoryError
    """
    m = plan.n_components
    if plan.exact:
        # The basis, weighted and times C; precision, its two factors and their inverse.
        need = 8 * (3 * n * m + 4 * m * m)
        what = f"A full-batch model of {m} basis functions at {n} rows"
        remedy = f"use fewer functions, for example {max(2, m // 10)}"
        if stepwise:
            remedy += ', or inference="stochastic"'
    else:
        size = 8 if plan.dtype == torch.float64 else 4
        held = (plan.rows + plan.support) * plan.components * 4
        need = size * (m * (3 * (t + plan.n_dense) + t + 2) + held)
        what = f"A model of {m} basis functions with {plan.n_dense} dense columns"
        remedy = f"use fewer, for example n_components={max(2, m // 10)}, or n_dense=0"
    run.check_memory(need, what, remedy)


def report(plan: Plan, settings: Settings, likelihood: Likelihood, n: int, run: FitRun) -> None:
    """Say what "auto" came to, and which parameters this fit does not use."""
    size = f"{n:,} rows"
    fourier = plan.basis == "fourier"
    run.chose("n_components", plan.n_components, size if fourier else "as many points")
    why = {
        "pivots": f"{size}: kernel functions at those that explain the others",
        "points": "points of the last fit",
        "fourier": f"{size}, a stream, or other settings that ask for random features or steps",
    }
    run.chose("basis", "fourier" if fourier else "rows", why[plan.basis])
    run.chose("n_dense", plan.n_dense, "solved exactly" if plan.exact else "of steps")
    exact = "full batches are the cheaper ones" if fourier else "kernel functions are few"
    steps = f"{plan.n_components:,} functions at {size} are too many for full batches"
    run.chose("inference", "exact" if plan.exact else "stochastic", exact if plan.exact else steps)
    run.chose("max_iter", plan.steps, size)
    run.chose("dtype", str(plan.dtype).removeprefix("torch."), "exact" if plan.exact else "steps")
    if settings.optimizer is not None:
        why = f"an exact start on {settings.start_rows:,} rows, after which they stay"
        run.chose("optimizer", "bfgs", why)
    if settings.subset_size is not None:
        run.chose("subset_size", settings.start_rows, "an exact fit of some seconds")
    if plan.exact:
        for name in _OF_STEPS:
            run.ignores(name, "the model is solved by full batches, without steps")
        run.ignores("covariance", "full batches have all entries of C")
        run.ignores("dtype", "full batches are in float64")
        if likelihood.conjugate:
            run.ignores("max_iter", "one solve finds the optimum of a Gaussian likelihood")
    else:
        run.chose("batch_size", plan.rows, size)
        run.chose("component_batch_size", plan.components, f"of {plan.n_components:,} functions")
        run.chose("control_variate_rank", plan.support, size)
        run.chose("variational_learning_rate", settings.rate, settings.variational_optimizer)
    if plan.method == "dual":
        why = "kernel functions at all rows have a diagonal covariance of their own"
        run.ignores("n_dense", why)
        if likelihood.additive:
            run.ignores("covariance", why)
    if settings.optimizer is None:
        run.ignores("n_restarts_optimizer", "optimizer=None keeps the kernel's hyperparameters")
    if settings.theta_rate == 0 or plan.method != "steps":
        for name in ("learning_rate", "freeze"):
            run.ignores(name, "hyperparameters stay where the exact start left them")


# What only steps ask for.
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


def report_past(run: FitRun) -> None:
    """What a fit that goes on does not use."""
    for name in ("kernel", "n_components", "basis", "n_dense", "subset_size"):
        run.ignores(name, "the fit goes on from the last one")
    run.ignores("n_restarts_optimizer", "the fit goes on from the last one")
