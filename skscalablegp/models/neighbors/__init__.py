"""Nearest-neighbour Gaussian processes."""

from ._nngp import NNGPRegressor
