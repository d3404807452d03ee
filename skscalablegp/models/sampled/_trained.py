"""The model that steps have trained, as NumPy arrays, and the scale of its variances."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from ...core.posteriors import Posterior
from ...kernels import TorchKernel, compile_kernel
from ...linalg.solvers import cholesky_with_jitter
from ._basis import Functions
from ._posterior import ChevronPosterior, ChevronWeights, SupportVariance


@dataclass(frozen=True, eq=False)
class SampledModel:
    """A chevron of very many weights, with all that further training needs.

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
    n_rows : int
        Number of rows so far.
    dtype : str
        Precision of training and of predictions.
    lower_bound : float
        The ELBO in nats, NaN where it is not known.
    by_support : bool
        Whether variances are those given the support rows.
    variance_scale : float
        Factor of the variance given the support rows.
    """

    functions: Functions
    mean: np.ndarray
    dense: np.ndarray
    diagonal: np.ndarray
    support_X: np.ndarray
    support_Y: np.ndarray
    noise: float
    curvature: float
    n_rows: int
    dtype: str
    lower_bound: float
    by_support: bool
    variance_scale: float = 1.0

    # Fits that continue and fitted attributes read this of any model.
    inference = "stochastic"

    @property
    def method(self) -> str:
        return "steps" if self.functions.points is None else "dual"

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
        weights = ChevronWeights(*(torch.tensor(a, dtype=dtype, device=device) for a in arrays))
        augment = support = None
        if functions.points is not None:
            augment = (compiled, self.noise * functions.n_components / max(self.n_rows, 1))
        # Kernel functions have variances of their own (appendix G); labels have no noise.
        if self.by_support and (functions.points is None or self.noise == 0):
            weight = self.curvature * self.n_rows / len(self.support_X)
            X = torch.as_tensor(self.support_X).to(device)
            support = support_variance(compiled, X, weight, self.variance_scale)
        basis, theta = functions.basis(d, dtype, device), compiled.theta0.to(device)
        return ChevronPosterior(basis, theta, weights, self.noise, augment, support)


def support_variance(
    compiled: TorchKernel, X: Tensor, weight: float, scale: float = 1.0
) -> SupportVariance:
    """The variance of f given support rows X whose noise variance is 1 / `weight`."""
    X = X.double()
    theta = compiled.theta0.to(X.device)
    K = compiled.cross(theta, X, X)
    factor, _ = cholesky_with_jitter(K + torch.eye(len(X)).to(K) / weight)
    return SupportVariance(compiled, X, factor, scale)


def fitted_scale(variance: np.ndarray, residual: np.ndarray, noise: float) -> float:
    """The factor of the variances of f under which residuals (v, t) are likeliest; O(v t).

    A weak prior at 1 decides where the residuals consist of noise alone.
    """
    variance, square = variance[:, None], residual**2

    def cost(z: float) -> float:
        total = np.exp(z) * variance + noise
        return float(np.sum(np.log(total) + square / total)) + z**2

    return math.exp(minimize_scalar(cost, bounds=(-5.0, 5.0), method="bounded").x)


def fitted_scales(
    variance: np.ndarray, residual: np.ndarray, noise: float, known: np.ndarray | float = 0.0
) -> tuple[float, float]:
    """The factor of the variances of f, and the noise variance in addition to the known one.

    Under these, residuals (v, t) of held-out rows have the highest normal likelihood; O(v t).
    """
    variance, square = variance[:, None], residual**2
    known = np.broadcast_to(known, variance.shape[:1])[:, None]
    unit = max(float(square.mean()), 1e-12 * noise)

    def cost(z: np.ndarray) -> float:
        total = np.exp(z[0]) * variance + np.exp(z[1]) + known
        return float(np.mean(np.log(total) + square / total))

    starts = [(a, math.log(b)) for a in (-6.0, -3.0, 0.0, 3.0) for b in (noise, unit)]
    start = min(starts, key=lambda z: cost(np.array(z)))
    bounds = [(-12.0, 6.0), (math.log(1e-6 * unit), math.log(1e2 * unit))]
    found = minimize(cost, start, method="Nelder-Mead", bounds=bounds)
    return math.exp(found.x[0]), math.exp(found.x[1])
