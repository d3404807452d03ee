"""Series cut at a random term, without bias."""

from ._cg import WeightedColumns, cg_stream, roulette_cg
from ._distributions import (
    ExponentialTruncation,
    FixedTruncation,
    GeometricTruncation,
    ReciprocalTruncation,
    Truncation,
    TruncationDistribution,
)
from ._resolve import resolve_truncation
from ._roulette import RouletteSum, roulette_weights, single_sample
