"""Estimators over estimators."""

from ._love import LOVEPredictor
from ._posterior import love

__all__ = [
    "LOVEPredictor",
    "love",
]
