"""Functions of full batches, whose weights have a standard normal prior, and their posterior."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ...core.posteriors import (
    FeaturePosterior,
    FeatureWeights,
    MeanAndVariance,
    Posterior,
    WeightForm,
    joint_normal,
    reported_variance,
)
from ...kernels import TorchKernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions, SampledBasis

# Of the prior variance: what rounding leaves open of a row that others explain in full.
_ROUNDING = 1e-12
# Rows that `pivots` looks at together.
_BLOCK = 32


class FullMap:
    """All functions of a model at once, in double precision: random Fourier features.

    Parameters
    ----------
    basis : SampledBasis
        In double precision.
    noise : float
        Noise variance of a new observation.
    device : torch.device
    """

    def __init__(self, basis: SampledBasis, noise: float, device: torch.device):
        self.basis, self.kernel, self.noise = basis, basis.kernel, noise
        self.n_features, self.theta = basis.n_features, basis.kernel.theta0.to(device)

    @torch.no_grad()
    def cross(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        """The basis at some rows."""
        return self.basis.part(np.arange(self.basis.n_blocks)).evaluate(self.theta, X.double())

    def evaluate(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        """The functions whose weights have a standard normal prior."""
        return self.cross(X)

    def plain(self, mean: Float64[Tensor, "m t"]) -> Float64[Tensor, "m t"]:
        """Weights of the functions as users know them."""
        return mean

    def posterior(self, weights: FeatureWeights) -> Posterior:
        """What a belief about the weights says of f."""
        return FeaturePosterior(self.evaluate, self.white, weights)

    def white(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, " r"]:
        """The noise's variance at each row."""
        return X.new_full((len(X),), self.noise, dtype=torch.float64)


class ProcessMap(FullMap):
    """Kernel functions at points Z, whitened: psi(x) = L^-1 k(Z, x) with L L' = k(Z, Z).

    A Gaussian process is psi(x)'v plus what its values at Z leave open, which data at other rows
    do not reach. With all rows as points nothing is left open at them: the process is exact.
    """

    @cached_property
    @torch.no_grad()
    def factor(self) -> Float64[Tensor, "m m"]:
        """L; O(m^3), once."""
        K = self.cross(self.basis.points)
        # Functions that are zero at their own rows are zero everywhere.
        return cholesky_with_jitter(K if bool(K.any()) else torch.eye(len(K)).to(K))[0]

    def whitened(self, cross: Float64[Tensor, "r m"]) -> Float64[Tensor, "r m"]:
        """psi from k(X, Z); O(r m^2)."""
        return torch.linalg.solve_triangular(self.factor, cross.T, upper=False).T

    def evaluate(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r m"]:
        return self.whitened(self.cross(X))

    def plain(self, mean: Float64[Tensor, "m t"]) -> Float64[Tensor, "m t"]:
        return torch.linalg.solve_triangular(self.factor.T, mean, upper=True)

    @torch.no_grad()
    def prior(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, " r"]:
        return self.kernel.diag(self.theta, X.double())

    @torch.no_grad()
    def prior_covariance(self, X: Float[Tensor, "r d"]) -> Float64[Tensor, "r r"]:
        return self.kernel.cross(self.theta, X.double(), X.double())

    def posterior(self, weights: FeatureWeights) -> Posterior:
        return ProcessPosterior(self, weights)


class ProcessPosterior(FeaturePosterior):
    """Kernel functions at points, and what these leave open elsewhere.

    Parameters
    ----------
    process : ProcessMap
    weights : FeatureWeights
    scale : float, default=1.0
        What variances and covariances are multiplied by.

    Notes
    -----
    A mean costs O(m) a row, a variance O(m^2).
    """

    def __init__(self, process: ProcessMap, weights: FeatureWeights, scale: float = 1.0):
        super().__init__(process.evaluate, process.white, weights)
        self.process, self.coef, self.scale = process, process.plain(weights.mean), scale

    def mean(self, X: Float[Tensor, "r d"]) -> Float[Tensor, "r t"]:
        return self.process.cross(X) @ self.coef

    def mean_and_variance(self, X: Float[Tensor, "r d"]) -> MeanAndVariance:
        cross, prior = self.process.cross(X), self.process.prior(X)
        phi = self.process.whitened(cross)
        left = reported_variance(prior - phi.square().sum(1), prior)
        return cross @ self.coef, self.scale * (left + self._whitened(phi).square().sum(0))

    def covariance(self, X: Float[Tensor, "r d"]) -> Float[Tensor, "r r"]:
        phi = self._phi(X)
        left = self.process.prior_covariance(X) - phi @ phi.T
        variance = reported_variance(left.diagonal(), self.process.prior(X))
        left.diagonal().copy_(variance)
        V = self._whitened(phi)
        return self.scale * (left + V.T @ V)

    def weight_form(self) -> WeightForm | None:
        if self.scale != 1:
            return None
        return WeightForm(
            features=self._phi,
            precision=self.factor @ self.factor.T,
            prior=self.process.prior,
            prior_covariance=self.process.prior_covariance,
            has_rest=True,
        )

    def sample(
        self, X: Float[Tensor, "r d"], n_samples: int, random_state: np.random.RandomState
    ) -> Float[Tensor, "r t s"]:
        return joint_normal(self, X, n_samples, random_state)


def full_map(functions: Functions, d: int, noise: float, device: torch.device) -> FullMap:
    """The functions of a model of d columns."""
    kind = FullMap if functions.points is None else ProcessMap
    return kind(functions.basis(d, torch.float64, device), noise, device)


def pivots(
    kernel: TorchKernel,
    X: Float64[Tensor, "n d"],
    most: int,
    tol: float,
    check: Callable[[], None] = lambda: None,
) -> tuple[Int64[Tensor, " m"], float]:
    """Numbers of the rows whose kernel functions explain the others, and what they leave open.

    A Cholesky factorisation of k(X, X) with pivots, some rows at a time, that ends when no row's
    variance given the pivots is above `tol`: how many functions a table needs depends on the
    kernel, the noise and the rows, hardly on how many these are. O(n m^2) time, O(n m) memory.

    Parameters
    ----------
    kernel : TorchKernel
    X : Tensor of shape (n, d)
    most : int
        More functions than this are not chosen.
    tol : float
    check : callable, optional
        Called after each block.

    Returns
    -------
    rows : Tensor of shape (m,)
        Ascending.
    left : float
        The largest variance of a row given the pivots.
    """
    theta = kernel.theta0.to(X.device)
    with torch.no_grad():
        left = kernel.diag(theta, X).double()
        factor, chosen = X.new_empty(most, len(X)), X.new_empty(0, dtype=torch.int64)
        limit = max(tol, _ROUNDING * float(left.max()))
        # A model has a function, even if there is nothing to explain.
        while (k := len(chosen)) < most and (k == 0 or float(left.max()) > limit):
            rows = left.topk(min(_BLOCK, most - k, len(X))).indices
            own = kernel.cross(theta, X[rows], X[rows]) - factor[:k, rows].T @ factor[:k, rows]
            # Within the block, only rows that those before them leave half as open as the first.
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
    """Rows of a small covariance whose variance given those taken before is above a limit."""
    left, kept = K.clone(), []
    while float(left.diagonal().max()) > limit:
        i = int(left.diagonal().argmax())
        kept.append(i)
        left = left - torch.outer(left[i], left[i]) / left[i, i]
        left[i], left[:, i] = 0, 0
    return torch.tensor(kept or [0])
