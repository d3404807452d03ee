"""Scalable Gaussian processes with scikit-learn's interface."""

from .meta import (
    HeteroscedasticRegressor,
    LOVEPredictor,
    MeanFunctionRegressor,
    StackedGPRegressor,
)
from .models.deep import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor
from .models.experts import PoERegressor
from .models.fourier import RFFRegressor, SSRFFRegressor
from .models.grid import KISSGPRegressor
from .models.inducing import SGPRRegressor, SVGPClassifier, SVGPRegressor
from .models.iterative import IterativeGPRegressor, RRCGRegressor
from .models.neighbors import NNGPRegressor
from .models.sampled import QSGPClassifier, QSGPRegressor, QSRVMRegressor

__version__ = "0.1.0.dev0"

__all__ = [
    "BSGDDKLRegressor",
    "HeteroscedasticRegressor",
    "IterativeGPRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "MeanFunctionRegressor",
    "MinimaxDKLRegressor",
    "NNGPRegressor",
    "PoERegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMRegressor",
    "RFFRegressor",
    "RRCGRegressor",
    "SCGDDKLRegressor",
    "SGPRRegressor",
    "SSRFFRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
    "StackedGPRegressor",
    "__version__",
]
