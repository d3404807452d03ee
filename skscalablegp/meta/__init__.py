"""Estimators over estimators."""

from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor
from ._mean_function import MeanFunctionRegressor
from ._stacked import StackedGPRegressor

__all__ = [
    "HeteroscedasticRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "StackedGPRegressor",
]
