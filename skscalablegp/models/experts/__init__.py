"""Products of Gaussian-process experts."""

from ._poe import PoERegressor
from ._posterior import COMBINATIONS

__all__ = [
    "COMBINATIONS",
    "PoERegressor",
]
