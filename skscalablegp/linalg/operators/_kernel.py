"""The regularised kernel matrix H = K(theta) + diag(noise), stored or evaluated in tiles."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import combinations_with_replacement, islice
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._devices import precise_device, sum_dtype
from ...kernels import TorchKernel
from ...workers import map_in_order
from ._base import LinearOperator, slope
from ._bound import BoundKernel, StationaryKernel, bind
from ._chosen import ChosenRows, EvaluatedRows
from ._products import CompiledTiles, LazyProducts, form_of
from ._tiles import add_to, cells, ranges, tile_size

T = TypeVar("T")

# Where a device has no room for a tile, it is halved down to this size.
_SMALLEST_TILE = 256
# What each row stands for by default: itself.
ONE = torch.ones(())
# From so many blocks of rows on, a step does not store the rows that it reads.
_MANY_BLOCKS = 8


def noise_of_means(single: Float[Tensor, " n"], counts: Float[Tensor, "*#n"]) -> Tensor:
    """Noise variances of the means of `counts` equal rows each, from those of single rows."""
    return single / counts


class Workspace:
    """What computes products, and an n x n buffer, so that training allocates H only once.

    Parameters
    ----------
    device : torch.device, optional
        What computes products, by default the device of the rows.

    Attributes
    ----------
    rows_on : torch.device or None
        Where the rows are: on the device, or on the CPU if it has no double precision.
    sends : bool
        Whether products alone are sent to the device (`SentOperator`).
    """

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device
        self.rows_on = None if device is None else precise_device(device)
        self.sends = self.rows_on != device
        self._buffer: Tensor | None = None
        self._beside: Workspace | None = None

    def matrix(self, n: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "n n"]:
        old = self._buffer
        if old is None or old.shape != (n, n) or old.dtype != dtype or old.device != device:
            self._buffer = old = torch.empty(n, n, dtype=dtype, device=device)
        return old

    def beside(self) -> Workspace:
        """The buffer for the same matrix on a second device."""
        if self._beside is None:
            self._beside = Workspace()
        return self._beside

    def release(self) -> None:
        """Release the memory of the buffers."""
        self._buffer = self._beside = None


class KernelOperator(LinearOperator):
    """H = K(theta) + diag(noise) over the rows of X.

    Parameters
    ----------
    kernel : TorchKernel
        A compiled kernel, whose white noise becomes part of the diagonal.
    theta : Tensor of shape (p,)
        Log hyperparameters, float64.
    X : Tensor of shape (n, d)
        Rows, whose dtype and device are those of the operator.
    extra_noise : Tensor of shape (n,) or None
        Known noise variances that are added to the diagonal, in the units of the (standardised)
        target.
    keep : bool, default=False
        Whether to store H (n**2 numbers) at the first product, rather than to evaluate tiles at
        every product.
    workspace : Workspace, optional
        Holds the stored matrix. When another operator uses the same workspace, this operator must
        no longer be used.
    products : {"tiles", "compiled", "keops"}, default="tiles"
        How products are computed without storage: tile by tile in torch's operations, in tiles
        that torch compiles, or by KeOps. Kernels without the formulas for it are computed in tiles.
    counts : Tensor of shape (n,) or (), default=1
        Numbers by which all noise is divided, those of equal rows for which a row stands.
    tile : int, optional
        Rows and columns of a tile; those of `tile_size` by default.

    Raises
    ------
    MemoryError
        By any access, if the device has no room even for tiles of 256 rows and columns.

    Notes
    -----
    Without storage a product evaluates n**2 / 2 kernel entries, since each off-diagonal tile serves
    both halves of H; with storage it evaluates none. Both count as one epoch. Beyond the data an
    operator takes the memory of H, or of a few tiles for each core. The cores work on different
    tiles, whose results are added in a fixed order, so that sums do not depend on the number of
    cores.
    """

    def __init__(  # noqa: PLR0913 (one for each setting)
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        X: Float[Tensor, "n d"],
        extra_noise: Float[Tensor, " n"] | None = None,
        *,
        keep: bool = False,
        workspace: Workspace | None = None,
        products: str = "tiles",
        counts: Float[Tensor, "*#n"] = ONE,
        tile: int | None = None,
    ):
        super().__init__(len(X), X.dtype, X.device)
        self.kernel = kernel
        self.theta = theta.detach().double().cpu()
        self.X = X
        self.extra_noise, self.counts = extra_noise, counts
        with torch.no_grad():
            self.noise = self._noise_at(self.theta).to(X.dtype)
            self.bound: BoundKernel = bind(kernel, self.theta, X)
            self._rows = self.bound.prepare(X)
            self._diag = self.bound.diag(X).to(X.dtype)
        self._keep = keep
        self._workspace = workspace or Workspace()
        self._H: Tensor | None = None
        self._use_tiles(tile or tile_size(X.device))
        self.products = products
        self._fused, self._lazy = self._means(products)
        # A user's own NumPy kernel may not be thread-safe, and holds the interpreter's lock anyway.
        alone = X.device.type != "cpu" or kernel.numpy_code
        self._map = map if alone else map_in_order

    def _means(self, products: str) -> tuple[CompiledTiles | None, LazyProducts | None]:
        """What computes the products of this kernel, if that is not torch's own operations."""
        form = None if products == "tiles" else form_of(self.bound)
        if form is None or not isinstance(self.bound, StationaryKernel):
            return None, None
        if any(self.bound.by_differences):  # which fused code does not compute
            return None, None
        if products == "keops":
            return None, LazyProducts(self.bound, form)
        return CompiledTiles(self.bound, form), None

    def _use_tiles(self, size: int) -> None:
        self._tile_rows, self._slices = size, ranges(self.shape[0], size)

    def _fitting(self, work: Callable[[], T]) -> T:
        """The result of work in tiles, which are halved while the device has no room for them."""
        while True:
            try:
                return work()
            except torch.OutOfMemoryError as error:
                refused = str(error).partition("\n")[0]
            # Outside of the handler, so that the tensors of the failed work are free.
            if self._keep and self._H is None:
                self._keep = False
                self._workspace.release()
            elif min(self._tile_rows, self.shape[0]) > _SMALLEST_TILE:
                self._use_tiles(max(_SMALLEST_TILE, min(self._tile_rows, self.shape[0]) // 2))
            else:
                raise MemoryError(
                    f"{self.device} has no memory left for tiles of {_SMALLEST_TILE} x "
                    f"{_SMALLEST_TILE} entries in addition to the vectors of {self.shape[0]} rows "
                    f"({refused}): use fewer rows or probes, or device='cpu'."
                )

    def _pairs(self) -> Iterable[tuple[slice, slice]]:
        """The row ranges of all tiles on and above the diagonal."""
        return combinations_with_replacement(self._slices, 2)

    def _tiles(
        self,
        work: Callable[[slice, slice], Any],
        pairs: Iterable[tuple[slice, slice]] | None = None,
    ) -> Iterator[tuple[slice, slice, Any]]:
        """Pairs of row ranges, all by default, each with the result of `work` for it."""
        pairs = self._pairs() if pairs is None else pairs
        return self._map(lambda pair: (*pair, work(*pair)), pairs)

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        self._count(self.shape[0] ** 2)
        if V.dtype != self.dtype:
            return self._in(V.dtype).matmul(V)
        return self._fitting(lambda: self._product(V))

    def _product(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        if self._keep:
            # H is symmetric, so that its rows may stand for its columns. In this order a product
            # reads memory without gaps: 1.3 to 1.9 times faster than V' H[:, right].
            H, VT = self._kept(), V.T.contiguous()
            parts = self._map(lambda right: torch.mm(VT, H[right].T), self._slices)
            return torch.cat([VT[:, :0], *parts], 1).T.contiguous()

        if self._lazy is not None:
            return self._lazy.product(self._rows, self._rows, V).addcmul_(V, self.noise[:, None])
        return self._tiled_product(V * self.noise[:, None], V)

    def _tiled_product(
        self, out: Tensor, V: Tensor, pairs: Iterable[tuple[slice, slice]] | None = None
    ) -> Float[Tensor, "n s"]:
        """`out` plus the products of tiles, all of them by default."""

        def products(left: slice, right: slice) -> tuple[Tensor, Tensor | None]:
            if self._fused is not None and left != right:
                return self._fused.both(*self._pair(left, right), V[right], V[left])
            tile = self._tile(left, right)
            return tile @ V[right], None if left == right else tile.T @ V[left]

        for left, right, (above, below) in self._tiles(products, pairs):
            add_to(out[left], above)
            if below is not None:
                add_to(out[right], below)
        return out

    def _in(self, dtype: torch.dtype) -> KernelOperator:
        """The same operator in another precision, without storage."""
        extra = self.extra_noise
        extra = None if extra is None else extra.to(dtype)
        return KernelOperator(
            self.kernel,
            self.theta,
            self.X.to(dtype),
            extra,
            products=self.products,
            counts=self.counts.to(dtype),
        )

    def _tile(self, left: slice, right: slice) -> Float[Tensor, "a b"]:
        """A noise-free tile; its entries k(x, x) are exact, not computed from a zero distance."""
        tile = self.bound.tile(*self._pair(left, right))
        if left == right:
            tile.diagonal().copy_(self._diag[left])
        return tile

    def _pair(self, left: slice, right: slice) -> tuple[Any, Any]:
        """The rows of a tile; on the diagonal the same object twice, which may save work."""
        rows = self._rows[left]
        return rows, rows if left == right else self._rows[right]

    def rows(self, idx: Int[Tensor, " b"] | slice) -> Float[Tensor, "b n"]:
        numbers = torch.arange(self.shape[0], device=self.device)[idx]
        self._count(len(numbers) * self.shape[0])
        if self._whole:
            return self._kept()[idx]
        chosen = self._rows[idx]
        out = self._fitting(lambda: self._between(chosen, self._rows))
        diagonal = (self._diag + self.noise)[idx]
        out[torch.arange(len(numbers), device=self.device), numbers] = diagonal
        return out

    def chosen(self, idx: Int[Tensor, " b"] | slice) -> ChosenRows:
        numbers = torch.arange(self.shape[0], device=self.device)[idx]
        if self._whole or len(numbers) * _MANY_BLOCKS > self.shape[0]:
            return super().chosen(idx)
        self._count(len(numbers) * self.shape[0])
        return EvaluatedRows(self, numbers)

    def _between(self, left: Any, right: Any) -> Float[Tensor, "a b"]:
        """k(left, right) without noise, as a new matrix."""
        out = torch.empty(len(left), len(right), dtype=self.dtype, device=self.device)

        def write(cell: tuple[slice, slice]) -> None:
            i, j = cell
            out[i, j] = self.bound.tile(left[i], right[j])

        deque(self._map(write, cells(len(left), len(right), self._tile_rows)), maxlen=0)
        return out

    def block(self, idx: Int[Tensor, " b"]) -> Float[Tensor, "b b"]:
        self._count(len(idx) ** 2)
        if self._H is not None:
            return self._H[idx[:, None], idx]
        chosen = self._rows[idx]
        # A repeated index repeats the diagonal entry, including the noise.
        out = self._fitting(lambda: self._between(chosen, chosen))
        return torch.where(idx[:, None] == idx, (self._diag + self.noise)[idx], out)

    def diag(self) -> Float[Tensor, " n"]:
        return self._diag + self.noise

    def bilinear_grad(self, left: Tensor, right: Tensor | None = None) -> Float[Tensor, " p"]:
        """The gradient in theta of ``sum_c left[:, c]' H right[:, c]``, or of ``sum(left * H)``.

        Parameters
        ----------
        left, right : Tensor of shape (n, s)
            Paired columns. Without `right`, `left` is a symmetric n x n weight matrix W.

        Returns
        -------
        grad : Tensor of shape (p,)
            One entry for each free log hyperparameter, float64.

        Notes
        -----
        The cost is about that of a product with 2 s columns, and counts as one epoch.
        """
        self._count(self.shape[0] ** 2)
        left = left.to(self.dtype)
        right = None if right is None else right.to(self.dtype)
        diagonal = left.diagonal() if right is None else (left * right).sum(1)
        total = self._fitting(lambda: self._tiled_gradient(left, right))
        own = self._diagonal_grad(diagonal)
        return (total.to(own) + own).cpu()

    def _tiled_gradient(
        self,
        left: Tensor,
        right: Tensor | None,
        pairs: Iterable[tuple[slice, slice]] | None = None,
    ) -> Float[Tensor, " p"]:
        """The part of the gradient off the diagonal, from all tiles by default."""
        if right is None:
            weights = lambda i, j: left[i, j] * 2  # noqa: E731
        else:
            both, swapped = torch.cat([left, right], 1), torch.cat([right, left], 1).T.contiguous()
            weights = lambda i, j: torch.mm(both[i], swapped[:, j])  # noqa: E731

        def gradient(i: slice, j: slice) -> Tensor:
            W = weights(i, j)
            if i == j:
                W.mul_(0.5).fill_diagonal_(0)
            return self.bound.tile_grad(*self._pair(i, j), W)

        grad = torch.zeros(len(self.theta), dtype=sum_dtype(self.device), device=self.device)
        for _, _, part in self._tiles(gradient, pairs):
            grad += part.to(grad.device)
        return grad

    def _noise_at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, " n"]:
        noise = self.kernel.noise(theta, self.X)
        noise = noise if self.extra_noise is None else noise + self.extra_noise
        return noise_of_means(noise, self.counts)

    def _diagonal_grad(self, weights: Float[Tensor, " n"]) -> Float[Tensor, " p"]:
        """The part of the diagonal, on which k(x, x) is exact as in `_tile`."""
        with torch.enable_grad():
            theta = self.theta.to(precise_device(self.device), non_blocking=True, copy=True)
            theta.requires_grad_(True)
            diagonal = self.kernel.diag(theta, self.X) + self._noise_at(theta)
            return slope((diagonal * weights).sum(), theta)

    def to_dense(self) -> Float[Tensor, "n n"]:
        self._count(self.shape[0] ** 2)
        if self._H is not None:
            return self._H.clone()
        return self._fill(torch.empty(self.shape, dtype=self.dtype, device=self.device))

    @property
    def _whole(self) -> bool:
        """Whether rows are read from the stored matrix."""
        return self._keep or self._H is not None

    def _kept(self) -> Float[Tensor, "n n"]:
        if self._H is None:
            self._H = self._fill(self._workspace.matrix(self.shape[0], self.dtype, self.device))
        return self._H

    def leave_workspace(self) -> None:
        """Store H in a new buffer from now on, because the shared one holds a factor of H."""
        self._workspace, self._H = Workspace(), None

    def release_dense(self) -> Float[Tensor, "n n"]:
        """H in the shared buffer, to be overwritten by its factor; one epoch. Ends `keep`."""
        self._count(self.shape[0] ** 2)
        H = self._kept()
        self._H, self._keep = None, False
        return H

    def _fill(self, out: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
        def write(left: slice, right: slice) -> None:
            tile = self._tile(left, right)
            out[left, right] = tile
            if left != right:
                out[right, left] = tile.T

        deque(self._tiles(write), maxlen=0)
        out.diagonal().add_(self.noise)
        return out

    def cross(self, X: Float[Tensor, "m d"]) -> CrossOperator:
        """k(X, training rows) as an operator, for predictions."""
        return CrossOperator(self, X)


class CrossOperator:
    """The m x n matrix k(X, training rows) without noise, evaluated in tiles.

    Parameters
    ----------
    operator : KernelOperator
        Holds the training rows and the kernel.
    X : Tensor of shape (m, d)
        New rows.
    """

    def __init__(self, operator: KernelOperator, X: Float[Tensor, "m d"]):
        self._operator = operator
        self._rows = operator.bound.prepare(X)
        self.X = X
        self.shape = (len(X), operator.shape[0])

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "m s"]:
        """k(X, training rows) V in O(m n d) time and the memory of a few tiles."""
        op = self._operator
        V = V.to(op.dtype)
        if op._lazy is not None:
            return op._lazy.product(self._rows, op._rows, V)
        return op._fitting(lambda: self._tiled_product(V))

    def _tiled_product(self, V: Tensor, part: int = 0, parts: int = 1) -> Float[Tensor, "m s"]:
        """The sum of the products of every `parts`-th tile, beginning with number `part`."""
        op = self._operator

        def share(cell: tuple[slice, slice]) -> tuple[slice, Tensor]:
            left, right = cell
            return left, op.bound.tile(self._rows[left], op._rows[right]) @ V[right]

        tiles = islice(cells(*self.shape, op._tile_rows), part, None, parts)
        out = V.new_zeros(self.shape[0], V.shape[1])
        for left, product_of_tile in op._map(share, tiles):
            add_to(out[left], product_of_tile)
        return out

    def to_dense(self) -> Float[Tensor, "m n"]:
        """The whole m x n matrix."""
        return self._operator._between(self._rows, self._operator._rows)

    def prior_diag(self) -> Float[Tensor, " m"]:
        """k(x, x) of the new rows."""
        with torch.no_grad():
            return self._operator.bound.diag(self.X).to(self._operator.dtype)

    def prior_noise(self) -> Float[Tensor, " m"]:
        """The variance of the kernel's white noise at the new rows."""
        op = self._operator
        with torch.no_grad():
            return op.kernel.noise(op.theta, self.X).to(op.dtype)

    def prior_covariance(self) -> Float[Tensor, "m m"]:
        """k(X, X) without noise."""
        covariance = self._operator._between(self._rows, self._rows)
        covariance.diagonal().copy_(self.prior_diag())
        return covariance
