"""What all estimators share: one fit, one table of parameters, predictions."""

from ._arrays import to_numpy, to_torch
from ._defaults import LARGEST_FEATURE_SIGNAL, data_scaled_kernel
from ._minibatch import (
    GPClassifierBase,
    MinibatchGPRegressorBase,
    input_scaling,
)
from ._model import GPModel
from ._parameters import PARAMETERS, Parameter
from ._prediction import GPPredictionBase
from ._regressor import GPRegressorBase, TableRegressorBase
from ._report import STATUSES, Choice, FitReport
from ._run import FitRun, Relay, Run, budget_of, warn_once
from ._stages import (
    StageSettings,
    adam_rate,
    fit_hyperparameters,
    report_training,
    report_untrained,
    well_conditioned,
)
from ._subset import exact_start
from .data import random_rows

__all__ = [
    "exact_start",
    "random_rows",
    "Choice",
    "FitReport",
    "FitRun",
    "GPModel",
    "Parameter",
    "STATUSES",
    "GPClassifierBase",
    "GPPredictionBase",
    "GPRegressorBase",
    "LARGEST_FEATURE_SIGNAL",
    "MinibatchGPRegressorBase",
    "PARAMETERS",
    "Relay",
    "Run",
    "TableRegressorBase",
    "StageSettings",
    "adam_rate",
    "budget_of",
    "data_scaled_kernel",
    "fit_hyperparameters",
    "input_scaling",
    "report_training",
    "report_untrained",
    "to_numpy",
    "to_torch",
    "warn_once",
    "well_conditioned",
]
