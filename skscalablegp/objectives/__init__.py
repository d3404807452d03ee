"""Scalar functions of the hyperparameters, and the problem they are functions of."""

from ._marginal_likelihood import ExactEvaluation, exact_marginal_likelihood
from ._problem import GPProblem
from ._truncated import TruncatedLikelihood, likelihood_terms, truncated_likelihood

__all__ = [
    "ExactEvaluation",
    "GPProblem",
    "TruncatedLikelihood",
    "exact_marginal_likelihood",
    "likelihood_terms",
    "truncated_likelihood",
]
