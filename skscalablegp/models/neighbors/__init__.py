"""Nearest-neighbour Gaussian processes."""

from ._metric import Metric
from ._nngp import NNGPRegressor
from ._objectives import LocalGradient, Scales, neighbours_of
