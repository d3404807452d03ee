"""The public estimators."""

from ._kissgp import KISSGPRegressor
from ._love import LOVEPredictor
from ._poe import PoERegressor
from ._rff import RFFRegressor, SSRFFRegressor
from ._sgpr import SGPRRegressor
from ._svgp import SVGPRegressor
from ._svgp_classifier import SVGPClassifier

__all__ = [
    "KISSGPRegressor",
    "LOVEPredictor",
    "PoERegressor",
    "RFFRegressor",
    "SGPRRegressor",
    "SSRFFRegressor",
    "SVGPClassifier",
    "SVGPRegressor",
]
