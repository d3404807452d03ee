"""Estimators over estimators."""

from ._love import LOVEPredictor

__all__ = ["LOVEPredictor"]
