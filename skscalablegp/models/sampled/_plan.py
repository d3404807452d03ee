"""The choice of settings that are left at "auto", from the size of the table alone."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from ...core import FitRun
from ...core.likelihoods import Likelihood

# Up to this number of functions full-batch linear algebra is cheaper than steps.
EXACT_FEATURES = 2048
# Multiplications of full batches that "auto" accepts. They take some seconds.
_EXACT_WORK = 5e10
# Above this number of rows there are as many random features as in the paper.
_SMALL_ROWS = 2_000
# Up to this number of rows the default basis is kernel functions at pivots, whose choice may take
# this many multiplications. Fits by many Newton steps have lower limits.
_PIVOT_ROWS, _PIVOT_WORK = 12_000, 2.5e10
_NEWTON_ROWS, _NEWTON_PIVOTS = 2_000, 1024
# Newton steps of full batches under a likelihood that is not Gaussian.
_NEWTON_STEPS = 100
# Learning rates for "auto".
_RATES = {"preconditioned": 1.0, "adagrad": 0.1, "adam": 0.01}
_START_ROWS = 1000
# From this number of rows on, some are held out to choose the scale of variances.
_HELD_FROM = 2_000
# Smallest number of these held-out rows, and their smallest share of the table.
_HELD, _HELD_SHARE = 200, 0.1


class Settings(SimpleNamespace):
    """The parameters of an estimator under their own names, and the values of "auto" for some."""

    @classmethod
    def of(cls, estimator: Any, **changed: Any) -> Settings:
        """The settings of an estimator, some of them changed."""
        made = cls(**estimator.get_params(deep=False) | changed)
        if made.variational_optimizer not in _RATES:
            raise ValueError(
                f"Unknown variational_optimizer={made.variational_optimizer!r}: use one of "
                f"{sorted(_RATES)}."
            )
        if made.optimizer not in ("bfgs", "adam", None):
            raise ValueError(f"Unknown optimizer={made.optimizer!r}: use 'bfgs', 'adam' or None.")
        return made

    def pivots(self, likelihood: Likelihood, n: int) -> int:
        """Largest number of kernel functions in the default basis; 0 for another basis."""
        auto = (self.n_components, self.n_dense) == ("auto", "auto")
        rows = _PIVOT_ROWS if likelihood.conjugate else _NEWTON_ROWS
        if not (self.auto_basis and auto and self.inference != "stochastic" and n <= rows):
            return 0
        most = min(n, int((_PIVOT_WORK / max(n, 1)) ** 0.5))
        return most if likelihood.conjugate else min(most, _NEWTON_PIVOTS)

    @property
    def auto_basis(self) -> bool:
        """Whether the functions depend on the table."""
        return isinstance(self.basis, str) and self.basis == "auto"

    @property
    def rate(self) -> float:
        """Learning rate of the weights' means."""
        given = self.variational_learning_rate
        return _RATES[self.variational_optimizer] if given == "auto" else given

    @property
    def theta_rate(self) -> float:
        """Learning rate of the hyperparameters; 0 if they stay at those of the exact start."""
        if self.optimizer != "adam":
            return 0.0
        return float(self.learning_rate)

    @property
    def start_rows(self) -> int:
        """Number of rows for the exact start and for the default kernel."""
        return _START_ROWS if self.subset_size is None else self.subset_size


@dataclass(frozen=True)
class Plan:
    """How one fit is carried out.

    Attributes
    ----------
    method : {"exact", "steps", "dual"}
        Full-batch linear algebra, steps, or steps for kernel functions at all rows.
    basis : {"fourier", "points", "pivots"}
        Random features, or kernel functions at known points or at points still to be chosen.
    n_components, n_dense : int
        m, for pivots its largest value, and c.
    rows, components : int
        Rows of a step, and functions of each of its draws.
    support : int
        Number of rows of the control variate.
    steps : int
        Largest number of steps.
    planned : bool
        Whether the number of steps is a schedule to be completed, rather than a limit.
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
        """A line of the report on the final number of functions, m."""
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
        Number of points of a kernel basis.
    past : ExactModel, SampledModel or None
        The model that training continues from. It determines the size.
    pivots : int, default=0
        Largest number of kernel functions to choose; 0 for another basis.

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
        rows=min(settings.batch_size, n),
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
    """The method of training; raises a ValueError for settings that contradict each other."""
    if points is not None and m != points:
        more = "more" if m > points else "fewer"
        raise ValueError(
            f"n_components={m} is {more} than the {points} points of the kernel basis: use "
            f'n_components="auto", or basis="fourier", which can have any number.'
        )
    # Steps for kernel functions have one weight for each row, and a diagonal covariance.
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
    """Number of Fourier features in a draw."""
    return min(10_000, max(m // 10, min(m, 1024)))


def check_room(plan: Plan, n: int, t: int, run: FitRun, stepwise: bool) -> None:
    """Refuse a plan that does not fit into memory.

    Parameters
    ----------
    plan : Plan
    n, t : int
        Rows and latent functions.
    run : FitRun
    stepwise : bool
        Whether steps are a possible remedy.

    Raises
    ------
    MemoryError
    """
    m = plan.n_components
    if plan.exact:
        # The basis at all rows, weighted, and its product with C; the precision, two factors, an
        # inverse.
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
    """Report the choices for "auto", and the parameters without effect."""
    size = f"{n:,} rows"
    fourier = plan.basis == "fourier"
    run.chose("n_components", plan.n_components, size if fourier else "as many points")
    why = {
        "pivots": f"{size}: kernel functions at rows that determine the others",
        "points": "points of the last fit",
        "fourier": f"{size}, a stream, or other settings that ask for random features or steps",
    }
    run.chose("basis", "fourier" if fourier else "rows", why[plan.basis])
    run.chose("n_dense", plan.n_dense, "solved exactly" if plan.exact else "of steps")
    exact = "full batches are cheaper" if fourier else "kernel functions are few"
    steps = f"full batches of {plan.n_components:,} functions at {size} would cost too much"
    run.chose("inference", "exact" if plan.exact else "stochastic", exact if plan.exact else steps)
    run.chose("max_iter", plan.steps, size)
    run.chose("dtype", str(plan.dtype).removeprefix("torch."), "exact" if plan.exact else "steps")
    if plan.exact:
        run.ignores(_OF_STEPS, "the model is solved by full batches, without steps")
        run.ignores("covariance", "full batches have all entries of C")
        run.ignores("dtype", "full batches are in float64")
        if likelihood.conjugate:
            run.ignores("max_iter", "one solve finds the optimum of a Gaussian likelihood")
    else:
        run.chose("component_batch_size", plan.components, f"of {plan.n_components:,} functions")
        run.chose("control_variate_rank", plan.support, size)
        run.chose("variational_learning_rate", settings.rate, settings.variational_optimizer)
        if settings.control_variate == "squares" and not likelihood.conjugate:
            run.ignores("control_variate", "'squares' is for a Gaussian likelihood: there is none")
        elif plan.method == "dual" and plan.components == plan.n_components:
            run.ignores(
                "control_variate", "draws that contain all functions have no variance to reduce"
            )
    if plan.method == "dual":
        why = "kernel functions at all rows have a diagonal covariance of their own"
        run.ignores("n_dense", why)
        if likelihood.additive:
            run.ignores("covariance", why)
    if settings.optimizer is None:
        run.ignores("n_restarts_optimizer", "optimizer=None keeps the kernel's hyperparameters")
    if settings.theta_rate == 0 or plan.method != "steps":
        why = "hyperparameters stay where the exact start left them"
        run.ignores(("learning_rate", "freeze"), why)


# Parameters that only steps use.
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


def report_past(settings: Settings, run: FitRun) -> None:
    """Report the parameters without effect in a fit that continues from a model."""
    run.ignores(_OF_THE_FIRST, "the fit continues from the last one")
    if settings.theta_rate == 0:
        run.ignores("optimizer", "the fit continues with the last one's hyperparameters")


# Parameters that only the first fit uses.
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
