"""Predictions from the nearest training rows, and their form as torch modules."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ...core.posteriors import LinearModule, Moments, PosteriorModule, WeightDraws, half_solved
from ...linalg.operators import KernelOperator
from ...linalg.solvers import cholesky_with_jitter
from ...workers import map_in_order

# Rows whose neighbours' covariances are in memory at a time.
_ROWS = 512


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
    residual : Tensor of shape (n, t), optional
        What the weights have left of the targets, where the solve ended early or without some
        rows. The same rows then correct the mean, as in `IterativePosterior`.

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
        residual: Float[Tensor, "n t"] | None = None,
    ):
        super().__init__()
        self.linear, self._k = linear, min(n_nearest, operator.shape[0])
        for name, value in (("known", operator.noise), ("residual", residual)):
            kept = None if value is None else value.detach().double().cpu().clone()
            self.register_buffer(name, kept)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self.linear.mean(X) if self.residual is None else self.moments(X).mean

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        features = self.linear.features
        K, prior = features(X), features.kernel.diag(X)
        half = self._half(K, prior)
        mean = K @ self.linear.weights
        if self.residual is not None:
            mean = mean + _correction(half)
        variance = (prior - half[:, :, 0].square().sum(1)).clamp_min(0)
        return Moments(mean, variance, features.noise(X))

    def correction(self, X: Float[Tensor, "m d"], K: Float[Tensor, "m n"]) -> Float[Tensor, "m t"]:
        """What the nearest rows add to the mean of the weights; K are covariances with all rows."""
        return _correction(self._half(K, self.linear.features.kernel.diag(X)))

    def _half(self, K: Float[Tensor, "m n"], prior: Float[Tensor, " m"]) -> Float[Tensor, "m k s"]:
        """L^-1 [k, r] for the factor L of the covariances of the nearest rows' targets."""
        near = K.abs().topk(self._k).indices
        Z, B = self.linear.features.Z[near], K.gather(1, near)[:, :, None]
        H = self.linear.features.kernel.cross(Z, Z) + torch.diag_embed(self.known[near])
        if self.residual is not None:
            B = torch.cat([B, self.residual[near]], 2)
        return half_solved(H, B, prior)


def _correction(half: Float[Tensor, "m k s"]) -> Float[Tensor, "m t"]:
    return (half[:, :, :1] * half[:, :, 1:]).sum(1)


class NearestDraws(nn.Module):
    """Draws of functions f_j(x) = g_j(x) + k' w + k_N' H_NN^-1 (r - g_j - noise_j)_N.

    Each row is moved by its nearest rows alone (Matheron's rule), so that a draw has the variance
    that these rows leave.

    Parameters
    ----------
    prior : WeightDraws
        Draws g_j of the prior.
    nearest : NearestModule
        With the residuals r - g_j - noise_j of all targets and draws.
    """

    def __init__(self, prior: WeightDraws, nearest: NearestModule):
        super().__init__()
        self.prior, self.nearest = prior, nearest

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t s"]:
        linear, parts = self.nearest.linear, []
        for rows in X.split(_ROWS):
            g, K = self.prior(rows), linear.features(rows)
            moved = self.nearest.correction(rows, K).unflatten(1, g.shape[1:])
            parts.append(g + moved + (K @ linear.weights)[:, :, None])
        return torch.cat(parts) if parts else self.prior(X)
