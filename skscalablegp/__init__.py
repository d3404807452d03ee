"""Scalable Gaussian processes with scikit-learn's interface."""

from .estimators import IterativeGPRegressor

__version__ = "0.1.0.dev0"

__all__ = ["IterativeGPRegressor", "__version__"]
