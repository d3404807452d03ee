"""Quadruply stochastic models and relevance vectors."""

from ._basis import SeededFourier
from ._bounds import BasisDraw, Projection, sampled_squares
from ._classifier import QSGPClassifier
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
    "sampled_squares",
]
