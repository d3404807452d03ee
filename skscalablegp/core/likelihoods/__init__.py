"""Likelihoods p(y | f): one file each, on one base class with quadrature and autograd.

Importing this package imports every module in it, so that a likelihood is one file: the one that
names its class.
"""

from importlib import import_module
from pkgutil import iter_modules

from ._base import CONSTANT_VARIANCE, Likelihood, LikelihoodTerms, Predictive, without_own_target
from ._bernoulli import Bernoulli
from ._gaussian import Gaussian
from ._resolve import resolve_likelihood, shares_covariance
from ._shares import best_power, class_shares, losses_of_powers, towards_shares
from ._softmax import Softmax

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
