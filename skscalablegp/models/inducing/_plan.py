"""Plans of fits with inducing points: every choice before any work is done."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..._validation import check_points, resolve_dtype
from ...core import (
    INDUCING_METHODS,
    SMALL_TABLE,
    Choice,
    MemoryNeed,
    Plan,
    StageSettings,
    ignore,
    instead,
    is_auto,
    only_float64,
    resolve,
    small_table_rows,
)
from ...core.training import Optimizer, resolve_optimizer
from ._collapsed import BLOCK_ROWS
from ._stepper import SparseModel

# Number of inducing points on large tables.
MOST_POINTS = 512
# Passes over the rows in training by batches, and fewest steps for tables of up to 200 rows, fewest
# steps for larger ones, and most steps.
_EPOCHS, _STEPS = 8, (30, 80, 400)
# Weight of a batch in a natural step, and of a step on all rows if one step is not enough.
_NATURAL_RATE, _WHOLE_RATE = 0.1, 0.3
# Steps on the collapsed bound.
_MAX_ITER = 100
# Why it is computed in double precision.
_FLOAT64 = "the bound is a difference of large numbers"
# Learning rate of Adam on the collapsed bound.
_LEARNING_RATE = 0.1


@dataclass(frozen=True, kw_only=True)
class SparsePlan(Plan):
    """The plan of training by random batches.

    Attributes
    ----------
    n_inducing, max_iter, variational_learning_rate, dtype : Choice
    inducing, optimize_inducing, optimizer, learning_rate, variational_optimizer : object
        The parameters; points that are given are in the model's units.
    batch_size : int
    whole : bool
        Whether all rows are inducing points and the exact likelihood is maximised.
    enough : bool
        Whether there are at least as many steps as "auto" would take.
    """

    n_inducing: Choice
    max_iter: Choice
    variational_learning_rate: Choice
    dtype: Choice
    inducing: Any
    optimize_inducing: bool
    optimizer: str | None
    learning_rate: float
    variational_optimizer: str
    batch_size: int
    whole: bool
    enough: bool


@dataclass(frozen=True, kw_only=True)
class CollapsedPlan(Plan):
    """The plan of training by the collapsed bound.

    Attributes
    ----------
    n_inducing, max_iter, learning_rate, dtype : Choice
    new_optimizer : Optimizer or None
    stages : StageSettings
        Of the exact process in place of the bound.
    all_rows : bool
        Whether the inducing points are all rows, and stay there.
    """

    n_inducing: Choice
    max_iter: Choice
    learning_rate: Choice
    dtype: Choice
    new_optimizer: Optimizer | None
    stages: StageSettings
    all_rows: bool


def plan_batches(params: Any, model: SparseModel, n: int, d: int, most: int) -> SparsePlan:
    """The plan of SVGP on n rows of d columns, with at most `most` points by default.

    Raises
    ------
    ValueError
        For settings that are unknown or contradict each other.
    """
    _check_optimizers(params)
    natural = params.variational_optimizer == "natural"
    exact = _may_be_exact(params, model) and n <= small_table_rows(params)
    if exact:
        # Exact training is then faster than training with fewer points.
        most = max(most, SMALL_TABLE)
    points, ignored = _points(params, n, d, most)
    batch, m, s = min(n, int(params.batch_size)), points.value, model.n_factors
    fewest = _STEPS[0] if n <= 200 else _STEPS[1]
    enough = int(np.clip(_EPOCHS * n / batch, fewest, _STEPS[2]))
    why = f"{_EPOCHS} passes, within {fewest} and {_STEPS[2]} steps"
    steps = resolve(params.max_iter, enough, why)
    rate = _variational_rate(params, natural, batch == n)
    whole = exact and n <= m
    # In single precision, whitening by the points loses what little noise resolves: a drawn
    # function of 12,000 rows had an NLPD of -0.36 in place of -0.89 (benchmarks/versions.py --rows
    # 12000 --estimators SVGPRegressor), in 0.8 to 0.9 of the time.
    precision = str(resolve_dtype(params.dtype, n, threshold=n))
    dtype = Choice(precision.removeprefix("torch."), "single precision loses small noise")
    dtype = model.machine.precision(params, dtype, exact=whole)
    return SparsePlan(
        n_inducing=points,
        max_iter=steps,
        variational_learning_rate=rate,
        dtype=dtype,
        inducing=params.inducing,
        optimize_inducing=params.optimize_inducing,
        optimizer=params.optimizer,
        learning_rate=float(params.learning_rate),
        variational_optimizer=params.variational_optimizer,
        batch_size=batch,
        whole=whole,
        enough=steps.value >= enough,
        ignored=ignored | _unused(params, model, batch == n, whole),
        needs=_needs(
            m,
            8 * m * m * (6 + 6 * s) + 8 * m * batch * (4 + 2 * s),
            f"{s} covariances of {m} x {m}",
        ),
    )


def plan_collapsed(params: Any, n: int, d: int) -> CollapsedPlan:
    """The plan of SGPR on n rows of d columns.

    Raises
    ------
    ValueError
        For settings that are unknown or contradict each other.
    """
    auto = is_auto(params.n_inducing) and isinstance(params.inducing, str)
    default = isinstance(params.optimizer, str) and params.optimizer == "lbfgs"
    moves = params.optimize_inducing and params.optimizer is not None
    free = auto and default and not moves
    points, ignored = _points(params, n, d, MOST_POINTS)
    optimizer, rate = None, Choice(None, "there is no optimiser")
    if params.optimizer is None:
        ignored |= ignore(
            "max_iter", "learning_rate", "n_iter_no_change", "optimize_inducing",
            "n_restarts_optimizer", because="optimizer=None keeps kernel and points",
        )  # fmt: skip
    else:
        given = resolve(params.learning_rate, _LEARNING_RATE, "")
        optimizer = resolve_optimizer(params.optimizer, float(given.value))
        value = getattr(optimizer, "learning_rate", None)
        rate = Choice(value, "suitable for logarithms of hyperparameters")
        if value is None:
            ignored |= ignore("learning_rate", because="only Adam has one")
            ignored |= ignore("n_iter_no_change", because="only Adam uses this rule")
        elif not is_auto(params.learning_rate) and params.learning_rate != value:
            raise ValueError(
                f"learning_rate={params.learning_rate!r} contradicts optimizer="
                f"{params.optimizer!r}: leave learning_rate='auto', or use optimizer='adam'."
            )
    m, in_double = points.value, only_float64(params, _FLOAT64)
    exact = {"needs": _needs(m, 8 * (8 * m * m + 6 * m * BLOCK_ROWS), f"matrices of {m} x {m}")}
    if free and MOST_POINTS < n <= small_table_rows(params):
        why = f"{n:,} rows: the exact likelihood costs less than its bound"
        exact, points = instead(n, why), Choice(None, why)
        ignored |= ignore("inducing", because=why)
    return CollapsedPlan(
        n_inducing=points,
        max_iter=resolve(params.max_iter, _MAX_ITER, "enough for most tables"),
        learning_rate=rate,
        dtype=in_double["dtype"],
        new_optimizer=optimizer,
        all_rows=points.value == n and isinstance(params.inducing, str) and not moves,
        # The default name stands for the usual steps of an exact fit.
        stages=replace(StageSettings.of(params, params.n_restarts_optimizer), optimizer="auto"),
        ignored=ignored | in_double["ignored"],
        **exact,
    )


def _points(params: Any, n: int, d: int, most: int) -> tuple[Choice, dict[str, str]]:
    """The number of inducing points, and the parameters that then have no effect."""
    inducing = params.inducing
    if not isinstance(inducing, str):
        why = "the points are given"
        return Choice(len(check_points("inducing", inducing, d)), why), ignore(
            "n_inducing", because=why
        )
    if inducing not in INDUCING_METHODS:
        raise ValueError(
            f"Unknown inducing={inducing!r}: use one of {INDUCING_METHODS} or an array of "
            "shape (m, d)."
        )
    m = min(n, most if is_auto(params.n_inducing) else int(params.n_inducing))
    if m == n:
        return Choice(m, "all rows"), ignore("inducing", because="all rows are inducing points")
    return Choice(m, "accurate enough for most tables"), {}


def _needs(m: int, size: float, what: str) -> tuple[MemoryNeed]:
    """The memory that m inducing points take, in bytes, mainly for the matrices of `what`."""
    remedy = f"use fewer, for example n_inducing={max(1, m // 4)}"
    return (MemoryNeed(size, f"{m} inducing points with {what}", remedy),)


def _check_optimizers(params: Any) -> None:
    if params.optimizer not in ("adam", None):
        raise ValueError(
            f"Unknown optimizer {params.optimizer!r}: use 'adam', or None to keep the kernel and "
            "the inducing points. variational_optimizer is a parameter of its own."
        )
    if params.variational_optimizer not in ("natural", "adam"):
        raise ValueError(
            f"Unknown variational_optimizer {params.variational_optimizer!r}: use 'natural' "
            "(natural gradients) or 'adam'."
        )


def _may_be_exact(params: Any, model: SparseModel) -> bool:
    """Whether the bound could be the exact likelihood, with all rows as inducing points."""
    return (
        params.optimizer is not None
        and model.kernel.n_params > 0
        and isinstance(params.inducing, str)
        and model.likelihood.conjugate
        and model.network is None
        and params.variational_optimizer == "natural"
    )


def _variational_rate(params: Any, natural: bool, full: bool) -> Choice:
    rate, why = params.learning_rate, "that of the hyperparameters"
    if natural:
        rate, why = _WHOLE_RATE if full else _NATURAL_RATE, "the weight of a batch"
    choice = resolve(params.variational_learning_rate, rate, why)
    if natural and choice.value > 1:
        raise ValueError(
            f"variational_learning_rate={choice.value!r} is the weight of a batch in a natural "
            "gradient step, at most 1: use a smaller one, or variational_optimizer='adam'."
        )
    return choice


def _unused(params: Any, model: SparseModel, full: bool, whole: bool) -> dict[str, str]:
    """Parameters that have no effect, with the reasons."""
    unused, likelihood = {}, model.likelihood
    closed = params.variational_optimizer == "natural" and likelihood.conjugate
    if not likelihood.additive:
        unused |= ignore("alpha", because=f"{likelihood} has no additive noise")
    if params.feature_extractor is None or callable(params.feature_extractor):
        unused |= ignore("activation", because="no network is given by its layer sizes")
    if params.optimizer is None:
        why = "optimizer=None keeps kernel and inducing points"
        unused |= ignore("learning_rate", "optimize_inducing", because=why)
        if closed:
            names = ("batch_size", "max_iter", "variational_learning_rate")
            unused |= ignore(*names, because="the optimal distribution has a closed form")
    if closed and full:
        why = "a step sees all rows and computes the optimal distribution"
        unused |= ignore("variational_learning_rate", because=why)
    if whole:
        names = ("learning_rate", "variational_learning_rate", "batch_size", "optimize_inducing")
        why = "all rows are inducing points: their exact likelihood is maximised"
        unused |= ignore(*names, because=why)
    return unused
