"""The table of the names of gradient estimators."""

from __future__ import annotations

from typing import Any

from ..._named import named
from ._base import GradientEstimator
from ._exact import ExactGradient
from ._iterative import PathwiseGradient, StandardGradient

GRADIENTS: dict[str, type[GradientEstimator]] = {
    "exact": ExactGradient,
    "standard": StandardGradient,
    "pathwise": PathwiseGradient,
}


def resolve_gradient(gradient: Any, **settings: Any) -> GradientEstimator:
    """A name from the table becomes an estimator; objects come back as they are.

    Parameters
    ----------
    gradient : str or GradientEstimator
        What a user may write.
    **settings
        Parameters of an estimator by name, such as ``n_probes=32``.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    others = "an object such as PathwiseGradient(n_probes=32), or, in an estimator, 'auto'"
    return named("gradient", gradient, GRADIENTS, others, **settings)
