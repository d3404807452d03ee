"""The table of the names of truncations."""

from __future__ import annotations

from typing import Any

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
    """A name from the table becomes a distribution; objects come back as they are.

    Parameters
    ----------
    truncation : str or TruncationDistribution
        What a user may write.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    if not isinstance(truncation, str):
        return truncation
    if truncation not in TRUNCATIONS:
        known = ", ".join(repr(name) for name in TRUNCATIONS)
        raise ValueError(
            f"Unknown truncation {truncation!r}: use one of {known}, or an object such as "
            "ExponentialTruncation(rate=0.1)."
        )
    return TRUNCATIONS[truncation]()
