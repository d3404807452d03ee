"""The parts that all estimators share: fits, the table of parameters, and predictions."""

from ._affordable import affordable_size
from ._arrays import Record, to_numpy, to_torch
from ._defaults import (
    KNOWN_NOISE,
    LARGEST_FEATURE_SIGNAL,
    NOISE_SHARE,
    data_scaled_kernel,
    label_prior,
    table_kernel,
    target_unit,
    with_default_noise,
)
from ._exact import (
    MOST_STEPS,
    SMALL_TABLE,
    FactorBudget,
    exact_summary,
    fit_exactly,
    instead,
    rows_for,
    small_table_rows,
    start_rows,
)
from ._exact_process import ExactProcess
from ._fast_columns import StartRows, fast_column, rows_to_look_at
from ._first_layer import first_layer_factors, first_layer_rows
from ._fitted import FittedProcess, LeftOut, fitted_process
from ._given import Given, GivenRows, ShardedSource, own_rows
from ._layout import Start
from ._leave_one_out import left_out
from ._minibatch import (
    GPClassifierBase,
    MinibatchGPRegressorBase,
)
from ._model import GPModel, check_categories
from ._noise_floor import below_the_noise_bound
from ._parameters import PARAMETERS
from ._plan import (
    Choice,
    Machine,
    MemoryNeed,
    Plan,
    ignore,
    is_auto,
    only_float64,
    resolve,
)
from ._prediction import GPPredictionBase
from ._record import PartRecord
from ._regressor import GPRegressorBase, TableRegressorBase
from ._report import FitReport
from ._run import FitRun, reporting_only
from ._selection import INDUCING_METHODS, candidates, select_inducing
from ._signal import asked_once
from ._stages import (
    best_of,
    fit_hyperparameters,
    tells_nothing,
    train_or_report,
    train_planned,
    well_conditioned,
)
from ._starts import choose_start
from ._subset import (
    FEW_ROWS,
    checking,
    chosen_start,
    compared_start,
    exact_check,
    exact_start,
    failing_softly,
    rows_to_check,
    unmoved,
    warn_if_rough,
)
from ._training_plan import (
    GAIN_PER_ROW,
    StageSettings,
    Subsets,
    plan_stages,
    plan_training,
)
from ._training_run import Run
from ._warn import warn_once
from ._wide import is_wide_table
from .data import random_rows
