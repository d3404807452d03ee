"""Quadruply stochastic models and relevance vectors."""

from ._basis import KernelFunctions, SeededFourier
from ._bounds import (
    BasisDraw,
    Projection,
    likelihood_bound,
    mean_estimate,
    optimal_diagonal,
    sampled_squares,
    sampled_variance,
)
from ._classifier import QSGPClassifier
from ._dictionary import Dictionary
from ._exact import FullBatch, newton_steps
from ._gradient import sampled_gradient
from ._hyperparameters import SampledHyperparameters
from ._optimizers import SparseAdaGrad, SparseAdam, SparseSGD
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
from ._relevance import RelevanceStepper
from ._site import Site
from ._stepper import QSGPStepper, StepSizes
from ._support import Flattening, SupportRows, support_gram
from ._weights import SampledWeights

__all__ = [
    "BasisDraw",
    "Dictionary",
    "Flattening",
    "KernelFunctions",
    "Projection",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSGPStepper",
    "QSRVMRegressor",
    "RelevanceStepper",
    "SampledHyperparameters",
    "SampledWeights",
    "SeededFourier",
    "Site",
    "SparseAdaGrad",
    "SparseAdam",
    "SparseSGD",
    "StepSizes",
    "SupportRows",
    "likelihood_bound",
    "FullBatch",
    "newton_steps",
    "mean_estimate",
    "optimal_diagonal",
    "sampled_gradient",
    "sampled_squares",
    "sampled_variance",
    "support_gram",
]
