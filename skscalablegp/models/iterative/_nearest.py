"""Predictions from the nearest training rows, and their form as torch modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...core.posteriors import LinearModule, Moments, PosteriorModule, regressed
from ...linalg.operators import KernelOperator
from ...linalg.solvers import cholesky_with_jitter
from ...workers import map_in_order


def with_factors(
    operator: KernelOperator, near: Sequence[Tensor], work: Callable[[int, Tensor], Tensor]
) -> list[Tensor]:
    """Compute ``work(i, L)`` for all i, with the Cholesky factor L of H at the rows ``near[i]``.

    O(k^3) for k rows.
    """

    def one(i: int) -> Tensor:
        return work(i, cholesky_with_jitter(operator.block(near[i]).double())[0])

    # A user's own NumPy kernel may not be thread-safe.
    run = map if operator.kernel.numpy_code else partial(map_in_order, device=operator.device)
    return list(run(one, range(len(near))))


def coefficients(
    operator: KernelOperator, K: Float[Tensor, "m n"], near: Int[Tensor, "m k"]
) -> Float[Tensor, "m k"]:
    """Compute H_NN^-1 k_N: the weights by which the rows N in `near` predict those of K."""
    cross = K.gather(1, near).double()

    def one(i: int, L: Tensor) -> Tensor:
        return torch.cholesky_solve(cross[i, :, None], L)[:, 0]

    return torch.stack(with_factors(operator, list(near), one))


class NearestModule(PosteriorModule):
    """A mean over all training rows, and variances from those with the largest covariances.

    Parameters
    ----------
    linear : LinearModule
        The mean of the weights.
    operator : KernelOperator
    n_nearest : int
        Number of these rows.
    residual : Tensor of shape (n, t r), optional
        What the weights have left of the targets, where the solve ended early or without some
        rows, or of r draws of each. The same rows then correct the mean, as in
        `IterativePosterior`, which has t r columns.

    Notes
    -----
    O(n + k^3) a row for k nearest rows, and n + k^2 numbers of memory.
    """

    known: Tensor
    residual: Tensor | None

    def __init__(
        self,
        linear: LinearModule,
        operator: KernelOperator,
        n_nearest: int,
        residual: Float[Tensor, "n s"] | None = None,
    ):
        super().__init__()
        self.linear, self._k = linear, min(n_nearest, operator.shape[0])
        for name, value in (("known", operator.noise), ("residual", residual)):
            kept = None if value is None else value.detach().double().cpu().clone()
            self.register_buffer(name, kept)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m s"]:
        return self.linear.mean(X) if self.residual is None else self.moments(X).mean

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        features, weights = self.linear.features, self.linear.weights
        K = features(X)
        near = K.abs().topk(self._k).indices
        k, mean = K.gather(1, near)[:, :, None], K @ weights
        left = k[:, :, :0] if self.residual is None else self.residual[near]
        given = features.Z[near], self.known[near], k, left
        correction, variance, _ = regressed(features.kernel, X, *given)
        if self.residual is not None:
            mean = (mean[:, :, None] + correction.unflatten(1, (weights.shape[1], -1))).flatten(1)
        return Moments(mean, variance, features.noise(X))
