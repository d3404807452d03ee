"""Randomised truncation: sums cut short at random without a bias.

A sum of n terms is cut after a random number J of them, and what is kept is given weights that
restore the expectation (Potapczynski et al. 2021, section 2.3). A distribution of J is settings
(``get_params``); ``on(n)`` binds it to a series of n terms.
"""

from ._cg import WeightedColumns, WeightedSolve, cg_stream, roulette_cg
from ._distributions import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
    Truncation,
    TruncationDistribution,
)
from ._roulette import RouletteSum, roulette_weights, single_sample

__all__ = [
    "ExponentialTruncation",
    "FixedTruncation",
    "GeometricTruncation",
    "ReciprocalTruncation",
    "RouletteSum",
    "Truncation",
    "TruncationDistribution",
    "WeightedColumns",
    "WeightedSolve",
    "cg_stream",
    "roulette_cg",
    "roulette_weights",
    "single_sample",
]
