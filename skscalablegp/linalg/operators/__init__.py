"""Operators for H = K + noise: products, rows, blocks and gradients in the hyperparameters."""

from ._at_ranks import RankOperator, kernel_operator
from ._base import LinearOperator, SelfAdjointOperator, column_dots, column_norms, slope
from ._bound import AutodiffKernel, StationaryKernel, bind
from ._chosen import ChosenRows
from ._kernel import ONE, CrossOperator, KernelOperator, Workspace, noise_of_means
from ._prior import prior_values
from ._products import FUSED, check_products, choose_products, compiler_for
from ._sent import SentOperator
from ._sets import fill_upper, kernel_between_sets, kernel_of_sets
from ._tiles import tile_size
