"""H on the CPU, whose products are computed by a device that has no double precision."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float
from torch import Tensor

from ...kernels import TorchKernel
from ._kernel import ONE, CrossOperator, KernelOperator, Workspace


class SentOperator(KernelOperator):
    """H in single precision, for whose products a device gets the columns and returns the result.

    Everything else stays on the CPU, where solvers add up in double precision: rows, blocks, dense
    matrices, and products with columns in double precision. A product waits for the device once,
    and 2 n s numbers travel.

    Parameters
    ----------
    kernel, theta, X, extra_noise :
        As for `KernelOperator`, on the CPU and in single precision.
    workspace : Workspace
        Its device computes the products, with the buffer `Workspace.beside`.
    counts : Tensor of shape (n,) or (), default=1
    tile : int, optional
    **settings : dict
        How the device multiplies: `keep` and `products` of `KernelOperator`.
    """

    def __init__(
        self,
        kernel: TorchKernel,
        theta: Float[Tensor, " p"],
        X: Float[Tensor, "n d"],
        extra_noise: Float[Tensor, " n"] | None = None,
        *,
        workspace: Workspace,
        counts: Float[Tensor, "*#n"] = ONE,
        tile: int | None = None,
        **settings: Any,
    ):
        super().__init__(
            kernel, theta, X, extra_noise, workspace=workspace, counts=counts, tile=tile
        )
        on = workspace.device
        self._there = KernelOperator(
            kernel,
            theta,
            X.to(on, non_blocking=True),
            None if extra_noise is None else extra_noise.to(on, non_blocking=True),
            workspace=workspace.beside(),
            counts=counts.to(on, non_blocking=True),
            tile=tile,
            **settings,
        )

    def _product(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        there = self._there
        return there.matmul(V.to(there.device, non_blocking=True)).cpu()

    def _tiled_gradient(self, left: Tensor, right: Tensor | None, pairs: Any = None) -> Tensor:
        if right is None or pairs is not None:
            return super()._tiled_gradient(left, right, pairs)
        there = self._there
        a, b = (part.to(there.device, non_blocking=True) for part in (left, right))
        return there._fitting(lambda: there._tiled_gradient(a, b)).cpu().double()

    def cross(self, X: Float[Tensor, "m d"]) -> CrossOperator:
        return SentCross(self, X)


class SentCross(CrossOperator):
    """k(X, training rows), whose products are computed by the device."""

    _operator: SentOperator

    def matmul(self, V: Float[Tensor, "n s"]) -> Float[Tensor, "m s"]:
        there = self._operator._there
        rows = self.X.to(there.device, non_blocking=True)
        return there.cross(rows).matmul(V.to(there.device, there.dtype, non_blocking=True)).cpu()
