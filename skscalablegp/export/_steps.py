"""Steps of pipelines that scale columns, as torch modules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from torch import nn

from ..core.posteriors import Affine
from ..kernels import NotExportable


def _or(value: Any, default: float) -> Any:
    return default if value is None else value


def _min_max(step: MinMaxScaler) -> nn.Module:
    if step.clip:
        raise NotExportable(
            "MinMaxScaler(clip=True) cannot be exported: leave out clip, or scale the rows before."
        )
    return Affine(-step.min_ / step.scale_, 1 / step.scale_)


_STEPS: dict[type, Callable[[Any], nn.Module]] = {
    StandardScaler: lambda step: Affine(_or(step.mean_, 0.0), _or(step.scale_, 1.0)),
    MaxAbsScaler: lambda step: Affine(0.0, step.scale_),
    RobustScaler: lambda step: Affine(_or(step.center_, 0.0), _or(step.scale_, 1.0)),
    MinMaxScaler: _min_max,
}


def split_pipeline(model: Any) -> tuple[list[nn.Module], Any]:
    """The steps before the last one as modules, and the last one; the model itself without steps.

    Raises
    ------
    NotExportable
        For steps that do more than scale columns.
    """
    if not isinstance(model, Pipeline):
        return [], model
    modules = []
    for _, step in model.steps[:-1]:
        if step is None or step == "passthrough":
            continue
        if type(step) not in _STEPS:
            known = ", ".join(kind.__name__ for kind in _STEPS)
            raise NotExportable(
                f"{type(step).__name__} cannot be exported as a step of a Pipeline: {known} can. "
                "Transform the rows before, and export the last step alone."
            )
        modules.append(_STEPS[type(step)](step))
    inner, last = split_pipeline(model.steps[-1][1])
    return modules + inner, last
