"""Quadruply stochastic models and relevance vectors."""

from ._basis import SeededFourier
from ._classifier import QSGPClassifier
from ._estimates import BasisDraw, Control, Projection, Squares, sampled_gradient, sampled_loss
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
from ._site import Site
from ._support import SupportRows
