"""The public estimators."""

from ._iterative import IterativeGPRegressor

__all__ = ["IterativeGPRegressor"]
