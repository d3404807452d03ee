"""Estimators over estimators."""

from ._auto import AutoGPRegressor
from ._auto_classifier import LEAST_PROBABILITY, AutoGPClassifier
from ._below import with_kernel
from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor
from ._mean_function import MeanFunctionRegressor, ShiftedPosterior
from ._member_noise import Errors
from ._noise import NoiseModel, NoisePart
from ._normal_scores import NormalScores, ScoredColumns
from ._pool import mixed, pool_weights
from ._scaled import Scaled, ScaledPosterior, Tails, noise_features, with_tails
from ._stacked import StackedGPRegressor, StackedPosterior
from ._target_codes import TargetCodes
from ._trees import BoostedClasses, BoostedTrees, RandomizedTrees

__all__ = [
    "AutoGPClassifier",
    "AutoGPRegressor",
    "HeteroscedasticRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "StackedGPRegressor",
]
