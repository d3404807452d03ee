"""Likelihoods p(y | f): one file each, on one base class with quadrature and autograd."""

from ._base import Likelihood, LikelihoodTerms, Predictive
from ._bernoulli import Bernoulli
from ._gaussian import Gaussian
from ._laplace import Laplace
from ._resolve import resolve_likelihood, shares_covariance
from ._softmax import Softmax
from ._student_t import StudentT
