"""The names of the truncation distributions."""

from __future__ import annotations

from typing import Any

from ..._named import named
from ._distributions import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
    TruncationDistribution,
)

TRUNCATIONS = {
    "exponential": ExponentialTruncation,
    "geometric": GeometricTruncation,
    "reciprocal": ReciprocalTruncation,
    "fixed": FixedTruncation,
}


def resolve_truncation(truncation: Any) -> TruncationDistribution:
    """Return the distribution that a name stands for; objects are returned unchanged.

    Parameters
    ----------
    truncation : str or TruncationDistribution

    Raises
    ------
    ValueError
        For an unknown name, or an object of another class; the message lists the known ones.
    """
    others = (
        "or an object such as ExponentialTruncation(rate=0.1); a distribution of your own is a "
        "subclass of skscalablegp.truncation.TruncationDistribution"
    )
    return named("truncation", truncation, TRUNCATIONS, others, kinds=TruncationDistribution)
