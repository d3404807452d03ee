"""Likelihoods of a target given the latent function: values of ``likelihood=``."""

from .core.likelihoods import (
    Bernoulli,
    Gaussian,
    Laplace,
    Likelihood,
    LikelihoodTerms,
    Predictive,
    Softmax,
    StudentT,
)

__all__ = [
    "Bernoulli",
    "Gaussian",
    "Laplace",
    "Likelihood",
    "LikelihoodTerms",
    "Predictive",
    "Softmax",
    "StudentT",
]
