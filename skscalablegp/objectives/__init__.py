"""Scalar functions of the hyperparameters, and the problem they are functions of."""

from ._marginal_likelihood import ExactEvaluation, exact_marginal_likelihood
from ._problem import GPProblem

__all__ = ["ExactEvaluation", "GPProblem", "exact_marginal_likelihood"]
