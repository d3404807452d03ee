"""The memory that fits of models by linear solves need."""

from __future__ import annotations

import torch

from ...core import Choice, Machine, MemoryNeed, Subsets
from ...linalg.operators import tile_size

# Vectors of n numbers that solves, probes and a preconditioner hold.
_VECTORS = 400


def matrix_bytes(n: int, dtype: Choice) -> int:
    """Bytes of the kernel matrix in training."""
    return n * n * getattr(torch, dtype.value).itemsize


def memory_needs(
    n: int,
    machine: Machine,
    dtype: Choice,
    exact: bool,
    posterior: Choice,
    subsets: Subsets | None,
) -> tuple[MemoryNeed, ...]:
    """The memory of each part of a fit, with a setting that needs less."""
    tile, needs = min(n, tile_size(machine.device)), []
    if exact:
        needs.append(
            MemoryNeed(
                3 * matrix_bytes(n, dtype),
                f"Exact training on {n} rows (three {n} x {n} matrices)",
                "use solver='cg', which multiplies without storing the matrix, or fewer rows",
            )
        )
    if posterior.value == "exact":
        needs.append(
            MemoryNeed(
                16 * n * n,
                f"An exact posterior for {n} rows (a float64 factor and its matrix)",
                "use posterior='pathwise', whose memory is linear in the rows",
            )
        )
    tiles = f"({_VECTORS} vectors and three {tile} x {tile} tiles)"
    needs.append(
        MemoryNeed(
            8 * (_VECTORS * n + 3 * tile * tile),
            f"Training on {n} rows in tiles {tiles}",
            "use fewer rows, or SVGPRegressor, which reads them in batches",
        )
    )
    if subsets is not None:
        size = subsets.size
        needs.append(
            MemoryNeed(
                24 * size * size,
                f"The exact start on subset_size={size} rows (three {size} x {size} matrices)",
                "use a smaller subset_size",
            )
        )
    return tuple(needs)
