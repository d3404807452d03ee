"""Functions of full batches, whose weights have a standard normal prior, and the posterior."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.posteriors import (
    FeatureWeights,
    KernelFeatures,
    LinearPosterior,
    Solved,
    WeightFeatures,
)
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions, SampledBasis

# Share of the prior variance that rounding leaves at a row that is determined by others.
_ROUNDING = 1e-12
# Jitter of k(Z, Z), as a multiple of the rounding of its trace.
_JITTER = 10
# Number of rows that `pivots` considers together.
_BLOCK = 32


class FullMap:
    """All random Fourier features of a model, in double precision.

    Parameters
    ----------
    basis : SampledBasis
        In double precision.
    noise : float
        Noise variance of a new observation.
    """

    def __init__(self, basis: SampledBasis, noise: float):
        self.basis, self.kernel, self.noise = basis, basis.kernel, noise
        self.theta = basis.kernel.theta0.to(basis.device)

    @torch.no_grad()
    def cross(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        """The basis functions at some rows."""
        return self.basis.part(np.arange(self.basis.n_blocks)).evaluate(self.theta, X.double())

    def evaluate(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        """The functions whose weights have a standard normal prior."""
        return self.cross(X)

    def plain(self, mean: Float64[Tensor, "m t"]) -> Float64[Tensor, "m t"]:
        """The weights of the basis functions themselves."""
        return mean

    def posterior(self, weights: FeatureWeights) -> LinearPosterior:
        """The posterior of f from a distribution of the weights."""
        features = WeightFeatures(self.basis.module(self.theta), self.noise)
        return LinearPosterior(features, weights.mean, Solved(weights.factor))


class ProcessMap(FullMap):
    """Kernel functions at points Z, whitened: psi(x) = L^-1 k(Z, x) with L L' = k(Z, Z).

    A Gaussian process is psi(x)'v plus a remainder that is independent of its values at Z. The
    model takes this remainder from the prior. With all rows as points it is zero at the rows, and
    the process is exact.
    """

    @cached_property
    @torch.no_grad()
    def factor(self) -> Float64[Tensor, "m m"]:
        """L; O(m^3), once."""
        K = self.cross(self.basis.points)
        if not bool(K.any()):
            # A kernel that is zero at its own rows is zero everywhere.
            return torch.eye(len(K)).to(K)
        # Points that determine each other have a factor by accident of rounding only, and its
        # smallest pivots are rounding. A jitter above the rounding keeps them away from zero.
        jitter = _JITTER * torch.finfo(K.dtype).eps * float(K.diagonal().sum())
        return cholesky_with_jitter(K + jitter * torch.eye(len(K)).to(K))[0]

    def whitened(self, cross: Float64[Tensor, "r m"]) -> Float64[Tensor, "r m"]:
        """psi from k(X, Z); O(r m^2)."""
        return torch.linalg.solve_triangular(self.factor, cross.T, upper=False).T

    def evaluate(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        return self.whitened(self.cross(X))

    def plain(self, mean: Float64[Tensor, "m t"]) -> Float64[Tensor, "m t"]:
        return torch.linalg.solve_triangular(self.factor.T, mean, upper=True)

    def posterior(self, weights: FeatureWeights, **given: Any) -> LinearPosterior:
        """As above, plus the prior of the remainder; `given` are further settings."""
        features = KernelFeatures(
            self.kernel, self.theta, self.basis.points, noise=self.noise, plain=False
        )
        root, whiten = Solved(weights.factor), Solved(self.factor)
        process = self.kernel, self.theta, whiten
        return LinearPosterior(features, weights.mean, root, process=process, **given)


def full_map(functions: Functions, d: int, noise: float, device: torch.device) -> FullMap:
    """The functions of a model of d columns."""
    kind = FullMap if functions.points is None else ProcessMap
    return kind(functions.basis(d, torch.float64, device), noise)


def pivots(
    kernel: TorchKernel,
    X: Float64[Tensor, "n d"],
    most: int,
    tol: float,
    check: Callable[[], None] = lambda: None,
) -> tuple[Int64[Tensor, " m"], float]:
    """Choose rows that nearly determine the function at all other rows.

    This is a Cholesky factorisation of k(X, X) with pivots, some rows at a time, which ends when no
    row's variance given the pivots is above `tol`. The number of pivots depends on the kernel, the
    noise and the range of the rows, and hardly on their number. O(n m^2) time, O(n m) memory.

    Parameters
    ----------
    kernel : TorchKernel
    X : Tensor of shape (n, d)
    most : int
        Largest number of rows to choose.
    tol : float
    check : callable, optional
        Called after each block.

    Returns
    -------
    rows : Tensor of shape (m,)
        The numbers of the rows, ascending.
    left : float
        The largest variance of a row given the pivots.
    """
    theta = kernel.theta0.to(X.device)
    with torch.no_grad():
        left = kernel.diag(theta, X).double()
        factor, chosen = X.new_empty(most, len(X)), X.new_empty(0, dtype=torch.int64)
        limit = max(tol, _ROUNDING * float(left.max()))
        # A model has at least one function, even if there is nothing to explain.
        while (k := len(chosen)) < most and (k == 0 or float(left.max()) > limit):
            rows = left.topk(min(_BLOCK, most - k, len(X))).indices
            own = kernel.cross(theta, X[rows], X[rows]) - factor[:k, rows].T @ factor[:k, rows]
            # Within the block, only rows with at least half the largest variance given the others.
            kept = _independent(own, max(limit, 0.5 * float(left.max())))
            rows, own = rows[kept], own[kept][:, kept]
            new = kernel.cross(theta, X[rows], X) - factor[:k, rows].T @ factor[:k]
            L, _ = cholesky_with_jitter(own if bool(own.any()) else torch.eye(len(rows)).to(own))
            factor[k : k + len(rows)] = torch.linalg.solve_triangular(L, new, upper=False)
            left -= factor[k : k + len(rows)].square().sum(0)
            chosen = torch.cat([chosen, rows])
            left[chosen] = 0
            check()
    return chosen.sort().values, float(left.clamp_min(0).max())


def _independent(K: Float64[Tensor, "b b"], limit: float) -> Int64[Tensor, " k"]:
    """Rows of a small covariance, each with a variance given the former ones above a limit."""
    left, kept = K.clone(), []
    while float(left.diagonal().max()) > limit:
        i = int(left.diagonal().argmax())
        kept.append(i)
        left = left - torch.outer(left[i], left[i]) / left[i, i]
        left[i], left[:, i] = 0, 0
    return torch.tensor(kept or [0])
