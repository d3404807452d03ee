"""The outer loop over hyperparameters, with its optimisers and what watches it."""

from ._hyperparameters import SampledHyperparameters
from ._loop import TrainingResult, restart_points, train
from ._monitor import Monitor, StopTraining, TrainingStep
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer, Optimum
from ._qsgp import QSGPStepper, StepSizes
from ._qsgp_dual import DualStepper
from ._quasi_newton import QuasiNewton
from ._relevance import RelevanceStepper
from ._resolve import OPTIMIZERS, resolve_optimizer
from ._rows import BLOCK_ROWS, RowSource, Scaling, column_moments
from ._sampled_weights import SampledWeights
from ._sparse import SPARSE_OPTIMIZERS, SparseAdaGrad, SparseAdam, SparseOptimizer, SparseSGD
from ._steps import Stepper, StepsResult, train_steps
from ._subsets import centroid_subsets, random_subset
from ._support import Flattening, SupportRows, by_unit, support_gram
from ._weight_space import BATCH_OPTIMIZERS, WeightSpaceStepper, cosine, neighbour_batches

__all__ = [
    "Adam",
    "BATCH_OPTIMIZERS",
    "BLOCK_ROWS",
    "CallableOptimizer",
    "DualStepper",
    "Flattening",
    "LBFGS",
    "Monitor",
    "OPTIMIZERS",
    "Optimizer",
    "Optimum",
    "QSGPStepper",
    "QuasiNewton",
    "RelevanceStepper",
    "RowSource",
    "SPARSE_OPTIMIZERS",
    "SampledHyperparameters",
    "SampledWeights",
    "Scaling",
    "SparseAdaGrad",
    "SparseAdam",
    "SparseOptimizer",
    "SparseSGD",
    "StepSizes",
    "Stepper",
    "StepsResult",
    "StopTraining",
    "SupportRows",
    "TrainingResult",
    "TrainingStep",
    "WeightSpaceStepper",
    "by_unit",
    "centroid_subsets",
    "column_moments",
    "cosine",
    "neighbour_batches",
    "random_subset",
    "resolve_optimizer",
    "restart_points",
    "support_gram",
    "train",
    "train_steps",
]
