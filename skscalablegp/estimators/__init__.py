"""The public estimators."""

from ._dkl import BSGDDKLRegressor, MinimaxDKLRegressor, SCGDDKLRegressor
from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._poe import PoERegressor
from ._qsgp import QSGPRegressor
from ._qsgp_classifier import QSGPClassifier
from ._qsrvm import QSRVMRegressor
from ._rff import RFFRegressor, SSRFFRegressor
from ._sgpr import SGPRRegressor
from ._svgp import SVGPRegressor
from ._svgp_classifier import SVGPClassifier

__all__ = [
    "BSGDDKLRegressor",
    "KISSGPRegressor",
    "LOVEPredictor",
    "MinimaxDKLRegressor",
    "PoERegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMRegressor",
    "RFFRegressor",
    "SCGDDKLRegressor",
    "SGPRRegressor",
    "SSRFFRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
]
