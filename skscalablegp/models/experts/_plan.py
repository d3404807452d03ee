"""The plan of a product of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...core import (
    Choice,
    Machine,
    Plan,
    StageSettings,
    instead,
    is_auto,
    only_float64,
    resolve,
    small_table_rows,
)
from ...core.training import resolve_optimizer

# Value of expert_size="auto" on tables that are not small, the share of the memory that factors may
# take for it, and the number of rows that it has even if they take more.
_EXPERT_ROWS, _SHARE, _LEAST = 1024, 0.8, 200
# Rows above which predictions also have factors in single precision.
MANY_ROWS = 10_000
# Value of n_experts="auto". Of 1 to 36, 3 and 4 have the lowest errors on kin40k; on protein the
# number hardly matters (benchmarks/experts.py --nearest).
_NEAREST = 4
# Parameters without effect on a single expert.
_OF_SEVERAL = ("combination", "partition", "share_hyperparameters", "n_jobs")


@dataclass(frozen=True, kw_only=True)
class ExpertsPlan(Plan):
    """How one fit is carried out.

    Attributes
    ----------
    dtype, expert_size, n_experts : Choice
        Of the parameters. A single expert is the exact process.
    stages : StageSettings
        Of training, without the rows with which it begins.
    """

    dtype: Choice
    expert_size: Choice
    n_experts: Choice
    stages: StageSettings


def bytes_of_factors(n: int, rows: float, largest: float, workers: int) -> float:
    """What factors of experts take, and the matrices of those that are solved at the same time.

    Parameters
    ----------
    n : int
        Rows of the table.
    rows : float
        The sum of the squares of the experts' rows.
    largest : float
        Rows of the largest expert.
    workers : int
    """
    return (12 if n > MANY_ROWS else 8) * rows + 24 * workers * largest**2


def plan_experts(params: Any, n: int, machine: Machine) -> ExpertsPlan:
    """The plan of a fit on n rows.

    Raises
    ------
    ValueError
        For an unknown optimizer, and for a combination that needs shared hyperparameters.
    """
    _check_rule(params)
    most = small_table_rows(params)
    alone = f"; one expert up to {most:,}" if most else ""
    fitting = _fitting_rows(params, n, machine)
    default = n if n <= most else min(_EXPERT_ROWS, fitting, max(1, n - 1))
    if fitting < _EXPERT_ROWS:
        alone += "; the factors of larger experts would not fit into memory"
    size = resolve(params.expert_size, default, f"{n:,} rows{alone}")
    count = max(1, -(-n // size.value))
    local = params.combination == "gpoe" and params.partition == "kmeans"
    why = "distant experts add little information" if local else "as in the paper"
    nearest = resolve(params.n_experts, _NEAREST if local else count, why)
    plan = ExpertsPlan(
        dtype=resolve(params.dtype, "float64", "parts are small"),
        expert_size=size,
        n_experts=nearest._replace(value=min(nearest.value, count)),
        stages=StageSettings.of(params, params.n_restarts_optimizer),
    )
    if count > 1:
        return plan
    fields = instead(n, size.reason, "use a smaller expert_size")
    fields |= only_float64(params, "there is one expert")
    return replace(plan, **fields).ignoring(*_OF_SEVERAL, because="there is one expert")


def _fitting_rows(params: Any, n: int, machine: Machine) -> int:
    """Rows of an expert whose factors fit into memory."""
    room, size = _SHARE * machine.room, min(n, _EXPERT_ROWS)
    # With "grbcm", an expert has the rows of the first one beside its own.
    times = 2 if params.combination == "grbcm" else 1
    while size > _LEAST:
        known = times * size
        if bytes_of_factors(n, n / size * known**2, known, machine.cores) <= room:
            break
        size -= 1
    return size


def _check_rule(params: Any) -> None:
    if isinstance(params.optimizer, str) and not is_auto(params.optimizer):
        resolve_optimizer(params.optimizer, more=("auto",))
    if not params.share_hyperparameters and params.combination not in ("poe", "gpoe"):
        raise ValueError(
            f"combination={params.combination!r} divides by a common prior, but with "
            "share_hyperparameters=False every expert has its own: use combination='gpoe' or "
            "'poe', or share_hyperparameters=True."
        )
