"""Likelihoods of a target given the latent function: values of ``likelihood=``."""

from .core import Bernoulli, Gaussian, Likelihood, LikelihoodTerms, Softmax, StudentT

__all__ = ["Bernoulli", "Gaussian", "Likelihood", "LikelihoodTerms", "Softmax", "StudentT"]
