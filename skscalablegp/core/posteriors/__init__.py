"""Frozen objects that answer predictions."""

from ._base import (
    AUTO_RANK,
    Copies,
    Draws,
    Inputs,
    LowRank,
    LowRankForm,
    MeanAndVariance,
    Posterior,
    reported_variance,
    without_own,
)
from ._densities import normal_log_density
from ._draws import MeanDraws, Moved, WeightDraws, normal, prior_draws
from ._elimination import half_solved
from ._exact import ExactPosterior
from ._features import FeaturePosterior, FeatureWeights, inverse_root
from ._kernel import JOINT_ROWS, KernelPosterior
from ._low_rank import WeightCaches, WeightForm
from ._modules import (
    Affine,
    JointMoments,
    KernelFeatures,
    KernelModule,
    LinearModule,
    PosteriorModule,
    ProcessModule,
    WeightFeatures,
    WhiteNoise,
)
from ._moments import Moments
from ._observed import (
    draw_observations,
    observed,
    predictive_log_density,
    predictive_quantiles,
)
from ._observed_modules import LatentModule
from ._quantiles import additive_quantiles
from ._shifted import shifted
from ._unfinished import report_unfinished, unfinished_solves
