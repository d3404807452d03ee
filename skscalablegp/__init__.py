"""Scalable Gaussian processes with scikit-learn's interface."""

from .estimators import (
    IterativeGPRegressor,
    KISSGPRegressor,
    LOVEPredictor,
    PoERegressor,
    QSGPRegressor,
    RFFRegressor,
    RRCGRegressor,
    SSRFFRegressor,
)

__version__ = "0.1.0.dev0"

__all__ = [
    "IterativeGPRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "PoERegressor",
    "QSGPRegressor",
    "RFFRegressor",
    "RRCGRegressor",
    "SSRFFRegressor",
    "__version__",
]
