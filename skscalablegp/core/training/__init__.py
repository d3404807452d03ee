"""Training watched by one monitor: optimisers of all rows, and steps of random batches."""

from ._adam import AdamOfGroups, TensorAdam
from ._budget import Budget, StopTraining
from ._journal import Journal, present
from ._loop import TrainingResult, restart_points, train
from ._monitor import Monitor, TrainingStep
from ._natural import NaturalGradient
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer
from ._quasi_newton import ROUNDING, QuasiNewton, rows_of_information
from ._resolve import OPTIMIZERS, check_noisy_optimizer, resolve_optimizer
from ._steps import Stepper, StepsResult, train_steps
