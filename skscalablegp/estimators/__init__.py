"""The public estimators."""

from ._iterative import IterativeGPRegressor
from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._rff import RFFRegressor, SSRFFRegressor
from ._rrcg import RRCGRegressor

__all__ = [
    "IterativeGPRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "RFFRegressor",
    "RRCGRegressor",
    "SSRFFRegressor",
]
