"""The public estimators."""

from ._iterative import IterativeGPRegressor
from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._poe import PoERegressor
from ._rff import RFFRegressor, SSRFFRegressor
from ._rrcg import RRCGRegressor

__all__ = [
    "IterativeGPRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "PoERegressor",
    "RFFRegressor",
    "RRCGRegressor",
    "SSRFFRegressor",
]
