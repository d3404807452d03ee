"""Frozen objects that answer predictions."""

from ._base import KernelPosterior, Posterior, joint_normal, reported_variance
from ._cache import forget, remember, remembered
from ._exact import ExactPosterior
from ._feature_weights import FeatureWeights
from ._features import FeatureMap, FeaturePosterior
from ._krylov import explained_weights, krylov_basis, whitened
from ._low_rank import LowRank, LowRankForm, doubling
from ._observed import ObservedPosterior, observed
from ._weights import WeightForm

__all__ = [
    "KernelPosterior",
    "forget",
    "remember",
    "remembered",
    "ExactPosterior",
    "FeatureMap",
    "FeaturePosterior",
    "FeatureWeights",
    "ObservedPosterior",
    "LowRank",
    "LowRankForm",
    "Posterior",
    "WeightForm",
    "doubling",
    "explained_weights",
    "joint_normal",
    "krylov_basis",
    "observed",
    "reported_variance",
    "whitened",
]
