"""The plan of a product of experts."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...core import (
    Choice,
    Plan,
    StageSettings,
    instead,
    is_auto,
    only_float64,
    resolve,
    small_table_rows,
)
from ...core.training import resolve_optimizer

# Value of expert_size="auto" on tables that are not small.
_EXPERT_ROWS = 1024
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


def plan_experts(params: Any, n: int) -> ExpertsPlan:
    """The plan of a fit on n rows.

    Raises
    ------
    ValueError
        For an unknown optimizer, and for a combination that needs shared hyperparameters.
    """
    _check_rule(params)
    most = small_table_rows(params)
    alone = f"; one expert up to {most:,}" if most else ""
    default = n if n <= most else min(_EXPERT_ROWS, max(1, n - 1))
    size = resolve(params.expert_size, default, f"{n:,} rows{alone}")
    count = max(1, -(-n // size.value))
    local = params.combination == "gpoe" and params.partition == "kmeans"
    nearest, why = (
        (_NEAREST, "distant experts add little information")
        if local
        else (count, "as in the paper")
    )
    nearest = resolve(params.n_experts, nearest, why)
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


def _check_rule(params: Any) -> None:
    if isinstance(params.optimizer, str) and not is_auto(params.optimizer):
        resolve_optimizer(params.optimizer, more=("auto",))
    if not params.share_hyperparameters and params.combination not in ("poe", "gpoe"):
        raise ValueError(
            f"combination={params.combination!r} divides by a common prior, but with "
            "share_hyperparameters=False every expert has its own: use combination='gpoe' or "
            "'poe', or share_hyperparameters=True."
        )
