"""The parts that all estimators share: fits, the table of parameters, and predictions."""

from ._arrays import to_numpy, to_torch
from ._defaults import KNOWN_NOISE, LARGEST_FEATURE_SIGNAL, data_scaled_kernel
from ._exact import SMALL_TABLE, FactorBudget, start_rows, train_exactly
from ._minibatch import GPClassifierBase, MinibatchGPRegressorBase, input_scaling
from ._model import GPModel, check_categories
from ._parameters import PARAMETERS
from ._prediction import GPPredictionBase
from ._regressor import GPRegressorBase, TableRegressorBase
from ._report import STATUSES, FitReport
from ._run import FitRun, Run, warn_once
from ._stages import (
    GAIN_PER_ROW,
    StageSettings,
    best_of,
    fit_hyperparameters,
    report_training,
    report_untrained,
    train_or_report,
    well_conditioned,
)
from ._subset import (
    FEW_ROWS,
    checking,
    exact_check,
    exact_start,
    left_out,
    rows_to_check,
    warn_if_rough,
)
from .data import random_rows
