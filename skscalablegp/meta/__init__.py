"""Estimators over estimators."""

from ._auto import AutoGPRegressor
from ._auto_classifier import AutoGPClassifier
from ._below import with_kernel
from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor
from ._mean_function import MeanFunctionRegressor
from ._member_noise import Errors
from ._modules import predictor_module, probability_module, split_steps
from ._noise import NoiseModel
from ._pool import mixed, pool_weights
from ._scaled import Scaled, Tails, noise_features
from ._stacked import StackedGPRegressor
from ._target_codes import TargetCodes
from ._tree_modules import Ensemble, evaluated_ensemble, refuse_trees
from ._trees import BoostedClasses, BoostedTrees, RandomizedTrees

__all__ = [
    "AutoGPClassifier",
    "AutoGPRegressor",
    "HeteroscedasticRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "StackedGPRegressor",
]
