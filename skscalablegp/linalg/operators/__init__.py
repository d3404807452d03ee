"""H = K + noise as an object: products, rows, blocks and hyperparameter gradients."""

from ._base import LinearOperator, slope
from ._bound import bind
from ._dense import DenseOperator
from ._kernel import CrossOperator, KernelOperator, Workspace, tile_size
