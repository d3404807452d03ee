"""The plans of models with random Fourier features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core import (
    Choice,
    Machine,
    MemoryNeed,
    Plan,
    StageSettings,
    instead,
    is_auto,
    only_float64,
    plan_stages,
    resolve,
    small_table_rows,
)
from ...core.training import check_noisy_optimizer
from ...linalg.truncation import resolve_truncation
from ._gradients import SingleSampleGradient

# Value of n_components="auto", and of min_components="auto" in a series.
_COMPONENTS, _FIRST_COMPONENTS = 700, 500
# Why these models compute in double precision.
_FLOAT64 = "sums of many products of features need double precision"
# Parameters of the series, which have no effect if nothing is trained.
_OF_SERIES = ("min_components", "component_step", "truncation")


@dataclass(frozen=True, kw_only=True)
class FeaturePlan(Plan):
    """How a fit by random features is carried out.

    Attributes
    ----------
    dtype, n_components : Choice
        Of the parameters.
    stages : StageSettings
    training : Plan
        Of training with features.
    """

    dtype: Choice
    n_components: Choice
    stages: StageSettings
    training: Plan = Plan()


@dataclass(frozen=True, kw_only=True)
class SeriesPlan(Plan):
    """How a fit by a series of random features is carried out.

    Attributes
    ----------
    dtype, min_components : Choice
        Of the parameters.
    stages : StageSettings
    training : Plan
        Of training by the series.
    gradient : SingleSampleGradient or None
        Its estimator.
    """

    dtype: Choice
    min_components: Choice
    stages: StageSettings
    training: Plan = Plan()
    gradient: SingleSampleGradient | None = None


def takes_features(params: Any, n: int) -> bool:
    """Whether an `RFFRegressor` draws features for n rows, rather than be exact."""
    return not is_auto(params.n_components) or n > small_table_rows(params)


def plan_features(
    params: Any, n: int, d: int, machine: Machine, *, n_params: int = 1
) -> FeaturePlan:
    """The plan of an `RFFRegressor`, of which only parameters are read."""
    stages = StageSettings.of(params, params.n_restarts_optimizer)
    if not takes_features(params, n):
        why = f"{n} rows: the exact process is as fast"
        return FeaturePlan(
            n_components=Choice(None, why),
            stages=stages,
            **instead(n, why),
            **only_float64(params, _FLOAT64),
        )
    return FeaturePlan(
        n_components=resolve(params.n_components, _COMPONENTS, "accurate enough for most tables"),
        stages=stages,
        training=plan_stages(stages, True, n, n_params),
        **only_float64(params, _FLOAT64),
    )


def plan_series(params: Any, n: int, d: int, machine: Machine, *, n_params: int = 1) -> SeriesPlan:
    """The plan of an `SSRFFRegressor`, of which only parameters are read."""
    resolve_truncation(params.truncation)
    stages = StageSettings.of(params)
    bfgs = isinstance(params.optimizer, str) and params.optimizer in ("auto", "bfgs")
    if bfgs and is_auto(params.min_components) and n <= small_table_rows(params):
        why = f"{n} rows: the exact process is faster"
        plan = SeriesPlan(
            min_components=Choice(None, why),
            stages=stages,
            **instead(n, why),
            **only_float64(params, _FLOAT64),
        )
        why = "the exact process has no series"
        return plan.ignoring("component_step", "truncation", because=why)
    check_noisy_optimizer(params.optimizer, type(params).__name__, ("adam",))
    first = resolve(
        params.min_components, _FIRST_COMPONENTS, "noise and cost of a step are balanced"
    )
    gradient = SingleSampleGradient(
        params.truncation, min_components=first.value, component_step=params.component_step
    )
    need = MemoryNeed(
        24 * n * n,
        f"The exact last term of the series for {n} rows (three {n} x {n} matrices)",
        "use RFFRegressor or RRCGRegressor, whose memory is linear in the rows, or fewer rows",
    )
    plan = SeriesPlan(
        min_components=first,
        stages=stages,
        training=plan_stages(stages, gradient.exact, n, n_params, _OF_SERIES),
        gradient=gradient,
        needs=(need,),
        **only_float64(params, _FLOAT64),
    )
    if gradient.levels(n).truncation is None:
        why = f"{n} rows are no more than min_components, rounded up: all steps are exact"
        plan = plan.ignoring(*_OF_SERIES, because=why)
    return plan
