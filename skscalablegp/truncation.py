"""Distributions of the number of terms of a series: values of ``truncation=``."""

from .linalg.truncation import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
    Truncation,
    TruncationDistribution,
)

__all__ = [
    "ExponentialTruncation",
    "FixedTruncation",
    "GeometricTruncation",
    "ReciprocalTruncation",
    "Truncation",
    "TruncationDistribution",
]
