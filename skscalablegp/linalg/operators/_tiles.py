"""The sizes of tiles, in which kernel matrices are evaluated, and sums of their products."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
import torch
from torch import Tensor

# Two float32 tiles of this size fit the level-2 cache of two cores. Products with tiles of 256, 512
# and 1,024 rows take 0.15, 0.12 and 0.13 s on two cores and 0.22, 0.21 and 0.28 s on one, with 8
# columns as with 26 (python benchmarks/cores.py --part product --tile 256 512 1024 --columns 8).
_CPU_TILE = 512
_GPU_TILE = 8192


def tile_size(device: torch.device) -> int:
    """Rows and columns of one tile on this device."""
    return _CPU_TILE if device.type == "cpu" else _GPU_TILE


def ranges(n: int, step: int) -> list[slice]:
    """Ranges of at most ``step`` numbers that cover those below n."""
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def cells(a: int, b: int, tile: int) -> Iterable[tuple[slice, slice]]:
    """Tiles of an a x b matrix; if there are few rows, tiles have more columns."""
    height = max(1, min(a, tile))
    return product(ranges(a, height), ranges(b, tile * tile // height))


def add_to(out: Tensor, part: Tensor) -> None:
    """Add in place; on the CPU without torch's threads, which would compete with the workers."""
    if out.device.type == "cpu":
        np.add(out.numpy(), part.numpy(), out=out.numpy())
    else:
        out += part
