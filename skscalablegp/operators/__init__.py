"""H = K + noise as an object: products, rows, blocks and hyperparameter gradients."""

from ._grid_kernel import GridFactor, GridKernel
from ._interpolated import InterpolatedOperator

__all__ = [
    "GridFactor",
    "GridKernel",
    "InterpolatedOperator",
]
