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
from ._qsgp import (
    BasisDraw,
    Projection,
    SupportSquares,
    constant_estimate,
    covariance_estimate,
    likelihood_bound,
    mean_estimate,
    optimal_diagonal,
    sampled_function,
    sampled_prior,
    sampled_squares,
    sampled_std,
)
from ._single_sample import FeatureLevels, level_terms, single_sample_terms
from ._sites import GaussianSite, LaplaceSite, LogisticSite, Site
from ._truncated import TruncatedLikelihood, likelihood_terms, truncated_likelihood

__all__ = [
    "BasisDraw",
    "GaussianSite",
    "LaplaceSite",
    "LogisticSite",
    "Projection",
    "Site",
    "SupportSquares",
    "constant_estimate",
    "covariance_estimate",
    "likelihood_bound",
    "mean_estimate",
    "optimal_diagonal",
    "sampled_function",
    "sampled_prior",
    "sampled_squares",
    "sampled_std",
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
