"""Estimators over estimators."""

from ._heteroscedastic import HeteroscedasticRegressor
from ._love import LOVEPredictor

__all__ = ["HeteroscedasticRegressor", "LOVEPredictor"]
