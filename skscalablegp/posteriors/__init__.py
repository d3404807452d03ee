"""Frozen objects that answer predictions."""

from ._love import LOVEPosterior, LOVEResult, LOVEWeights, love, with_basis

__all__ = [
    "LOVEPosterior",
    "LOVEResult",
    "LOVEWeights",
    "love",
    "with_basis",
]
