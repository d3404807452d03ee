"""Frozen objects that answer predictions."""

from ._fourier_space import FeatureSpace
from ._grid import GridPosterior
from ._love import LOVEPosterior, LOVEResult, LOVEWeights, love, with_basis

__all__ = [
    "FeatureSpace",
    "GridPosterior",
    "LOVEPosterior",
    "LOVEResult",
    "LOVEWeights",
    "love",
    "with_basis",
]
