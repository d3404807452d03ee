"""Krylov spaces of constant-time variances (LOVE, Pleiss et al. 2018)."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from ...linalg.operators import SelfAdjointOperator
from ...linalg.solvers import cholesky_with_jitter, lanczos

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
