"""Constant-time variances for any posterior with fast products (Pleiss et al. 2018)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ..solvers import CG, MaxIterations, RelativeResidual, solve
from ._base import Posterior, joint_normal, reported_variance
from ._grid import GridPosterior
from ._krylov import krylov_basis, whitened

# Rows whose average column of K starts Lanczos where all rows would cost too much.
_PROBE_ROWS = 1000


class LOVEPosterior(Posterior):
    """The mean of another posterior with variances from k Lanczos vectors.

    ``variance(x) = k(x, x) - |B' k(X, x)|^2`` with B B' the Galerkin approximation of H^-1 in a
    Krylov space, O(n k) a row. It is never below the exact variance.

    Parameters
    ----------
    posterior : Posterior
        Whose mean and operator are used.
    basis : Tensor of shape (n, k)
        B.
    """

    def __init__(self, posterior: Posterior, basis: Float[Tensor, "n k"]):
        super().__init__(posterior.operator, posterior.weights)
        self.basis = basis

    def variance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, " m"]:
        cross = self.cross(X)
        prior = cross.prior_diag()
        return reported_variance(prior - cross.matmul(self.basis).square().sum(1), prior)

    def covariance(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m m"]:
        cross = self.cross(X)
        explained = cross.matmul(self.basis)
        return cross.prior_covariance().addmm_(explained, explained.T, alpha=-1)

    def sample(
        self, X: Float[Tensor, "m d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "m t s"]:
        return joint_normal(self, X, n_samples, random_state)


@dataclass(frozen=True, eq=False)
class LOVEResult:
    """A posterior with low-rank caches, and what is known about its error.

    Attributes
    ----------
    posterior : Posterior
    rank : int
        Lanczos vectors in use.
    error : float
        Mean absolute error of the variance at the held rows, in units of `scale`.
    basis : ndarray of shape (n, k) or None
        What `LOVEPosterior` needs to be rebuilt.
    """

    posterior: Posterior
    rank: int
    error: float
    basis: np.ndarray | None


def love(
    posterior: Any,
    held: Float[Tensor, "h d"],
    *,
    rank: int,
    max_rank: int,
    tol: float,
    scale: float,
) -> LOVEResult:
    """Build the caches, measure their error, and let them grow until it is below `tol`.

    Parameters
    ----------
    posterior : Posterior
        With fast products: on a grid, or with an operator.
    held : Tensor of shape (h, d)
        Rows at which variances are compared with exact solves.
    rank : int
        Lanczos vectors to begin with.
    max_rank : int
        Where growth ends.
    tol : float
        Largest mean absolute error of the variance, in units of `scale`.
    scale : float
        The target's mean square, as the posterior sees it.

    Raises
    ------
    TypeError
        For a posterior without fast products.
    """
    if isinstance(posterior, GridPosterior):
        return _love_on_grid(posterior, held, rank, max_rank, tol, scale)
    if not all(hasattr(getattr(posterior, "operator", None), name) for name in ("matmul", "cross")):
        raise TypeError(
            f"{type(posterior).__name__} has no fast products with its covariance matrix, which "
            "LOVEPredictor needs: wrap a KISSGPRegressor or an IterativeGPRegressor."
        )
    return _love_on_rows(posterior, held, rank, max_rank, tol, scale)


def _love_on_grid(posterior, held, rank, max_rank, tol, scale) -> LOVEResult:
    full = len(posterior.evaluation.inner)
    exact = _root_variance(posterior.exact(), held)
    while True:
        made = GridPosterior(posterior.grid_kernel, posterior.theta, posterior.evaluation, rank)
        error = float((_root_variance(made, held) - exact).abs().mean()) / scale
        if error <= tol or rank >= min(max_rank, full):
            return LOVEResult(made, min(rank, full), error, None)
        rank = min(2 * rank, max_rank)


def _root_variance(posterior: GridPosterior, rows: Tensor) -> Tensor:
    return posterior.interpolate(rows.numpy(), posterior.root).square().sum(1)


def _love_on_rows(posterior, held, rank, max_rank, tol, scale) -> LOVEResult:
    op = posterior.operator
    cross = op.cross(held).to_dense()
    prior = op.cross(held).prior_diag()
    solved = solve(
        op, cross.T.contiguous(), CG(), stopping=RelativeResidual(1e-6) | MaxIterations(1000)
    ).value
    exact = prior - (cross.T * solved).sum(0)
    steps = min(rank, op.shape[0])
    basis = krylov_basis(op, _average_column(op)[:, None], steps)
    while True:
        B = whitened(op, basis)
        errors = (prior - (cross @ B).square().sum(1) - exact).abs()
        error = float(errors.mean()) / scale
        size = basis.shape[1]
        if error <= tol or size >= min(max_rank, op.shape[0]):
            return LOVEResult(LOVEPosterior(posterior, B), size, error, B.cpu().numpy())
        # A new probe: the covariances of the row that is served worst, without what is known.
        probe = cross[int(errors.argmax())]
        probe = probe - basis @ (basis.T @ probe)
        if float(probe.norm()) == 0:
            return LOVEResult(LOVEPosterior(posterior, B), size, error, B.cpu().numpy())
        more = max(1, min(size, max_rank - size, op.shape[0] - size))
        grown = krylov_basis(op, probe[:, None], more, basis)
        if grown.shape[1] == size:
            return LOVEResult(LOVEPosterior(posterior, B), size, error, B.cpu().numpy())
        basis = grown


def _average_column(op: Any) -> Float[Tensor, " n"]:
    """The mean of (some) columns of H."""
    n = op.shape[0]
    chosen = torch.arange(0, n, max(1, n // _PROBE_ROWS), device=op.device)
    return op.rows(chosen).mean(0)
