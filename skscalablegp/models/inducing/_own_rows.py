"""Training by batches of rows of which each rank has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ...core import SharedSource
from ...core.data import column_limits, rows_beyond, shuffled
from ...linalg.blocks import watched
from ...ranks import Parts
from ._bound import RowStatistics, WhitenedBelief, Whitening, variational_bound
from ._collapsed import Blocks
from ._stepper import SparseModel, SparseRows, SparseStepper


@dataclass(frozen=True, eq=False, kw_only=True)
class SharedRows(SparseRows):
    """Rows of which each rank has some.

    `take` fetches rows by number, and `total` adds up sums of the ranks. `noise` has no entries,
    only a precision and a device.
    """

    parts: Parts
    shared: SharedSource

    @classmethod
    def shared_of(cls, source: SharedSource, counts: None = None) -> SharedRows:
        """The rows of a source; equal ones are not merged."""
        with watched(None):
            parts = source.sources(SparseRows.of)
        noise = torch.empty(0, dtype=source.dtype, device=source.device)
        return cls(parts.own.source, noise, parts=parts, shared=source)

    def __len__(self) -> int:
        return len(self.shared)

    def take(self, index: Tensor | slice) -> tuple[Any, ...]:
        if isinstance(index, Tensor):
            chosen = index.cpu().numpy()
        else:
            chosen = np.arange(len(self))[index]
        with watched(None):
            places, found = self.parts.picked(_taken, chosen)
        order = np.argsort(np.concatenate(places))
        columns = (np.concatenate(arrays)[order] for arrays in zip(*found, strict=True))
        return tuple(torch.from_numpy(column).to(self.noise.device) for column in columns)

    def stepper(self, model: SparseModel, *begin: Any) -> SparseStepper:
        return SharedStepper(model, self, *begin)

    def noise_range(self) -> tuple[float, float]:
        with watched(None):
            low, high = zip(*self.parts.each(SparseRows.noise_range), strict=True)
        return min(low), max(high)

    def check_separable(self, white: Tensor) -> None:
        """Equal rows may be at several ranks, where they are not searched."""

    def far(self) -> np.ndarray:
        first = np.cumsum([0, *self.parts.sizes[:-1]])
        with watched(None):
            found = self.parts.each(_far, column_limits(self.shared.X))
        return np.concatenate([rows + start for rows, start in zip(found, first, strict=True)])

    def shuffled(self, batch_size: int, generator: Generator) -> Iterator[Tensor]:
        return shuffled(len(self), batch_size, generator)

    def total(
        self, work: Callable[..., tuple[Tensor, ...]], *args: Any, tensors: Sequence[Tensor] = ()
    ) -> tuple[Tensor, ...]:
        # The time budget must not end a step that all ranks take.
        with watched(None):
            return self.parts.total(_of_part, work, *args, tensors=tensors)

    def total_of(
        self, chosen: Tensor, work: Callable[..., tuple[Tensor, ...]], *args: Any, **kwargs: Any
    ) -> tuple[Tensor, ...]:
        """The sums over ranks of ``work(rows, own, *args, *tensors)`` for some rows by number."""
        with watched(None):
            return self.parts.total_of(chosen, work, *args, **kwargs)


class SharedStepper(SparseStepper):
    """Each rank evaluates the rows that it has of a batch, and rank 0 adds up and steps."""

    rows: SharedRows

    def _batch_sums(self, batch: Tensor, weight: float, eval_gradient: bool) -> RowStatistics:
        belief, Z = self.belief.whitened(), self.Z.detach()
        tensors = [self._theta.detach(), Z, belief.mean, belief.covariance, belief.log_det]
        given = self.model, weight, eval_gradient
        *sums, of_theta, of_Z = self.rows.total_of(batch, batch_sums, *given, tensors=tensors)
        if not bool(torch.isfinite(sums[0]).all()):
            raise torch.linalg.LinAlgError("k(Z, Z) has no factor at a rank")
        if eval_gradient:
            n = len(self.rows)
            self._adam.zero_grad()
            for leaf, grad in ((self._theta, of_theta), (self._points, of_Z * self.unit)):
                if leaf.requires_grad:
                    leaf.grad = (grad / n).to(leaf)
        return RowStatistics(*sums)

    def _expected(self, white: Whitening) -> float:
        belief = self.belief.whitened()
        tensors = [self._theta.detach(), self.Z.detach(), *vars(belief).values()]
        (total,) = self.rows.total(expected_sum, self.model, tensors=tensors)
        return float(total)


# ---------------------------------------------------------------- on all ranks


def batch_sums(  # noqa: PLR0913 (the terms of one equation)
    rows: SparseRows,
    own: np.ndarray,
    model: SparseModel,
    weight: float,
    eval_gradient: bool,
    theta: Tensor,
    Z: Tensor,
    mean: Tensor,
    covariance: Tensor,
    log_det: Tensor,
) -> tuple[Tensor, ...]:
    """The statistics of some rows of one rank, and their gradients in theta and Z.

    The entries are NaN if k(Z, Z) has no factor. Gradients are those of the negative bound, zeros
    if not asked for.
    """
    empty = torch.zeros_like(covariance), torch.zeros_like(mean), torch.zeros_like(mean)
    nothing = *empty, torch.zeros_like(theta), torch.zeros_like(Z)
    if not len(own):
        return _doubles(nothing)
    leaves = [leaf.clone().requires_grad_(eval_gradient) for leaf in (theta, Z)]
    belief = WhitenedBelief(mean, covariance, log_det)
    X, Y, extra = rows.take(torch.from_numpy(own))
    try:
        with torch.set_grad_enabled(eval_gradient):
            K = model.values(*leaves, X, extra)
        bound = variational_bound(
            model.likelihood, belief, K, Y, weight, eval_gradient=eval_gradient
        )
    except torch.linalg.LinAlgError:
        return _doubles(tuple(part + torch.nan for part in nothing))
    if bound.grad is not None:
        K.backward(bound.grad)
    grads = (torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)
    return _doubles((*vars(bound.rows).values(), *grads))


@torch.no_grad()
def expected_sum(
    blocks: Blocks,
    model: SparseModel,
    theta: Tensor,
    Z: Tensor,
    mean: Tensor,
    covariance: Tensor,
    log_det: Tensor,
) -> tuple[Tensor, ...]:
    """The expected log likelihood of the rows of one rank."""
    belief, total = WhitenedBelief(mean, covariance, log_det), 0.0
    white, divergence = Whitening.at(model.kernel, theta, Z), belief.divergence()
    for X, Y, extra in blocks():
        K = model.values(theta, Z, X, extra)
        bound = variational_bound(
            model.likelihood, belief, K, Y, eval_gradient=False, white=white, value_only=True
        )
        total += bound.value + divergence
    return (mean.new_tensor([total]),)


def _doubles(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part.detach().double() for part in parts)


def _of_part(
    rows: SparseRows, work: Callable[..., tuple[Tensor, ...]], *args: Any
) -> tuple[Tensor, ...]:
    return work(rows.blocks, *args)


def _taken(rows: SparseRows, own: np.ndarray) -> list[np.ndarray]:
    return [part.cpu().numpy() for part in rows.take(torch.from_numpy(own))]


def _far(rows: SparseRows, limits: tuple[np.ndarray, np.ndarray]) -> np.ndarray:
    return rows_beyond(rows.source.X, limits)
