"""Training by batches of rows of which each rank has its own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...core import ShardedSource
from ._bound import RowStatistics, WhitenedBelief, Whitening, variational_bound
from ._collapsed import Blocks
from ._stepper import SparseModel, SparseRows, SparseStepper


class Values(NamedTuple):
    """The tensors from which a rank evaluates its rows: those that change from step to step."""

    theta: Tensor
    Z: Tensor
    mean: Tensor
    covariance: Tensor
    log_det: Tensor
    constant: Tensor

    @classmethod
    def of(cls, stepper: SparseStepper) -> Values:
        """Those of a stepper, without their gradients."""
        belief = stepper.belief.whitened()
        return cls(stepper._theta.detach(), stepper.Z.detach(), *vars(belief).values())

    @property
    def belief(self) -> WhitenedBelief:
        return WhitenedBelief(*self[2:])


def stepper_of(model: SparseModel, rows: SparseRows, *begin: Any) -> SparseStepper:
    """Training on these rows, from the further arguments of the class."""
    kind = ShardedStepper if isinstance(rows.source, ShardedSource) else SparseStepper
    return kind(model, rows, *begin)


class ShardedStepper(SparseStepper):
    """Each rank evaluates the rows that it has of a batch, and rank 0 adds up and steps."""

    def _batch_sums(self, batch: Tensor, weights: Tensor, eval_gradient: bool) -> RowStatistics:
        given, values = (self.model, float(weights[0]), eval_gradient), Values.of(self)
        *sums, of_theta, of_Z = self.rows.work.sum(batch_sums, *given, rows=batch, tensors=values)
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
        (total,) = self.rows.total(expected_sum, self.model, tensors=Values.of(self))
        return float(total)


# ---------------------------------------------------------------- on all ranks


def batch_sums(
    rows: SparseRows,
    own: np.ndarray,
    model: SparseModel,
    weight: float,
    eval_gradient: bool,
    *values: Tensor,
) -> tuple[Tensor, ...]:
    """The statistics of some rows of one rank, and their gradients in theta and Z.

    `values` are `Values`. The entries are NaN if k(Z, Z) has no factor. Gradients are those of the
    negative bound, zeros if not asked for.
    """
    theta, Z, mean, covariance, _, constant = at = Values(*values)
    like = (covariance, mean, mean, constant, constant, theta, Z)
    nothing = tuple(map(torch.zeros_like, like))
    if not len(own):
        return _doubles(nothing)
    leaves = [leaf.clone().requires_grad_(eval_gradient) for leaf in (theta, Z)]
    some = rows.take(torch.from_numpy(own))
    try:
        with torch.set_grad_enabled(eval_gradient):
            K = model.values(*leaves, some.X, some.noise)
        bound = variational_bound(
            model.likelihood, at.belief, K, some.Y, weight, eval_gradient=eval_gradient
        )
    except torch.linalg.LinAlgError:
        return _doubles(tuple(part + torch.nan for part in nothing))
    if bound.grad is not None:
        K.backward(bound.grad)
    grads = (torch.zeros_like(x) if x.grad is None else x.grad for x in leaves)
    return _doubles((*vars(bound.rows).values(), *grads))


@torch.no_grad()
def expected_sum(blocks: Blocks, model: SparseModel, *values: Tensor) -> tuple[Tensor, ...]:
    """The expected log likelihood of the rows of one rank; `values` are `Values`."""
    at, total = Values(*values), 0.0
    white, divergence = Whitening.at(model.kernel, at.theta, at.Z), at.belief.divergence()
    for some in blocks():
        K = model.values(at.theta, at.Z, some.X, some.noise)
        bound = variational_bound(
            model.likelihood,
            at.belief,
            K,
            some.Y,
            eval_gradient=False,
            white=white,
            value_only=True,
        )
        total += bound.value + divergence
    return (at.mean.new_tensor([total]),)


def _doubles(parts: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(part.detach().double() for part in parts)
