"""What a trained quadruply stochastic model is made of, as NumPy arrays."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

from ..._validation import resolve_device
from ...core.data import Scaling, column_moments
from ...kernels import NoSpectralDensity, TorchKernel, compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import KernelFunctions, SampledBasis, SeededFourier
from ._plan import QSGPPlan
from ._posterior import ChevronPosterior, ChevronWeights, SupportVariance


@dataclass
class Trained:
    """A posterior as NumPy arrays, and all that training needs to go on.

    Attributes
    ----------
    kernel : Kernel
        scikit-learn kernel at the trained hyperparameters.
    mean : ndarray of shape (q, m / q, t)
    dense : ndarray of shape (q, m / q, c)
    diagonal, squares : ndarray of shape (q, m / q)
    precision : ndarray of shape (m, m) or None
        Of an exact posterior, for what `partial_fit` adds.
    seed : int
        Of the basis.
    points : ndarray of shape (m, d) or None
        Of a kernel basis, in the model's units.
    support_X, support_Y : ndarray
        Support rows in the model's units.
    noise : float
        Noise variance of predictions, 0 for labels.
    curvature : float
        Mean curvature of minus the log likelihood a row.
    variance_scale : float
        Of the variance given the support rows.
    n_rows, n_steps : int
        Rows seen and steps taken so far.
    block : int
        Units of a block of the basis.
    plan : dict
        Of the last call.
    summary : str
        The plan in words.
    exact : bool
    score : float
    stop_reason : str
    """

    kernel: Any
    mean: np.ndarray
    dense: np.ndarray
    diagonal: np.ndarray
    squares: np.ndarray
    precision: np.ndarray | None
    seed: int
    points: np.ndarray | None
    support_X: np.ndarray
    support_Y: np.ndarray
    noise: float
    n_rows: int
    curvature: float
    n_steps: int
    block: int
    plan: dict
    summary: str
    exact: bool
    score: float
    stop_reason: str
    variance_scale: float = 1.0


def scaling_of(est: Any, X: np.ndarray, Y: np.ndarray, normalize_y: bool) -> Scaling:
    """Units of the model; one pass over the data."""
    t, d = Y.shape[1], X.shape[1]
    moments = column_moments(Y) if normalize_y else (np.zeros(t), np.ones(t))
    inputs = column_moments(X) if est.standardize else (np.zeros(d), np.ones(d))
    return Scaling(*inputs, *moments)


def make_basis(
    est: Any,
    kernel: TorchKernel,
    plan: QSGPPlan,
    seed: int,
    points: Tensor | None,
    block: int | None = None,
) -> SampledBasis:
    """The basis that a plan asks for; `block` where its past settles it."""
    device = resolve_device(est.device)
    if points is not None:
        return KernelFunctions(kernel, points.to(device, plan.dtype))
    per_unit = 2 * max(1, len(kernel.node.products()))
    units = max(1, plan.n_features // per_unit)
    if block is None:
        block = max(1, min(256, plan.features // per_unit, units))
    try:
        return SeededFourier(kernel, units, seed, block, plan.dtype, device)
    except NoSpectralDensity as error:
        raise NoSpectralDensity(
            f'{error.cause}, so random Fourier features cannot be drawn: use basis="rows", or '
            "points as the basis, which take any kernel."
        ) from None


def build_posterior(est: Any, state: Trained) -> ChevronPosterior:
    """The posterior from NumPy arrays; float64 predictions of exact fits, else the training's."""
    dtype = getattr(torch, state.plan["dtype"])
    compiled = compile_kernel(state.kernel, est.n_features_in_)
    points = None if state.points is None else torch.as_tensor(state.points)
    device = torch.device("cpu")
    if points is not None:
        basis: SampledBasis = KernelFunctions(compiled, points.to(dtype))
    else:
        units = state.mean.shape[1]
        basis = SeededFourier(compiled, units, state.seed, state.block, dtype, device)
    weights = ChevronWeights(
        *(torch.tensor(a, dtype=dtype) for a in (state.mean, state.dense, state.diagonal))
    )
    augment = None
    if points is not None:
        share = len(points) / max(state.n_rows, 1)
        augment = (compiled, state.noise * share)
    posterior = ChevronPosterior(basis, compiled.theta0, weights, state.noise, augment)
    # Kernel functions at points have variances of their own (appendix G); labels have no noise.
    known = points is None or state.noise == 0
    if est.covariance == "support" and known and len(state.support_X):
        weight = state.curvature * state.n_rows / len(state.support_X)
        X = torch.as_tensor(state.support_X)
        posterior.support = support_variance(compiled, X, weight, state.variance_scale)
    return posterior


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
