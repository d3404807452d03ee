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
from ._sgpr import CollapsedBound, check_noise, collapsed_bound, problem_blocks
from ._single_sample import FeatureLevels, level_terms, single_sample_terms
from ._svgp import (
    JITTER,
    BoundEvaluation,
    KernelGradients,
    KernelValues,
    NaturalBelief,
    RowStatistics,
    WhitenedBelief,
    Whitening,
    inducing_gradient,
    variational_bound,
)

__all__ = [
    "BoundEvaluation",
    "CollapsedBound",
    "CollapsedEvaluation",
    "CommonNoise",
    "FeatureLevels",
    "FixedNoise",
    "GridEvaluation",
    "GridProblem",
    "JITTER",
    "KernelGradients",
    "KernelValues",
    "NaturalBelief",
    "NoiseByRow",
    "NoisyMoments",
    "RowStatistics",
    "Rows",
    "WhitenedBelief",
    "Whitening",
    "check_noise",
    "check_rank",
    "collapsed_bound",
    "collapsed_marginal_likelihood",
    "feature_weights",
    "grid_marginal_likelihood",
    "inducing_gradient",
    "level_terms",
    "noise_jitter",
    "problem_blocks",
    "single_sample_terms",
    "variational_bound",
]
