"""What deep kernels compute of rows, in this process or at the ranks that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import RowSource
from ...workers import RankWorkers, Workers
from ._features import DeepFeatures


@dataclass(frozen=True, eq=False)
class DeepRows:
    """Rows, and the features that are evaluated there.

    Attributes
    ----------
    source : RowSource
    features : DeepFeatures
    """

    source: RowSource
    features: DeepFeatures


class DrawnRows(NamedTuple):
    """The rows of a step.

    Attributes
    ----------
    phi : Tensor of shape (b, m)
        Their features, differentiable in the tensors.
    Y : Tensor of shape (b, t)
    known : Tensor of shape (b,) or None
        Known noise variances.
    other : Tensor of shape (b, m) or None
        Features of an independent batch.
    other_known : Tensor of shape (b,) or None
    """

    phi: Float[Tensor, "b m"]
    Y: Float[Tensor, "b t"]
    known: Tensor | None
    other: Tensor | None
    other_known: Tensor | None


def drawn_rows(
    work: Workers, tensors: Sequence[Tensor], index: Tensor, others: Tensor | None
) -> DrawnRows:
    """The rows of a batch by number, and those of an independent one if there is one."""
    if isinstance(work, RankWorkers):
        return _from_ranks(work, tensors, index, others)
    source, features = work.own.source, work.own.features
    rows, other, other_known = source.take(index), None, None
    if others is not None:
        more = source.take(others)
        with torch.no_grad():
            other = features(tensors, more.X)
        other_known = more.noise if source.noisy else None
    known = rows.noise if source.noisy else None
    return DrawnRows(features(tensors, rows.X), rows.Y, known, other, other_known)


def _from_ranks(
    work: RankWorkers, tensors: Sequence[Tensor], index: Tensor, others: Tensor | None
) -> DrawnRows:
    b, every = len(index), index if others is None else torch.cat([index, others])
    sent = [tensor.detach() for tensor in tensors]
    found = work.gather(_evaluated, every, tensors=sent)
    phi, Y, *known = (torch.from_numpy(part).to(sent[0].device) for part in found)
    first = known[0][:b] if known else None
    shared = _Shared.apply(work, index, phi[:b], *tensors)
    if others is None:
        return DrawnRows(shared, Y[:b], first, None, None)
    return DrawnRows(shared, Y[:b], first, phi[b:], known[0][b:] if known else None)


class _Shared(torch.autograd.Function):
    """Features that ranks have evaluated, each at its rows, as a function of the tensors."""

    @staticmethod
    def forward(ctx, work: RankWorkers, index: Tensor, phi: Tensor, *tensors: Tensor) -> Tensor:
        ctx.work, ctx.index, ctx.tensors = work, index, [t.detach() for t in tensors]
        return phi.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[3:]
        sums = iter(
            ctx.work.sum(
                _gradients,
                needed,
                rows=ctx.index,
                along=[grad.contiguous()],
                tensors=ctx.tensors,
            )
        )
        found = (
            next(sums).to(tensor) if need else None
            for need, tensor in zip(needed, ctx.tensors, strict=True)
        )
        return None, None, None, *found


# ---------------------------------------------------------------- on all ranks


@torch.no_grad()
def _evaluated(rows: DeepRows, own: np.ndarray, *tensors: Tensor) -> tuple[np.ndarray, ...]:
    """Features, targets and known noise, if there is any, of some rows."""
    some = rows.source.take(own)
    known = [some.noise] if rows.source.noisy else []
    parts = rows.features(tensors, some.X), some.Y, *known
    return tuple(part.cpu().numpy() for part in parts)


def _gradients(
    rows: DeepRows, own: np.ndarray, grad: Tensor, needed: tuple[bool, ...], *tensors: Tensor
) -> tuple[Tensor, ...]:
    """The gradients in the needed tensors, given those in the features of some rows."""
    leaves = [
        tensor.clone().requires_grad_(need) for tensor, need in zip(tensors, needed, strict=True)
    ]
    wanted = [leaf for leaf, need in zip(leaves, needed, strict=True) if need]
    found: tuple[Tensor | None, ...] = (None,) * len(wanted)
    if len(own):
        with torch.enable_grad():
            phi = rows.features(leaves, rows.source.take(own).X)
            found = torch.autograd.grad(phi, wanted, grad, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    return tuple((torch.zeros_like(x) if g is None else g).double() for g, x in pairs)
