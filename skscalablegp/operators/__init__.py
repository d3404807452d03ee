"""H = K + noise as an object: products, rows, blocks and hyperparameter gradients."""

from ._base import LinearOperator
from ._dense import DenseOperator

__all__ = ["DenseOperator", "LinearOperator"]
