"""Distributions of hyperparameters, for ``priors={"k1__k2__length_scale": LogNormal(2.0, 0.5)}``.

A prior is a density of the hyperparameter's logarithm, which is what training moves: what is
maximised is the likelihood times a density over theta. Its mode is then where a distribution is
expected to have it, at the median of a log-normal, the mean of a gamma and the scale of a
half-Cauchy distribution, and a change of units moves the mode along. The density of the parameter
itself has its mode at 0 for a half-Cauchy, and for a gamma distribution of shape below 1: a prior
alone would then switch a kernel off.
"""

from .kernels import Gamma, HalfCauchy, LogNormal, Prior

__all__ = ["Gamma", "HalfCauchy", "LogNormal", "Prior"]
