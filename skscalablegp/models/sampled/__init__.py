"""Quadruply stochastic models and relevance vectors."""

from ._basis import SeededFourier
from ._classifier import QSGPClassifier
from ._estimates import BasisDraw, Control, Projection, Squares, sampled_gradient, sampled_loss
from ._optimizers import SparseSGD
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
from ._site import Site
from ._stepper import QSGPStepper, StepSizes
from ._support import Flattening, SupportRows
from ._weights import SampledWeights

__all__ = [
    "BasisDraw",
    "Flattening",
    "Control",
    "Projection",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSGPStepper",
    "QSRVMRegressor",
    "SampledWeights",
    "SeededFourier",
    "Site",
    "SparseSGD",
    "StepSizes",
    "SupportRows",
    "Squares",
    "sampled_gradient",
    "sampled_loss",
]
