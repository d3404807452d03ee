"""Frozen objects that answer predictions."""

from ._base import Posterior
from ._chevron import ChevronPosterior, ChevronWeights, SupportVariance
from ._deep_space import DeepFeatureSpace
from ._exact import ExactPosterior
from ._experts import COMBINATIONS, Combination, ExpertsPosterior, bcm, gpoe, grbcm, poe, rbcm
from ._features import FeatureMap, FeaturePosterior
from ._fourier_space import FeatureSpace
from ._grid import GridPosterior
from ._inducing import InducingPosterior, InducingSpace
from ._iterative import IterativePosterior, PathwiseSamples
from ._love import LOVEPosterior, LOVEResult, LOVEWeights, love, with_basis
from ._weights import WeightForm

__all__ = [
    "COMBINATIONS",
    "ChevronPosterior",
    "ChevronWeights",
    "SupportVariance",
    "Combination",
    "DeepFeatureSpace",
    "ExactPosterior",
    "ExpertsPosterior",
    "FeatureMap",
    "FeaturePosterior",
    "FeatureSpace",
    "GridPosterior",
    "InducingPosterior",
    "InducingSpace",
    "IterativePosterior",
    "LOVEPosterior",
    "LOVEResult",
    "LOVEWeights",
    "PathwiseSamples",
    "Posterior",
    "WeightForm",
    "bcm",
    "gpoe",
    "grbcm",
    "love",
    "poe",
    "rbcm",
    "with_basis",
]
