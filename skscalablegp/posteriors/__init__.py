"""Frozen objects that answer predictions."""

from ._grid import GridPosterior
from ._love import LOVEPosterior, LOVEResult, LOVEWeights, love, with_basis

__all__ = [
    "GridPosterior",
    "LOVEPosterior",
    "LOVEResult",
    "LOVEWeights",
    "love",
    "with_basis",
]
