"""Constant-time variances for posteriors with fast products (LOVE, Pleiss et al. 2018)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...linalg.operators import SelfAdjointOperator
from ...linalg.solvers import cholesky_with_jitter, lanczos
from ._base import Draws, Inputs, LowRankForm, Posterior, reported_variance
from ._modules import PosteriorModule
from ._moments import Moments

# Lanczos starts with the average features of at most this many rows.
_PROBE_ROWS = 1000


@dataclass(frozen=True, eq=False)
class WeightForm:
    """A posterior of ``f(x) = phi(x)' w + r(x)`` with the prior w ~ N(0, I).

    Random features have no remainder r. Inducing points, whose whitened values are the weights,
    have a remainder that does not depend on the data. Such posteriors give it to
    `WeightCaches`.

    Attributes
    ----------
    features : callable
        Maps rows (m, d) to phi, (m, q).
    precision : Tensor of shape (q, q)
        I + A, the inverse of the posterior covariance of the weights.
    prior : callable
        Maps rows to the prior variances of f, (m,), including the remainder.
    prior_covariance : callable
        Maps rows to the prior covariances of f, (m, m), including the remainder.
    has_rest : bool
        Whether there is a remainder r.
    """

    features: Callable[[Tensor], Float[Tensor, "m q"]]
    precision: Float[Tensor, "q q"]
    prior: Callable[[Tensor], Float[Tensor, " m"]]
    prior_covariance: Callable[[Tensor], Float[Tensor, "m m"]]
    has_rest: bool = False


class WeightCaches(LowRankForm):
    """Low-rank variances of a posterior over weights; they are never below the exact ones.

    Parameters
    ----------
    below : Posterior
        The posterior with the mean, the noise and the exact variances.
    form : WeightForm
    """

    def __init__(self, below: Posterior, form: WeightForm):
        super().__init__(below, len(form.precision))
        self.form = form

    def need(self, rank: int) -> float:
        return 8.0 * (4 * self.full**2 + self.full * rank)

    def _caches(self, held, probes, rank, most):
        form, exact = self.form, self.below.variance(held)
        inner = form.precision - torch.eye(self.full).to(form.precision)
        start = form.features(probes[:_PROBE_ROWS]).mean(0)
        while True:
            yield self._measured(explained_weights(inner, start, rank), held, exact)
            if rank >= most:
                return
            rank = min(2 * rank, most)

    def _low(self, basis):
        return LOVEWeights(self.below, self.form, basis)


class LOVEWeights(Posterior):
    """The mean of a posterior over weights with variances from k Lanczos vectors.

    ``variance(x) = prior(x) - |Y' phi(x)|^2``, O(q k) a row beside the features themselves.

    Parameters
    ----------
    below : Posterior
        The posterior with the mean and the noise.
    form : WeightForm
        The form of that posterior.
    explained : Tensor of shape (q, k)
        Y with I - Y Y' close to the weights' posterior covariance, from above.
    """

    def __init__(self, below: Posterior, form: WeightForm, explained: Float[Tensor, "q k"]):
        self._below, self._form, self.explained = below, form, explained
        self.dtype, self.device, self.width = below.dtype, below.device, below.width
        self.likelihood = below.likelihood

    def low_rank_form(self) -> LowRankForm | None:
        return self._below.low_rank_form()

    def module(self, with_variance: bool = True) -> PosteriorModule:
        below = self._below.module(with_variance=False)
        return below.low_rank(self.explained) if with_variance else below

    def functions(self, n_samples: int, generator: torch.Generator) -> nn.Module:
        """Functions of the posterior over weights, with their low-rank covariance I - Y Y'."""
        units = torch.eye(len(self.explained)).to(self.explained)
        spread = units - self.explained @ self.explained.T
        return self._below.with_spread(spread).functions(n_samples, generator)

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        return self._below.mean(X)

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        return Moments(self.mean(X), self.variance(X), self.noise(X))

    def noise(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        return self._below.noise(X)

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        prior = self._form.prior(X)
        explained = self._form.features(X) @ self.explained
        return reported_variance(prior - explained.square().sum(1), prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        explained = self._form.features(X) @ self.explained
        return self._form.prior_covariance(X) - explained @ explained.T

    def sample(self, X: Inputs, n_samples: int, random_state: np.random.RandomState) -> Draws:
        """Joint draws of the weights, O(q k) each; from the covariance if f has a remainder."""
        if self._form.has_rest:
            return super().sample(X, n_samples, random_state)
        generator = torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))
        phi, mean = self._form.features(X), self.mean(X)
        (q, t), dtype = (phi.shape[1], mean.shape[1]), phi.dtype
        eps = torch.randn(q, t * n_samples, generator=generator, dtype=dtype).to(phi.device)
        # (I - Y Y')^1/2 = I - U (1 - (1 - s^2)^1/2) U' with Y = U s V'.
        U, s, _ = torch.linalg.svd(self.explained, full_matrices=False)
        shrunk = 1 - (1 - s.square()).clamp_min(0).sqrt()
        draws = phi @ (eps - U @ (shrunk[:, None] * (U.T @ eps)))
        white = torch.randn(draws.shape, generator=generator, dtype=dtype).to(phi.device)
        draws = draws + white * self.noise(X).sqrt()[:, None]
        return mean[:, :, None] + draws.reshape(len(X), t, n_samples)


# ---------------------------------------------------------------------- Krylov spaces


def krylov_basis(
    operator: Any,
    start: Float[Tensor, "n s"],
    n_steps: int,
    known: Float[Tensor, "n k"] | None = None,
) -> Float[Tensor, "n k2"]:
    """An orthonormal basis of the Krylov spaces of all start vectors and of the known columns.

    Each space is fully reorthogonalised, and all are joined by a QR factorisation. Directions that
    depend on others up to rounding are dropped. Costs n_steps epochs.
    """
    found = lanczos(operator, start, n_steps).basis
    columns = found.reshape(-1, found.shape[2]).T
    columns = columns[:, columns.norm(dim=0) > 0.5]
    if known is not None:
        for _ in range(2):
            columns = columns - known @ (known.T @ columns)
    if columns.shape[1] == 0:
        return columns if known is None else known
    Q, R = torch.linalg.qr(columns)
    Q = Q[:, R.diagonal().abs() > 1e-8]
    if known is None:
        return Q
    Q = Q - known @ (known.T @ Q)
    return torch.cat([known, torch.linalg.qr(Q).Q], 1)


def whitened(operator: Any, basis: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """B with B B' = Q (Q' H Q)^-1 Q', the Galerkin approximation of H^-1; one epoch."""
    T = basis.T @ operator.matmul(basis)
    L, _ = cholesky_with_jitter((T + T.T) / 2)
    return torch.linalg.solve_triangular(L, basis.T, upper=False).T


class _Diagonal(SelfAdjointOperator):
    """A diagonal matrix with its product, which is all that Lanczos needs."""

    def __init__(self, values: Float[Tensor, " q"]):
        super().__init__(len(values), values.dtype, values.device)
        self.values = values

    def matmul(self, V: Float[Tensor, "q s"]) -> Float[Tensor, "q s"]:
        return self.values[:, None] * V


def explained_weights(
    inner: Float[Tensor, "q q"], start: Float[Tensor, " q"], rank: int
) -> Float[Tensor, "q k"]:
    """Y with I - Y Y' >= (I + A)^-1, equal at full rank: LOVE for weights with a prior N(0, I).

    Lanczos on I + A in the inner product of A, which is Lanczos on D^-1/2 H D^-1/2 for H = D + phi
    phi' and A = phi' D^-1 phi, without a vector of length n. A Galerkin projection lies below the
    inverse, so that variances are never too small. O(q^3).

    Parameters
    ----------
    inner : Tensor of shape (q, q)
        A, positive semidefinite.
    start : Tensor of shape (q,)
        The average row of phi.
    rank : int
        Steps of Lanczos.
    """
    values, vectors = torch.linalg.eigh(inner)
    roots = values.clamp_min(0).sqrt()
    operator = _Diagonal(roots.square() + 1)
    basis = krylov_basis(operator, (roots * (vectors.T @ start))[:, None], rank)
    return vectors @ (roots[:, None] * whitened(operator, basis))
