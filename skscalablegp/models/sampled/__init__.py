"""Quadruply stochastic models and relevance vectors."""

from ._basis import SeededFourier
from ._classifier import QSGPClassifier
from ._estimates import BasisDraw, SampledBatch, pull_of_squares, sampled_gradient, sampled_loss
from ._noise import NoiseAtRows
from ._qsgp import QSGPRegressor
from ._qsrvm import QSRVMRegressor
from ._relevance import Dictionary
from ._stepper import Sampler
from ._steps import Fit
from ._support import Flattening, SupportRows, support_gram
from ._weights import SampledWeights
