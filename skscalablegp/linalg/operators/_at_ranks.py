"""H whose products are computed by several ranks, each with its own tiles."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import chain, combinations, islice
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import TorchKernel
from ...workers import Ranks, RankWorkers, leading
from ._kernel import CrossOperator, KernelOperator, Workspace
from ._sent import SentOperator
from ._tiles import tile_size

# Products of fewer rows gain nothing: 1,024 rows and 16 columns take 3.4 ms of processor time on
# one rank and 4.3 ms on each of two (python benchmarks/ranks.py --rows 1024 --sides 16).
_LEAST_ROWS = 1024
# Each rank has at least so many tiles, so that their shares of the work are equal up to a tenth.
# For this, tiles are halved down to the second number of rows.
_TILES_A_RANK, _LEAST_TILE = 10, 128


def kernel_operator(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    X: Float[Tensor, "n d"],
    extra_noise: Float[Tensor, " n"] | None = None,
    *,
    workspace: Workspace | None = None,
    **settings: Any,
) -> KernelOperator:
    """H of this process, or of all ranks if they wait for its tasks; settings of `KernelOperator`.

    A workspace whose device has no double precision computes products in single precision
    (`SentOperator`).

    Products stay in this process for few rows, with KeOps, and for kernels that only have NumPy
    code.
    """
    ranks, settings["workspace"] = leading(), workspace
    sends = workspace is not None and workspace.sends
    if sends and X.dtype == torch.float32 and not kernel.numpy_code:
        return SentOperator(kernel, theta, X, extra_noise, **settings)
    alone = len(X) < _LEAST_ROWS or kernel.numpy_code or settings.get("products") == "keops"
    if ranks is None or ranks.size == 1 or alone:
        return KernelOperator(kernel, theta, X, extra_noise, **settings)
    settings["tile"] = _tile_for(len(X), ranks.size, X.device)
    return RankOperator(kernel, theta, X, extra_noise, ranks=ranks, **settings)


def _tile_for(n: int, size: int, device: torch.device) -> int:
    """Rows of a tile, few enough for equal shares of `size` ranks."""
    tile = tile_size(device)
    while tile > _LEAST_TILE and (n // tile) ** 2 / 2 < _TILES_A_RANK * size:
        tile //= 2
    return tile


class RankOperator(KernelOperator):
    """H of which every rank evaluates, or keeps, each p-th tile on and above the diagonal.

    Rank 0 sends the columns V of a product to all ranks and adds up their results: 2 (p - 1) n s
    numbers travel. Rows, blocks and dense matrices are evaluated by rank 0 alone, because sending
    an entry takes as long as evaluating it.

    Parameters
    ----------
    ranks : Ranks
    **settings : dict
        Of `KernelOperator`; the `tile` is the same at all ranks. With `keep` a rank stores its own
        tiles, n**2 / (2 p) numbers. Rank 0 alone adds the noise, so that the others have no
        `counts`.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        X: Float[Tensor, "n d"],
        extra_noise: Float[Tensor, " n"] | None = None,
        *,
        ranks: Ranks,
        **settings: Any,
    ):
        super().__init__(kernel, theta, X, extra_noise, **settings)
        self._ranks = ranks
        self._stored: dict[tuple[int, int], Tensor] = {}
        self._precise: RankOperator | None = None
        if self._keep:
            self._fused = None
            self._own = {(left.start, right.start) for left, right in self.own_pairs()}

    @property
    def shared(self) -> bool:
        """Whether the other ranks wait for tasks; otherwise this process does everything."""
        return leading() is self._ranks

    @property
    def _whole(self) -> bool:
        return super()._whole and not self.shared

    def own_pairs(self) -> Iterator[tuple[slice, slice]]:
        """The row ranges of this rank's tiles; those on the diagonal, which cost less, are last."""
        above = combinations(self._slices, 2)
        diagonal = ((rows, rows) for rows in self._slices)
        return islice(chain(above, diagonal), self._ranks.rank, None, self._ranks.size)

    def _tile(self, left: slice, right: slice) -> Float[Tensor, "a b"]:
        place = left.start, right.start
        tile = self._stored.get(place)
        if tile is None:
            tile = super()._tile(left, right)
            if self._keep and place in self._own:
                self._stored[place] = tile
        return tile

    @property
    def stored_entries(self) -> int:
        """The numbers of H that this rank keeps."""
        whole = 0 if self._H is None else self._H.numel()
        return whole + sum(tile.numel() for tile in self._stored.values())

    # ------------------------------------------------------------------ at rank 0

    @property
    def workers(self) -> RankWorkers:
        """This operator at all ranks, which build theirs when it is new."""
        return RankWorkers.of(self._ranks, self)

    def __reduce__(self) -> tuple:
        """At another rank, an operator with the tiles of that rank."""
        settings: dict[str, Any] = {
            "keep": self._keep,
            "products": self.products,
            "tile": self._tile_rows,
        }
        made = partial(RankOperator, ranks=self._ranks, **settings)
        return made, (self.kernel, self.theta, self.X, self.extra_noise)

    def _product(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        if not self.shared:
            return super()._product(V)
        return self.workers.sum(_own_product, V)[0]

    def _tiled_gradient(self, left: Tensor, right: Tensor | None, pairs: Any = None) -> Tensor:
        if not self.shared or right is None or pairs is not None:
            return super()._tiled_gradient(left, right, pairs)
        return self.workers.sum(_own_gradient, left, right)[0]

    def _in(self, dtype: torch.dtype) -> KernelOperator:
        if self._precise is None or self._precise.dtype != dtype:
            extra = None if self.extra_noise is None else self.extra_noise.to(dtype)
            settings: dict[str, Any] = {"tile": self._tile_rows, "products": self.products}
            settings["counts"] = self.counts.to(dtype)
            self._precise = RankOperator(
                self.kernel, self.theta, self.X.to(dtype), extra, ranks=self._ranks, **settings
            )
        return self._precise

    def cross(self, X: Float[Tensor, "m d"]) -> CrossOperator:
        return RankCross(self, X)


class RankCross(CrossOperator):
    """k(X, training rows) of which every rank evaluates each p-th tile in a product."""

    _operator: RankOperator

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "m s"]:
        op = self._operator
        if not op.shared or self.shape[0] * self.shape[1] < _LEAST_ROWS**2:
            return super().matmul(V)
        return op.workers.sum(_own_cross, self.X, V.to(op.dtype))[0]


# ---------------------------------------------------------------- on all ranks


def _own_product(op: RankOperator, V: Tensor) -> tuple[Tensor]:
    out = torch.zeros_like(V) if op._ranks.rank else V * op.noise[:, None]
    return (op._tiled_product(out, V, op.own_pairs()),)


def _own_gradient(op: RankOperator, left: Tensor, right: Tensor) -> tuple[Tensor]:
    return (op._tiled_gradient(left, right, op.own_pairs()),)


def _own_cross(op: RankOperator, X: Tensor, V: Tensor) -> tuple[Tensor]:
    cross = RankCross(op, X)
    return (cross._tiled_product(V, op._ranks.rank, op._ranks.size),)
