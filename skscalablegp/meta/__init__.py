"""Estimators over estimators."""

from ._auto import AutoGPRegressor
from ._auto_classifier import AutoGPClassifier
from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor
from ._mean_function import MeanFunctionRegressor
from ._modules import predictor_module, probability_module, split_steps
from ._stacked import StackedGPRegressor

__all__ = [
    "AutoGPClassifier",
    "AutoGPRegressor",
    "HeteroscedasticRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "StackedGPRegressor",
]
