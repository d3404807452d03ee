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
    without_own,
)
from ._densities import normal_log_density
from ._draws import MeanDraws, Moved, WeightDraws, normal, prior_draws
from ._elimination import half_solved, regressed
from ._exact import ExactPosterior
from ._kernel import JOINT_ROWS, KernelPosterior
from ._linear import FeatureWeights, LinearPosterior
from ._modules import (
    Affine,
    Dense,
    JointMoments,
    KernelFeatures,
    KernelModule,
    LinearModule,
    PosteriorModule,
    ProcessModule,
    Solved,
    WeightFeatures,
    WhiteNoise,
    inverse_root,
)
from ._moments import Moments, reported_variance
from ._observed import (
    draw_observations,
    observed,
    predictive_log_density,
    predictive_quantiles,
)
from ._quantiles import additive_quantiles
from ._shifted import shifted
from ._unfinished import report_unfinished, unfinished_solves
