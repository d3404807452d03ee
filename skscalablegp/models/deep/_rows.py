"""What deep kernels compute of rows, in this process or at the ranks that hold them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...core.data import RowSource
from ...linalg.gradients import Rows
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


def drawn_rows(work: Workers, tensors: Sequence[Tensor], *batches: Tensor) -> list[Rows]:
    """The rows of batches by number, with their features in place of the inputs.

    Those of the first batch are differentiable in the tensors.
    """
    if isinstance(work, RankWorkers):
        sent = [tensor.detach() for tensor in tensors]
        parts = work.gather(_evaluated, torch.cat(batches), *sent)
        rows = Rows.of(*(torch.from_numpy(part).to(sent[0].device) for part in parts))
        places = torch.arange(len(rows)).split([len(index) for index in batches])
        first, *others = map(rows.take, places)
        return [replace(first, X=_Shared.apply(work, batches[0], first.X, *tensors)), *others]
    source, features, found = work.own.source, work.own.features, []
    for index in batches:
        rows = source.take(index)
        with torch.set_grad_enabled(not found):
            found.append(replace(rows, X=features(tensors, rows.X)))
    return found


class _Shared(torch.autograd.Function):
    """Features that ranks have evaluated, each at its rows, as a function of the tensors."""

    @staticmethod
    def forward(ctx, work: RankWorkers, index: Tensor, phi: Tensor, *tensors: Tensor) -> Tensor:
        ctx.work, ctx.index, ctx.tensors = work, index, [t.detach() for t in tensors]
        return phi.clone()

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[3:]
        given = needed, *ctx.tensors
        sums = iter(ctx.work.sum(_gradients, *given, rows=ctx.index, along=[grad.contiguous()]))
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
