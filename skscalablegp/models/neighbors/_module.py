"""Predictions from nearest training rows as a torch module."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

from ...core.posteriors import JointMoments, KernelModule, Moments, PosteriorModule
from ...linalg.gradients import GPProblem
from ._local import NEAREST, gather
from ._metric import Metric
from ._objectives import local_factor

scan: Callable[..., Any] | None = None
if torch.__version__ >= "2.13":
    # Earlier versions do not write it into ONNX files.
    from torch._higher_order_ops import scan

# Pivots are at least this share of the prior variance, where copies of rows make a matrix singular.
_SMALLEST_PIVOT = 1e-12
# Equations of a step of the loop in ONNX files. Their conversion takes longer with larger blocks.
_BLOCK = 8
# Noise that keeps equal new rows from being singular, relative to the prior variance.
_SAME = 1e-12


class NeighborModule(PosteriorModule):
    """`NeighborPosterior` in double precision, with a search through all rows.

    Parameters
    ----------
    problem : GPProblem
        All training rows.
    theta : Tensor of shape (p,)
    metric : Metric
    n_neighbors : int
    power, scale : float
        As in `NeighborPosterior`.

    Notes
    -----
    O(n q + m^3 / 3) a row, and n numbers of memory.
    """

    def __init__(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        metric: Metric,
        n_neighbors: int,
        power: float,
        scale: float,
    ):
        super().__init__()
        self.kernel, self.metric = KernelModule(problem.kernel, theta), metric.module()
        self._m, self._power, self._scale = n_neighbors, power, scale
        points = torch.as_tensor(metric(problem.X), dtype=torch.float64)
        every = torch.arange(len(problem.X), device=problem.X.device)[:, None]
        noise = gather(problem, theta, problem.X, every)[1][:, 0]
        tensors = {
            "points": points,
            "norms": points.square().sum(1),
            "rows": problem.X,
            "targets": problem.Y,
            "known": noise,
        }
        for name, value in tensors.items():
            self.register_buffer(name, value.detach().double().cpu().clone())

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        """Each row given its training neighbours and the rows before it, as in `chain`."""
        sets, (b, q) = X.shape[:2], X.shape[:2]
        mean, variance, noise = (part.unflatten(0, sets) for part in self.moments(X.flatten(0, 1)))
        away = self.norms - 2 * self.metric(X.flatten(0, 1)) @ self.points.T
        near = away.topk(self._m, largest=False).indices.unflatten(0, sets)
        half = X.new_zeros(b, 0, q)
        for i in range(q):
            Z = torch.cat([self.rows[near[:, i]], X[:, :i]], 1)
            own = self.kernel.diag(X[:, i : i + 1])
            known = torch.cat([self.known[near[:, i]], (_SAME * own).expand(b, i)], 1)
            H = self.kernel.cross(Z, Z) + torch.diag_embed(known)
            k = self.kernel.cross(Z, X[:, i : i + 1])
            w = torch.linalg.solve(H, k)
            left = (own[:, 0] - (w * k).sum((1, 2))).clamp_min(torch.finfo(X.dtype).tiny)
            unit = torch.zeros(q, dtype=X.dtype, device=X.device)
            unit[i] = 1
            row = w[:, self._m :].mT @ half + left.sqrt()[:, None, None] * unit
            half = torch.cat([half, row], 1)
        # Correlations from the chain, and the variances of single rows.
        half = half * (variance.sqrt() / half.norm(dim=2))[:, :, None]
        return JointMoments(mean, half @ half.mT, noise)

    def moments(self, X: Float[Tensor, "b d"]) -> Moments:
        # Squared distances but for the norms of the new rows, which do not change the order.
        away = self.norms - 2 * self.metric(X) @ self.points.T
        near = away.topk(self._m, largest=False).indices
        Z, Y, noise = self.rows[near], self.targets[near], self.known[near]
        H = self.kernel.cross(Z, Z) + torch.diag_embed(noise)
        k, prior = self.kernel.cross(Z, X[:, None]), self.kernel.diag(X)
        half = _half_solved(H, torch.cat([k, Y], 2), prior)
        mean = (half[:, :, :1] * half[:, :, 1:]).sum(1)
        variance = (prior - half[:, :, 0].square().sum(1)).clamp_min(0)
        white = self.kernel.noise(X)
        if self._power > 0:
            surprise = half[:, :NEAREST, 1:].square().mean((1, 2))
            factor = local_factor(self._scale * surprise, self._power)
            variance, white = factor * variance, factor * white
        return Moments(mean, variance, white)


def _half_solved(
    H: Float[Tensor, "b m m"], B: Float[Tensor, "b m s"], prior: Float[Tensor, " b"]
) -> Float[Tensor, "b m s"]:
    """L^-1 B for H = L L'."""
    if torch.onnx.is_in_onnx_export() and scan is not None and H.shape[1] > _BLOCK:
        return _eliminated_in_blocks(H, B, prior)
    if not torch.compiler.is_compiling() and not torch.onnx.is_in_onnx_export():
        L, info = torch.linalg.cholesky_ex(H)
        if not bool(info.any()):
            return torch.linalg.solve_triangular(L, B, upper=False)
    return _eliminated(H, B, prior)


def _eliminated(H: Tensor, B: Tensor, prior: Tensor) -> Float[Tensor, "b m s"]:
    """The same by elimination in elementwise operations, which every runtime has.

    Each step takes one equation out of [H | B]. Its row, divided by the root of its pivot, is a row
    of [L' | L^-1 B]. m^3 / 3 operations for each row.
    """
    return _first_rows(torch.cat([H, B], 2), H.shape[1], _SMALLEST_PIVOT * prior)


def _first_rows(M: Tensor, m: int, least: Tensor) -> Float[Tensor, "b m k"]:
    """The rows of L^-1 M for the factor L of the first m columns of M (b, m, m + k)."""
    least, rows = least[:, None, None], []
    for step in range(m):
        row, column = M[:, :1], M[:, :, :1]
        pivot = torch.maximum(row[:, :, :1], least)
        rows.append(row[:, :, m - step :] / pivot.sqrt())
        M = M[:, 1:, 1:] - column[:, 1:] * (row[:, :, 1:] / pivot)
    return torch.cat(rows, 1)


def _eliminated_in_blocks(
    H: Tensor, B: Tensor, prior: Tensor, repeated: Callable[..., Any] | None = scan
) -> Float[Tensor, "b m s"]:
    """The same by one loop over blocks of equations, whose size does not grow with m.

    A step of the loop takes a block of equations out of [H | B], by single steps inside the block
    and a product outside, and moves the rest up, so that every step has the same shapes. There are
    2 m^3 operations for each row, most of them in products.

    Parameters
    ----------
    H, B, prior
        As in `_eliminated`.
    repeated : callable
        ``repeated(step, state, counter)`` runs the loop.
    """
    m, over = H.shape[1], -H.shape[1] % _BLOCK
    M = torch.cat([pad(H, (0, over, 0, over)), pad(B, (0, 0, 0, over))], 2)
    least, rest = _SMALLEST_PIVOT * prior, m + over - _BLOCK

    def step(M: Tensor, _: Tensor) -> tuple[Tensor, Tensor]:
        rows = _first_rows(M[:, :_BLOCK], _BLOCK, least)
        left = M[:, _BLOCK:, _BLOCK:] - rows[:, :, :rest].mT @ rows
        moved = torch.cat([pad(left[:, :, :rest], (0, _BLOCK)), left[:, :, rest:]], 2)
        return pad(moved, (0, 0, 0, _BLOCK)), rows[:, :, rest:].clone()

    assert repeated is not None
    counter = torch.zeros((m + over) // _BLOCK, 1, dtype=H.dtype)
    _, blocks = repeated(step, M, counter)
    return blocks.transpose(0, 1).flatten(1, 2)[:, :m]
