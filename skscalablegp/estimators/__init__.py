"""The public estimators."""

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
    "KISSGPRegressor",
    "LOVEPredictor",
    "PoERegressor",
    "QSGPClassifier",
    "QSGPRegressor",
    "QSRVMRegressor",
    "RFFRegressor",
    "SGPRRegressor",
    "SSRFFRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
]
