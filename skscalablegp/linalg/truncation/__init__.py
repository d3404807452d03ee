"""Unbiased estimates of sums of series that are truncated at a random term."""

from ._cg import WeightedColumns, cg_stream, roulette_cg
from ._distributions import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
    Truncation,
    TruncationDistribution,
    resolve_truncation,
)
from ._roulette import RouletteSum, roulette_weights, single_sample
