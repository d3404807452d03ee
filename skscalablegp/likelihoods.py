"""Likelihoods of a target given the latent function: values of ``likelihood=``."""

from .core.likelihoods import Bernoulli as Bernoulli
from .core.likelihoods import Gaussian as Gaussian
from .core.likelihoods import Likelihood as Likelihood
from .core.likelihoods import LikelihoodTerms as LikelihoodTerms
from .core.likelihoods import Predictive as Predictive
from .core.likelihoods import Softmax as Softmax
from .core.likelihoods._laplace import Laplace as Laplace
from .core.likelihoods._student_t import StudentT as StudentT

__all__ = sorted(name for name, value in globals().items() if name[0] != "_" and callable(value))
