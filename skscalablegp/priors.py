"""Distributions of hyperparameters, for ``priors={"k1__k2__length_scale": LogNormal(2.0, 0.5)}``.

Training maximises the likelihood times the density of theta, the logarithms of the hyperparameters.
A prior is therefore a density of the logarithm. Its mode is the median of a log-normal, the mean of
a gamma and the scale of a half-Cauchy distribution, and it changes with the unit of the
hyperparameter as it should. The density of the hyperparameter itself has its mode at 0 for a
half-Cauchy distribution, and for a gamma distribution of shape below 1, so that such a prior alone
would drive the variance of a kernel to zero.
"""

from .kernels import Gamma as Gamma
from .kernels import HalfCauchy as HalfCauchy
from .kernels import LogNormal as LogNormal
from .kernels import Prior as Prior

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
