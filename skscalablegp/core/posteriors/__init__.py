"""Frozen objects that answer predictions."""

from ._base import (
    Draws,
    KernelPosterior,
    MeanAndVariance,
    Posterior,
    Rows,
    reported_variance,
    without_own,
)
from ._exact import ExactPosterior
from ._features import FeaturePosterior, FeatureWeights
from ._low_rank import AUTO_RANK, LowRank, LowRankForm
from ._observed import observed
from ._quantiles import additive_quantiles
from ._weights import WeightForm
