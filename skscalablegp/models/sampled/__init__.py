"""Quadruply stochastic models and relevance vectors."""

from ._basis import SeededFourier
from ._classifier import QSGPClassifier
from ._estimates import (
    BasisDraw,
    Control,
    Projection,
    SampledBatch,
    Squares,
    sampled_gradient,
    sampled_loss,
)
from ._noise import NoiseAtRows
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
from ._support import SupportRows
