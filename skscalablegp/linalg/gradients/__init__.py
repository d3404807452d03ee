"""The log marginal likelihood, and exact and stochastic estimators of its gradient."""

from ._base import GradientEstimate, GradientEstimator, GradientState
from ._fisher import fisher_information
from ._iterative import PathwiseGradient, PathwiseProbes, StandardGradient
from ._marginal_likelihood import (
    ExactEvaluation,
    ExactGradient,
    exact_marginal_likelihood,
    log_density,
)
from ._problem import GPProblem
from ._resolve import resolve_gradient
from ._rows import Rows
from ._sets import sets_marginal_likelihood
from ._truncated import TruncatedGradient
