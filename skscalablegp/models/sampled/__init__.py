"""Quadruply stochastic models and relevance vectors."""

from ._classifier import QSGPClassifier
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
