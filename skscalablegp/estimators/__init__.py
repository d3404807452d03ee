"""The public estimators."""

from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._rff import RFFRegressor, SSRFFRegressor

__all__ = [
    "KISSGPRegressor",
    "LOVEPredictor",
    "RFFRegressor",
    "SSRFFRegressor",
]
