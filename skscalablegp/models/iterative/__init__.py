"""Gaussian processes trained through linear solves, randomly truncated ones included."""

from ._base import SolvedGPRegressor
from ._iterative import IterativeGPRegressor
from ._posterior import IterativePosterior, PathwiseSamples
from ._rrcg import RRCGRegressor
