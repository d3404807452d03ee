"""The public estimators."""

from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._poe import PoERegressor
from ._rff import RFFRegressor, SSRFFRegressor

__all__ = [
    "KISSGPRegressor",
    "LOVEPredictor",
    "PoERegressor",
    "RFFRegressor",
    "SSRFFRegressor",
]
