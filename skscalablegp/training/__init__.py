"""The outer loop over hyperparameters, with its optimisers and what watches it."""

from ._hyperparameters import SampledHyperparameters
from ._qsgp import QSGPStepper, StepSizes
from ._qsgp_dual import DualStepper
from ._relevance import RelevanceStepper
from ._sampled_weights import SampledWeights
from ._sparse import SPARSE_OPTIMIZERS, SparseAdaGrad, SparseAdam, SparseOptimizer, SparseSGD
from ._support import Flattening, SupportRows, by_unit, support_gram
from ._weight_space import BATCH_OPTIMIZERS, WeightSpaceStepper, cosine, neighbour_batches

__all__ = [
    "BATCH_OPTIMIZERS",
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
    "WeightSpaceStepper",
    "by_unit",
    "cosine",
    "neighbour_batches",
    "support_gram",
]
