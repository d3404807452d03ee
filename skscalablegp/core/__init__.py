"""What all estimators share: one fit, one table of parameters, predictions."""

from ._arrays import to_numpy, to_torch
from ._defaults import LARGEST_FEATURE_SIGNAL, data_scaled_kernel
from ._fitting import (
    PARAMETERS,
    STOPPED,
    budget_of,
    make_monitor,
    seeded,
    shared_parameters,
    stop_after,
    unfinished,
    warn_once,
)
from ._likelihoods import Bernoulli, Gaussian, Likelihood, LikelihoodTerms, Softmax, StudentT
from ._minibatch import (
    GPClassifierBase,
    MinibatchGPRegressorBase,
    input_scaling,
    old_model_kept,
    training_device,
)
from ._prediction import GPPredictionBase
from ._regressor import GPRegressorBase
from ._stages import Run, StageSettings, fit_hyperparameters, well_conditioned

__all__ = [
    "Bernoulli",
    "GPClassifierBase",
    "GPPredictionBase",
    "GPRegressorBase",
    "Gaussian",
    "LARGEST_FEATURE_SIGNAL",
    "Likelihood",
    "LikelihoodTerms",
    "MinibatchGPRegressorBase",
    "PARAMETERS",
    "Run",
    "STOPPED",
    "Softmax",
    "StageSettings",
    "StudentT",
    "budget_of",
    "data_scaled_kernel",
    "fit_hyperparameters",
    "input_scaling",
    "make_monitor",
    "old_model_kept",
    "seeded",
    "shared_parameters",
    "stop_after",
    "to_numpy",
    "to_torch",
    "training_device",
    "unfinished",
    "warn_once",
    "well_conditioned",
]
