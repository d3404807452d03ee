"""Products of Gaussian-process experts."""

from ._poe import PoERegressor
from ._posterior import COMBINATIONS
