"""Frozen objects that answer predictions."""

from ._base import (
    Draws,
    KernelPosterior,
    MeanAndVariance,
    Moments,
    Posterior,
    Rows,
    reported_variance,
    without_own,
)
from ._exact import ExactPosterior
from ._features import FeaturePosterior, FeatureWeights, inverse_root
from ._low_rank import AUTO_RANK, LowRank, LowRankForm, WeightCaches, WeightForm
from ._modules import (
    Affine,
    KernelFeatures,
    KernelModule,
    LinearModule,
    PosteriorModule,
    ProcessModule,
    WeightFeatures,
    WhiteNoise,
)
from ._observed import draw_observations, observed, predictive_quantiles
from ._quantiles import additive_quantiles
from ._unfinished import report_unfinished, unfinished_solves
