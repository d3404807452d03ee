"""Estimators over estimators."""

from ._auto import AutoGPRegressor
from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor
from ._mean_function import MeanFunctionRegressor
from ._stacked import StackedGPRegressor

__all__ = [
    "AutoGPRegressor",
    "HeteroscedasticRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "StackedGPRegressor",
]
