"""The table of the names of gradient estimators."""

from __future__ import annotations

from typing import Any

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
    if not isinstance(gradient, str):
        return gradient
    if gradient not in GRADIENTS:
        known = ", ".join(repr(name) for name in GRADIENTS)
        raise ValueError(
            f"Unknown gradient {gradient!r}: use one of {known}, an object such as "
            "PathwiseGradient(n_probes=32), or, in an estimator, 'auto'."
        )
    return GRADIENTS[gradient](**settings)
