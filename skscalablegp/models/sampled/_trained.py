"""What a trained quadruply stochastic model is made of, as NumPy arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ...core.data import Scaling, column_moments, target_moments
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions, SampledBasis, SeededFourier
from ._posterior import ChevronPosterior, ChevronWeights, SupportVariance


@dataclass(frozen=True)
class Trained:
    """A posterior as NumPy arrays, and all that training needs to go on.

    Attributes
    ----------
    kernel : Kernel
        scikit-learn kernel at the trained hyperparameters.
    mean : ndarray of shape (q, m / q, t)
    dense : ndarray of shape (q, m / q, c)
    diagonal : ndarray of shape (q, m / q)
    precision : ndarray of shape (m, m) or None
        Of an exact posterior, for what `partial_fit` adds.
    seed : int
        Of the basis.
    block : int
        Units of a block of the basis.
    points : ndarray of shape (m, d) or None
        Of a kernel basis, in the model's units.
    support_X, support_Y : ndarray
        Support rows in the model's units.
    noise : float
        Noise variance of predictions, 0 for labels.
    curvature : float
        Mean curvature of minus the log likelihood a row.
    n_rows : int
        Rows seen so far.
    dtype : str
        Of training, and of predictions.
    lower_bound : float
        The ELBO in nats, NaN where it is not known.
    variance_scale : float
        Of the variance given the support rows.
    by_support : bool
        Whether the support rows answer variances.
    """

    kernel: Any
    mean: np.ndarray
    dense: np.ndarray
    diagonal: np.ndarray
    precision: np.ndarray | None
    seed: int
    block: int
    points: np.ndarray | None
    support_X: np.ndarray
    support_Y: np.ndarray
    noise: float
    curvature: float
    n_rows: int
    dtype: str
    lower_bound: float
    variance_scale: float = 1.0
    by_support: bool = False

    @property
    def n_components(self) -> int:
        return self.mean.shape[0] * self.mean.shape[1]

    @property
    def exact(self) -> bool:
        return self.precision is not None


def scaling_of(
    X: np.ndarray, Y: np.ndarray, standardize: bool, normalize_y: bool, kernel: Any
) -> Scaling:
    """Units of the model; one pass over the data. Codes of categories stay as they are."""
    d = X.shape[1]
    mean, scale = column_moments(X) if standardize else (np.zeros(d), np.ones(d))
    coded = [] if kernel is None else compile_kernel(kernel, d).coded
    mean[coded], scale[coded] = 0.0, 1.0
    return Scaling(mean, scale, *target_moments(Y, normalize_y))


def make_basis(
    kernel: TorchKernel,
    points: Tensor | None,
    n_components: int,
    drawn: int,
    seed: int,
    dtype: torch.dtype,
    device: torch.device,
    block: int | None = None,
) -> SampledBasis:
    """Kernel functions at points, or Fourier features; `block` where a past fit settles it."""
    if points is not None:
        return KernelFunctions(kernel, points.to(device, dtype))
    per_unit = 2 * max(1, len(kernel.node.products()))
    units = max(1, n_components // per_unit)
    if block is None:
        block = max(1, min(256, drawn // per_unit, units))
    try:
        return SeededFourier(kernel, units, seed, block, dtype, device)
    except NoSpectralDensity as error:
        raise NoSpectralDensity(
            f'{error.cause}, so random Fourier features cannot be drawn: use basis="rows", or '
            "points as the basis, which take any kernel."
        ) from None


def build_posterior(state: Trained, d: int, device: torch.device) -> ChevronPosterior:
    """The posterior from NumPy arrays; float64 predictions of exact fits, else the training's."""
    dtype = getattr(torch, state.dtype)
    compiled = compile_kernel(state.kernel, d)
    points = None if state.points is None else torch.as_tensor(state.points)
    basis = make_basis(
        compiled, points, state.n_components, 0, state.seed, dtype, device, state.block
    )
    arrays = (state.mean, state.dense, state.diagonal)
    weights = ChevronWeights(*(torch.tensor(a, dtype=dtype, device=device) for a in arrays))
    augment = support = None
    if points is not None:
        augment = (compiled, state.noise * len(points) / max(state.n_rows, 1))
    # Kernel functions at points have variances of their own (appendix G); labels have no noise.
    if state.by_support and (points is None or state.noise == 0):
        weight = state.curvature * state.n_rows / len(state.support_X)
        X = torch.as_tensor(state.support_X).to(device)
        support = support_variance(compiled, X, weight, state.variance_scale)
    theta = compiled.theta0.to(device)
    return ChevronPosterior(basis, theta, weights, state.noise, augment, support)


def support_variance(
    compiled: TorchKernel, X: Tensor, weight: float, scale: float = 1.0
) -> SupportVariance:
    """The variance of f given support rows X, each of which stands for several, `weight` in all."""
    X = X.double()
    theta = compiled.theta0.to(X.device)
    K = compiled.cross(theta, X, X)
    factor, _ = cholesky_with_jitter(K + torch.eye(len(X)).to(K) / weight)
    return SupportVariance(compiled, X, factor, scale)


def fitted_scales(variance: np.ndarray, residual: np.ndarray, noise: float) -> tuple[float, float]:
    """What to multiply variances of f by, and the noise's variance: under both, residuals (v, t)
    of rows that steps have not seen have the highest normal likelihood; O(v t).
    """
    variance, square = variance[:, None], residual**2
    unit = max(float(square.mean()), 1e-12 * noise)

    def cost(z: np.ndarray) -> float:
        total = np.exp(z[0]) * variance + np.exp(z[1])
        return float(np.mean(np.log(total) + square / total))

    starts = [(a, math.log(b)) for a in (-6.0, -3.0, 0.0, 3.0) for b in (noise, unit)]
    start = min(starts, key=lambda z: cost(np.array(z)))
    bounds = [(-12.0, 6.0), (math.log(1e-6 * unit), math.log(1e2 * unit))]
    found = minimize(cost, start, method="Nelder-Mead", bounds=bounds)
    return math.exp(found.x[0]), math.exp(found.x[1])
