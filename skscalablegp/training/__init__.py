"""The outer loop over hyperparameters, with its optimisers and what watches it."""

from ._hyperparameters import SampledHyperparameters
from ._qsgp import QSGPStepper, StepSizes
from ._qsgp_dual import DualStepper
from ._relevance import RelevanceStepper
from ._sampled_weights import SampledWeights
from ._sparse import SPARSE_OPTIMIZERS, SparseAdaGrad, SparseAdam, SparseOptimizer, SparseSGD
from ._support import Flattening, SupportRows, by_unit, support_gram

__all__ = [
    "DualStepper",
    "Flattening",
    "QSGPStepper",
    "RelevanceStepper",
    "SPARSE_OPTIMIZERS",
    "SampledHyperparameters",
    "SampledWeights",
    "SparseAdaGrad",
    "SparseAdam",
    "SparseOptimizer",
    "SparseSGD",
    "StepSizes",
    "SupportRows",
    "by_unit",
    "support_gram",
]
