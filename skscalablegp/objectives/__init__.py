"""Scalar functions of the hyperparameters, and the problem they are functions of."""

from ._collapsed import CollapsedEvaluation, collapsed_marginal_likelihood, feature_weights
from ._grid import (
    CommonNoise,
    FixedNoise,
    GridEvaluation,
    GridProblem,
    NoiseByRow,
    NoisyMoments,
    Rows,
    check_rank,
    grid_marginal_likelihood,
    noise_jitter,
)
from ._single_sample import FeatureLevels, level_terms, single_sample_terms

__all__ = [
    "CollapsedEvaluation",
    "CommonNoise",
    "FeatureLevels",
    "FixedNoise",
    "GridEvaluation",
    "GridProblem",
    "NoiseByRow",
    "NoisyMoments",
    "Rows",
    "check_rank",
    "collapsed_marginal_likelihood",
    "feature_weights",
    "grid_marginal_likelihood",
    "level_terms",
    "noise_jitter",
    "single_sample_terms",
]
