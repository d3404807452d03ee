"""The plan of a nearest-neighbour Gaussian process."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ..._validation import resolve_dtype
from ...core import (
    Choice,
    Machine,
    MemoryNeed,
    Plan,
    StageSettings,
    Subsets,
    instead,
    is_auto,
    only_float64,
    plan_stages,
    resolve,
    rows_for,
    small_table_rows,
    start_rows,
)

# The value of n_neighbors="auto" in training on tables that are not small, and other values that
# predictions may take: hyperparameters need more neighbours than predictions that wide
# neighbourhoods correct.
_NEIGHBORS, _OTHER_NEIGHBORS = 200, (50, 100, 400)
# Rows of the exact fit from which training starts, and with objective="subset".
_START, _SUBSET = 1000, 3000
# Rows up to which "auto" predicts in double precision.
_DOUBLE_ROWS = 10_000
# Rows of a wide neighbourhood by "auto", up to a number of rows. A million rows took 10 processor
# minutes with 800, and had no lower NLPD than with 400 neighbours alone.
_WIDE, _WIDE_ROWS = 1000, 300_000
# Numbers that wide neighbourhoods store for each row of the table, and again for each target, in
# units of the square root of their rows.
_STORED = 1.9
# Neighbours of a row among the rows before it, in the likelihood of all rows.
_EARLIER = 30
# Parameters of a model that is trained and has neighbours.
_OF_NEIGHBORS = (
    "objective",
    "calibrate",
    "local_scale",
    "subset_size",
    "n_centers",
)


@dataclass(frozen=True, kw_only=True)
class NeighborPlan(Plan):
    """How one fit is carried out.

    Attributes
    ----------
    n_neighbors, dtype, subset_size, n_inducing : Choice
        Of the parameters. As many neighbours as rows are the exact process, which has no subset.
    n_wide : Choice
        Of the parameter; 0 for none.
    compared : tuple of int
        Numbers of neighbours among which held-out rows choose, first that of training.
    n_rows : int
        Number of rows whose density training maximises.
    n_earlier : int
        Neighbours of a row among the rows before it, in the likelihood of all rows.
    stages : StageSettings
    training : Plan
        Of training on these rows.
    """

    n_neighbors: Choice
    dtype: Choice
    stages: StageSettings
    subset_size: Choice | None = None
    compared: tuple[int, ...] = ()
    n_rows: int = 0
    n_earlier: int = 0
    n_inducing: Choice | None = None
    n_wide: Choice = Choice(0, "")
    training: Plan = Plan()


def plan(
    params: Any, n: int, d: int, machine: Machine, *, n_targets: int = 1, n_params: int = 1
) -> NeighborPlan:
    """The plan of an `NNGPRegressor` for n rows of d columns.

    Parameters
    ----------
    params : NNGPRegressor
        Only its parameters are read.
    n, d : int
    machine : Machine
    n_targets, n_params : int, default=1
        Number of target columns, and of free hyperparameters.
    """
    rows, stages = f"{n:,} rows", StageSettings.of(params, params.n_restarts_optimizer)
    most, enough = small_table_rows(params), min(_NEIGHBORS, max(1, n - 1))
    why = f"{rows}; all of them up to {most:,}" if most else rows
    neighbors = resolve(params.n_neighbors, n if n <= most else enough, why)
    asked = 0 if is_auto(params.n_inducing) else params.n_inducing
    near = neighbors.value >= n
    # With all rows as inducing points the method is the exact process at many times its cost.
    if near or (asked >= n and params.small_table == "exact"):
        why = f"all rows are {'neighbours' if near else 'inducing points'}: the exact process"
        reason = neighbors.reason if near else f"{rows}, n_inducing={asked}"
        remedy = f"use a smaller {'n_neighbors' if near else 'n_inducing'}"
        all_rows = NeighborPlan(
            n_neighbors=Choice(n, reason),
            stages=stages,
            **instead(n, why, remedy),
            **only_float64(params, why),
        )
        others = ("n_wide_neighbors", "n_inducing", "n_neighbors")
        return all_rows.ignoring(*_OF_NEIGHBORS, *others, because=why)
    exact, size = params.objective == "subset", params.subset_size
    if is_auto(size) or (exact and size is None):
        size = _SUBSET if exact else rows_for(d, _START)
    size = None if size is None else min(size, n)
    whole = params.objective == "vecchia"
    n_rows = size if exact else n if whole else min(params.n_centers, n)
    subsets = Subsets.of(start_rows(n_rows, d) if exact else size)
    stages = replace(stages, subsets=subsets)
    dtype = str(resolve_dtype(params.dtype, n, threshold=_DOUBLE_ROWS)).removeprefix("torch.")
    compared = (neighbors.value,)
    if is_auto(params.n_neighbors):
        compared += tuple(m for m in _OTHER_NEIGHBORS if m < n)
    why = "more neighbours cost less for the same density of held-out rows"
    inducing = resolve(params.n_inducing, 0, why)
    inducing = inducing._replace(value=min(inducing.value, n))
    trained = params.optimizer is not None and n_params > 0
    wide = resolve(
        params.n_wide_neighbors,
        min(_WIDE, n) if trained and n <= _WIDE_ROWS else 0,
        f"{rows}; none above {_WIDE_ROWS:,}" if trained else "the hyperparameters are given",
    )
    if inducing.value:
        wide = Choice(0, "inducing points represent what more distant rows contribute")
    made = NeighborPlan(
        n_neighbors=neighbors,
        n_inducing=inducing,
        n_wide=wide,
        n_earlier=min(_EARLIER, neighbors.value),
        dtype=Choice(dtype, rows),
        subset_size=Choice(size, f"{rows}: an exact start saves steps"),
        compared=compared,
        n_rows=n_rows,
        stages=stages,
        training=plan_stages(stages, True, n_rows if exact else n, n_params, _OF_NEIGHBORS),
        needs=(
            MemoryNeed(
                8 * n * (4 * d + n_targets) + 24 * (size or 0) ** 2,
                f"A search tree of {n:,} rows and an exact start on subset_size={size} rows",
                "use a smaller subset_size, or fewer rows",
            ),
            MemoryNeed(
                8 * n * inducing.value,
                f"{n:,} rows at n_inducing={inducing.value} inducing points",
                "use a smaller n_inducing",
            ),
            MemoryNeed(
                _STORED * wide.value**0.5 * n * (4 + 8 * n_targets),
                f"Wide neighbourhoods of {n:,} rows",
                "use n_wide_neighbors=0",
            ),
        ),
    )
    if inducing.value:
        made = made.ignoring("n_wide_neighbors", because=wide.reason)
    if exact:
        why = "the exact likelihood of a subset has no neighbourhoods"
        return made.ignoring("n_centers", because=why)
    why = "the objective is the likelihood of all rows"
    return made.ignoring("n_centers", because=why) if whole else made
