"""Scalar functions of the hyperparameters, and the problem they are functions of."""

from ._collapsed import (
    CollapsedEvaluation,
    FeatureWeights,
    collapsed_marginal_likelihood,
    feature_weights,
)
from ._grid import (
    CommonNoise,
    FixedNoise,
    GridEvaluation,
    GridProblem,
    NoiseByRow,
    NoisyMoments,
    Rows,
    grid_marginal_likelihood,
)
from ._marginal_likelihood import ExactEvaluation, exact_marginal_likelihood
from ._problem import GPProblem
from ._single_sample import FeatureLevels, level_terms, single_sample_terms
from ._truncated import TruncatedLikelihood, likelihood_terms, truncated_likelihood

__all__ = [
    "CollapsedEvaluation",
    "CommonNoise",
    "ExactEvaluation",
    "FeatureLevels",
    "FeatureWeights",
    "FixedNoise",
    "GPProblem",
    "GridEvaluation",
    "GridProblem",
    "NoiseByRow",
    "NoisyMoments",
    "Rows",
    "TruncatedLikelihood",
    "collapsed_marginal_likelihood",
    "exact_marginal_likelihood",
    "feature_weights",
    "grid_marginal_likelihood",
    "level_terms",
    "likelihood_terms",
    "single_sample_terms",
    "truncated_likelihood",
]
