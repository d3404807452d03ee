"""Scalar functions of the hyperparameters, and the problem they are functions of."""

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
from ._truncated import TruncatedLikelihood, likelihood_terms, truncated_likelihood

__all__ = [
    "CommonNoise",
    "ExactEvaluation",
    "FixedNoise",
    "GPProblem",
    "GridEvaluation",
    "GridProblem",
    "NoiseByRow",
    "NoisyMoments",
    "Rows",
    "TruncatedLikelihood",
    "exact_marginal_likelihood",
    "grid_marginal_likelihood",
    "likelihood_terms",
    "truncated_likelihood",
]
