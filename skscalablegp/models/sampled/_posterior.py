"""The model after steps, as arrays: means of very many weights, dense columns and a diagonal."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.optimize import minimize
from torch import Tensor

from ...core.posteriors import (
    JointMoments,
    KernelFeatures,
    KernelModule,
    LinearModule,
    Moments,
    Posterior,
    PosteriorModule,
    Solved,
    shifted,
)
from ...kernels import TorchKernel, compile_kernel
from ...linalg.operators import ONE, noise_of_means
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions, SampledBasis

# Number of basis functions in one evaluation.
_FUNCTIONS = 8192


@dataclass(eq=False)
class ChevronPosterior(Posterior):
    """f(x) = phi(x)'w for a very large number of weights.

    Their distribution is N(coef, C C') with C = [dense columns | diagonal] (a chevron).

    Parameters
    ----------
    basis : SampledBasis
    at : Tensor of shape (p,)
        Hyperparameters of the basis.
    coef : Tensor of shape (q, m / q, t)
        Means of the weights.
    dense : Tensor of shape (q, m / q, c)
        The first c columns of C.
    diagonal : Tensor of shape (q, m / q)
        c_rr of the other columns, 0 for the dense ones.
    noise_variance : float
        Noise variance of a new observation.
    augment : tuple of TorchKernel and float, optional
        A kernel, and s2 times m / (training rows). Predictive variances are augmented by a kernel
        function at the point itself (appendix G), because all others vanish far from the points.
    support : LinearModule, optional
        See `support_variance`. Its variance replaces that of the chevron.

    Notes
    -----
    A mean costs O(m (d + t)) a row, a variance O(m (d + c)); memory does not grow with m.
    """

    basis: SampledBasis
    at: Float64[Tensor, " p"]
    coef: Float[Tensor, "q units t"]
    dense: Float[Tensor, "q units c"]
    diagonal: Float[Tensor, "q units"]
    noise_variance: float
    augment: tuple[TorchKernel, float] | None = None
    support: LinearModule | None = None

    def __post_init__(self) -> None:
        self.dtype, self.device = self.coef.dtype, self.coef.device
        self.width = min(self.basis.n_features, _FUNCTIONS) + self.dense.shape[2]

    def mean(self, X: Float[Tensor, "r d"]) -> Float[Tensor, "r t"]:
        out = X.new_zeros(len(X), self.coef.shape[2])
        for index, phi in self.basis.evaluations(self.at, X, _FUNCTIONS):
            out += phi @ self.coef[:, index].flatten(0, 1)
        return out

    def moments(self, X: Float[Tensor, "r d"]) -> Moments:
        both = self._chevron(X) if self.support is None else (self.mean(X), self.variance(X))
        return Moments(*both, self.noise(X))

    def variance(self, X: Float[Tensor, "r d"]) -> Float[Tensor, " r"]:
        if self.support is None:
            return self._chevron(X)[1]
        # In double precision, because the variance is a small difference of large numbers.
        return self.support.moments(X.double()).variance.to(X)

    def _chevron(self, X: Float[Tensor, "r d"]) -> tuple[Tensor, Tensor]:
        """The mean and |phi' C|^2 from one evaluation of the basis."""
        mean, dense = (X.new_zeros(len(X), w.shape[2]) for w in (self.coef, self.dense))
        sparse, norm = X.new_zeros(len(X)), X.new_zeros(len(X))
        for index, phi in self.basis.evaluations(self.at, X, _FUNCTIONS):
            mean += phi @ self.coef[:, index].flatten(0, 1)
            dense += phi @ self.dense[:, index].flatten(0, 1)
            sparse += phi.square() @ self.diagonal[:, index].flatten().square()
            norm += phi.square().sum(1)
        return mean, dense.square().sum(1) + sparse + self._augmentation(X, norm)

    def _augmentation(self, X: Float[Tensor, "r d"], norm: Float[Tensor, " r"]) -> Tensor:
        """s2 k(x, x)^2 / (k_x'k_x + s2 k(x, x)) (proposition 4)."""
        if self.augment is None:
            return torch.zeros_like(norm)
        kernel, noise = self.augment
        prior = kernel.diag(self.at, X)
        return noise * prior.square() / (norm + noise * prior)

    def covariance(self, X: Float[Tensor, "r d"]) -> Float[Tensor, "r r"]:
        if self.support is not None:
            return self.support.joint(X.double()).covariance.to(X)
        dense, out = X.new_zeros(len(X), self.dense.shape[2]), X.new_zeros(len(X), len(X))
        norm = X.new_zeros(len(X))
        for index, phi in self.basis.evaluations(self.at, X, _FUNCTIONS):
            dense += phi @ self.dense[:, index].flatten(0, 1)
            scaled = phi * self.diagonal[:, index].flatten()
            out += scaled @ scaled.T
            norm += phi.square().sum(1)
        out += dense @ dense.T
        out.diagonal().add_(self._augmentation(X, norm))
        return out

    def noise(self, X: Float[Tensor, "r d"]) -> Float[Tensor, " r"]:
        return X.new_full((len(X),), self.noise_variance)

    def module(self, with_variance: bool = True) -> PosteriorModule:
        return ChevronModule(self, with_variance)


class ChevronModule(PosteriorModule):
    """`ChevronPosterior` with the functions of the whole basis as buffers; O(m d) numbers."""

    def __init__(self, of: ChevronPosterior, with_variance: bool):
        super().__init__()
        self._noise, self.basis = of.noise_variance, of.basis.module(of.at)
        self.augment = self.support = None
        self.register_buffer("mean_weights", of.coef.flatten(0, 1).double().cpu())
        if not with_variance:
            return
        if of.support is not None:
            self.support = of.support.exported()
            return
        self.register_buffer("dense", of.dense.flatten(0, 1).double().cpu())
        self.register_buffer("squares", of.diagonal.flatten().double().cpu().square())
        if of.augment is not None:
            kernel, self._share = of.augment
            self.augment = KernelModule(kernel, of.at)

    def mean(self, X: Float[Tensor, "r d"]) -> Float[Tensor, "r t"]:
        return self.basis(X) @ self.mean_weights

    def joint(self, X: Float[Tensor, "b q d"]) -> JointMoments:
        sets, rows = X.shape[:2], X.flatten(0, 1)
        mean, variance, noise = (part.unflatten(0, sets) for part in self.moments(rows))
        if self.support is not None:
            return JointMoments(mean, self.support.joint(X).covariance, noise)
        phi = self.basis(rows).unflatten(0, sets)
        dense, scaled = phi @ self.dense, phi * self.squares.sqrt()
        covariance = dense @ dense.mT + scaled @ scaled.mT
        rest = variance - covariance.diagonal(dim1=1, dim2=2)
        return JointMoments(mean, covariance + torch.diag_embed(rest), noise)

    def moments(self, X: Float[Tensor, "r d"]) -> Moments:
        phi = self.basis(X)
        mean, noise = phi @ self.mean_weights, X[:, 0] * 0 + self._noise
        if self.support is not None:
            return Moments(mean, self.support.moments(X).variance, noise)
        square = phi.square()
        variance = (phi @ self.dense).square().sum(1) + square @ self.squares
        if self.augment is not None:
            prior = self.augment.diag(X)
            shared = self._share * prior
            variance = variance + shared * prior / (square.sum(1) + shared)
        return Moments(mean, variance, noise)


@dataclass(frozen=True, eq=False)
class SampledModel:
    """A chevron of very many weights, and the data that further training needs.

    Attributes
    ----------
    functions : Functions
    mean : ndarray of shape (q, m / q, t)
    dense : ndarray of shape (q, m / q, c)
    diagonal : ndarray of shape (q, m / q)
    support_X, support_Y : ndarray
        Support rows in the model's units.
    noise : float
        Noise variance of predictions, 0 for labels.
    curvature : float
        Mean curvature of minus the log likelihood per row.
    n_rows : float
        Number of rows so far, or the sum of their weights.
    dtype : str
        Precision of training and of predictions.
    lower_bound : float
        The ELBO in nats, NaN if it is unknown.
    by_support : bool
        Whether variances are those given the support rows.
    variance_scale : float
        Factor of the variance given the support rows.
    support_share : ndarray of shape (s,) or None
        Counts of the support rows in units of the table's mean; None in files of versions that
        left out ones.
    constant : ndarray of shape (t,) or None
        Constants of the latent functions; None without classes.
    """

    functions: Functions
    mean: np.ndarray
    dense: np.ndarray
    diagonal: np.ndarray
    support_X: np.ndarray
    support_Y: np.ndarray
    noise: float
    curvature: float
    n_rows: float
    dtype: str
    lower_bound: float
    by_support: bool
    variance_scale: float = 1.0
    support_share: np.ndarray | None = None
    constant: np.ndarray | None = None

    # Fits that continue and fitted attributes read this of any model.
    inference = "stochastic"

    @property
    def method(self) -> str:
        return "steps" if self.functions.points is None else "dual"

    @property
    def shares(self) -> np.ndarray:
        """`support_share`, with the ones that earlier versions left out."""
        share = self.support_share
        return np.ones(len(self.support_X)) if share is None else share

    @property
    def n_dense(self) -> int:
        return self.dense.shape[2]

    @property
    def n_targets(self) -> int:
        return self.mean.shape[2]

    def coef(self, d: int) -> np.ndarray:
        """Means (m, t) of the weights."""
        return self.mean.reshape(-1, self.n_targets)

    def posterior(self, d: int, device: torch.device) -> Posterior:
        """The posterior, in the precision of training."""
        functions, dtype = self.functions, getattr(torch, self.dtype)
        compiled = compile_kernel(functions.kernel, d)
        arrays = (self.mean, self.dense, self.diagonal)
        weights = (torch.tensor(a, dtype=dtype, device=device) for a in arrays)
        augment = support = None
        if functions.points is not None:
            augment = (compiled, self.noise * functions.n_components / max(self.n_rows, 1))
        # Kernel functions have variances of their own (appendix G); labels have no noise.
        if self.by_support and (functions.points is None or self.noise == 0):
            weight = self.curvature * self.n_rows / len(self.support_X)
            X = torch.as_tensor(self.support_X).to(device)
            share = torch.as_tensor(self.shares)
            support = support_variance(compiled, X, weight, self.variance_scale, share)
        basis, theta = functions.basis(d, dtype, device), compiled.theta0.to(device)
        chevron = ChevronPosterior(basis, theta, *weights, self.noise, augment, support)
        return shifted(chevron, self.constant)


def support_variance(
    compiled: TorchKernel,
    X: Tensor,
    weight: float,
    scale: float = 1.0,
    counts: Tensor = ONE,
) -> LinearModule:
    """k(x, x) - k_xp (K_pp + W^-1)^-1 k_px, the variance of f given support rows X of weight W.

    Unlike the diagonal covariance of very many weights, it accounts for their correlations. W is
    `weight` times the rows' counts, and `scale` a factor of the variance.
    """
    X = X.double()
    theta = compiled.theta0.to(X.device)
    K = compiled.cross(theta, X, X)
    noise = noise_of_means(torch.ones(len(X)).to(K) / weight, counts.to(K))
    factor, _ = cholesky_with_jitter(K + torch.diag(noise))
    features = KernelFeatures(compiled, theta, X, plain=False)
    return LinearModule(features, X[:, :1] * 0, minus=Solved(factor), scale=scale).to(X.device)


def fitted_scales(
    variance: Float[np.ndarray, " v"],
    residual: Float[np.ndarray, "v t"],
    known: Float[np.ndarray, " v"] | float,
    trained: float | None = None,
    counts: Float[np.ndarray, "#v"] = np.ones(1),  # noqa: B008
) -> tuple[float, float]:
    """Return factors of the variances of f and of the trained noise that suit held-out rows.

    They maximise the normal likelihood of the residuals, times a standard normal prior of the
    logarithm of each factor. Residuals tell the two apart only where the variances of f differ
    between rows; otherwise the prior keeps both near 1, no correction.

    Parameters
    ----------
    variance : ndarray of shape (v,)
        Variances of f.
    residual : ndarray of shape (v, t)
    known : ndarray of shape (v,) or float
        Noise variances that have no factor.
    trained : float, optional
        The trained noise variance, in addition to the known one. Without it there is one factor,
        and the other one is 1.
    counts : ndarray of shape (v,), optional
        How many rows each residual stands for.

    Notes
    -----
    O(v t) an evaluation. With a thousand residuals the prior moves a factor that alone decides
    them by 0.2 % for each unit of its logarithm.
    """
    variance, square = variance[:, None], residual**2
    known = np.broadcast_to(known, len(variance))[:, None]
    share = counts[:, None]
    parts = [variance] if trained is None else [variance, np.full_like(variance, trained)]

    def cost(z: np.ndarray) -> float:
        total = known + sum(np.exp(at) * part for at, part in zip(z, parts, strict=True))
        return float(np.sum(share * (np.log(total) + square / total)) + z @ z)

    # The likelihood may have several maxima.
    starts = map(np.array, product((-6.0, -3.0, 0.0, 3.0, 6.0), repeat=len(parts)))
    found = minimize(cost, min(starts, key=cost), method="Nelder-Mead")
    return math.exp(found.x[0]), math.exp(found.x[1]) if len(parts) > 1 else 1.0
