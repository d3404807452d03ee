"""Estimators of the gradient of the log marginal likelihood."""

from ._grid import GridGradient

__all__ = [
    "GridGradient",
]
