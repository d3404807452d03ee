"""The public estimators."""

from ._iterative import IterativeGPRegressor
from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._rrcg import RRCGRegressor

__all__ = ["IterativeGPRegressor", "KISSGPRegressor", "LOVEPredictor", "RRCGRegressor"]
