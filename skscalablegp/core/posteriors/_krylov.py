"""Krylov spaces in which the inverse of H has accurate low-rank approximations."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ...linalg.operators import DenseOperator, LinearOperator
from ...linalg.solvers import cholesky_with_jitter, lanczos


def krylov_basis(
    operator: LinearOperator,
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


def whitened(operator: LinearOperator, basis: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
    """B with B B' = Q (Q' H Q)^-1 Q', the Galerkin approximation of H^-1; one epoch."""
    T = basis.T @ operator.matmul(basis)
    L, _ = cholesky_with_jitter((T + T.T) / 2)
    return torch.linalg.solve_triangular(L, basis.T, upper=False).T


def explained_weights(
    inner: Float[Tensor, "q q"], start: Float[Tensor, " q"], rank: int
) -> Float[Tensor, "q k"]:
    """Y with I - Y Y' >= (I + A)^-1, equal at full rank: LOVE for weights with a prior N(0, I).

    Lanczos on I + A in the inner product of A, which is Lanczos on D^-1/2 H D^-1/2 for
    H = D + phi phi' and A = phi' D^-1 phi, without a vector of length n. A Galerkin projection lies
    below the inverse, so variances err upwards only. O(q^3).

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
    operator = DenseOperator(torch.diag(roots.square() + 1))
    basis = krylov_basis(operator, (roots * (vectors.T @ start))[:, None], rank)
    return vectors @ (roots[:, None] * whitened(operator, basis))
