"""The public estimators."""

from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor

__all__ = [
    "KISSGPRegressor",
    "LOVEPredictor",
]
