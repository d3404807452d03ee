"""Frozen objects that answer predictions."""

from ._experts import COMBINATIONS, Combination, ExpertsPosterior, bcm, gpoe, grbcm, poe, rbcm
from ._fourier_space import FeatureSpace
from ._grid import GridPosterior
from ._love import LOVEPosterior, LOVEResult, LOVEWeights, love, with_basis

__all__ = [
    "COMBINATIONS",
    "Combination",
    "ExpertsPosterior",
    "FeatureSpace",
    "GridPosterior",
    "LOVEPosterior",
    "LOVEResult",
    "LOVEWeights",
    "bcm",
    "gpoe",
    "grbcm",
    "love",
    "poe",
    "rbcm",
    "with_basis",
]
