r"""The marginal likelihood of a finite feature map, as a sum over rows and one log determinant.

With w ~ N(0, I), f(x) = phi(x)'w, F = Z'Z + s2 I (m x m) and Z the n rows of phi,

.. math:: -2 \log p(y) = \min_w |Zw - y|^2/s^2 + |w|^2 + \log|F| + (n - m)\log s^2 + n\log 2\pi

(Shoham and Avron, section 2.2, with the square that is missing in Theorem B.1). Every function here
takes moments or a batch, so that no matrix is n x n.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Float64
from scipy.optimize import minimize, minimize_scalar
from torch import Tensor

from ...core.posteriors import FeatureWeights
from ...linalg.gradients import Rows
from ...linalg.solvers import cholesky_with_jitter
from ...workers import Workers


@dataclass(frozen=True, eq=False)
class FeatureMoments:
    """Moments of n rows, which determine the posterior of a finite feature map.

    Attributes
    ----------
    gram : Tensor of shape (m, m)
        Z'Z.
    cross : Tensor of shape (m, t)
        Z'Y.
    square : float
        tr(Y'Y).
    n : int or float
        Rows, or the sum of their counts.
    log_scale : float
        Sum of log a_i, where rows of noise variance s2 / a_i^2 were multiplied by a_i.
    """

    gram: Float64[Tensor, "m m"]
    cross: Float64[Tensor, "m t"]
    square: float
    n: int | float
    log_scale: float = 0.0

    def scaled(self, variance: float) -> FeatureMoments:
        """The moments of features that are sqrt(variance) times as large."""
        return replace(self, gram=self.gram * variance, cross=self.cross * variance**0.5)

    def extended(self, n: int | float) -> FeatureMoments:
        """Estimated moments of n rows, of which these are a random part."""
        factor = n / self.n
        return FeatureMoments(
            self.gram * factor,
            self.cross * factor,
            self.square * factor,
            n,
            self.log_scale * factor,
        )


def feature_moments(
    blocks: Iterable[Rows], evaluate: Callable[[Tensor], Tensor], noise: float = 1.0
) -> FeatureMoments:
    """Accumulate the moments of features in one pass; O(n m^2) time, O(m^2) memory beside a block.

    Parameters
    ----------
    blocks : iterable of Rows
        At least one block, which may be empty.
    evaluate : callable
        phi of a block of rows; products are accumulated in float64.
    noise : float, default=1.0
        s2, which decides how much rows with known noise count (see `row_scale`).
    """
    gram = cross = None
    square, n, log_scale = 0.0, 0, 0.0
    with torch.no_grad():
        for rows in blocks:
            phi, Y, k = evaluate(rows.X).double(), rows.Y.double(), rows.weight.double()
            a = row_scale(noise, rows.noise.double())
            log_scale += float((k * a.log()).sum())
            phi, Y = phi * a[:, None], Y * a[:, None]
            phi, Y = phi * k.sqrt()[:, None], Y * k.sqrt()[:, None]
            if gram is None:
                gram = phi.new_zeros(phi.shape[1], phi.shape[1])
                cross = phi.new_zeros(phi.shape[1], Y.shape[1])
            gram.addmm_(phi.T, phi)
            cross.addmm_(phi.T, Y)
            square = square + float(Y.square().sum())
            n += float(k.sum())
    return FeatureMoments(gram, cross, square, n, log_scale)


def row_scale(noise: Tensor | float, known: Float[Tensor, " b"]) -> Float[Tensor, " b"]:
    """Factors a_i = sqrt(s2 / (s2 + c_i)) that turn rows of noise s2 + c_i into rows of noise s2.

    The scaled rows have the same weights. Their log likelihood differs by sum_i log a_i per target.
    """
    return (noise / (noise + known)).sqrt()


@dataclass(frozen=True, eq=False)
class WeightSpaceEvaluation:
    """The log marginal likelihood and the weights' posterior mean.

    Attributes
    ----------
    value : float
        Log marginal likelihood, summed over targets.
    weights : Tensor of shape (m, t)
        F^-1 Z'Y, the minimiser and the posterior mean.
    factor : Tensor of shape (m, m)
        Lower Cholesky factor of F.
    jitter : float
        Number that had to be added to the diagonal of F.
    """

    value: float
    weights: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]
    jitter: float

    def posterior(self, noise: float) -> FeatureWeights:
        """The weights' posterior, whose precision is F / s2."""
        return FeatureWeights(self.factor / noise**0.5, self.weights)


def weight_space_likelihood(moments: FeatureMoments, noise: float) -> WeightSpaceEvaluation:
    """The exact log marginal likelihood from moments and the noise variance s2; O(m^3)."""
    (m, t), n = moments.cross.shape, moments.n
    F = moments.gram.clone()
    F.diagonal().add_(noise)
    L, jitter = cholesky_with_jitter(F)
    w = torch.cholesky_solve(moments.cross, L)
    quadratic = (moments.square - float((moments.cross * w).sum())) / noise
    log_det = 2 * float(L.diagonal().log().sum()) + (n - m) * math.log(noise)
    value = -0.5 * (quadratic + t * log_det + n * t * math.log(2 * math.pi)) + t * moments.log_scale
    return WeightSpaceEvaluation(value, w, L, jitter)


def _rotated(rows: Rows, basis: Float64[Tensor, "m m"]) -> Rows:
    """The rows with their features in another basis."""
    return replace(rows, X=rows.X @ basis)


def _losses(
    rows: Rows, s2: float, inverse: Float64[Tensor, " m"], coef: Float64[Tensor, "m t"]
) -> tuple[Tensor]:
    """Sum of twice the negative log densities without their constant, and its weight.

    `inverse` is the diagonal of F^-1 in the basis of the features, and `coef` are the weights.
    """
    variance = (s2 * (1 + rows.X.square() @ inverse) + rows.noise)[:, None]
    losses = (rows.X @ coef - rows.Y).square() / variance + torch.log(variance)
    weight = rows.weight.sum() * losses.shape[1]
    return (torch.stack([(losses * rows.weight[:, None]).sum(), weight]),)


def held_out_noise(
    moments: FeatureMoments, rows: Workers, noise_bounds: tuple[float, float]
) -> tuple[float, float]:
    """Choose the noise variance that maximises the likelihood of held-out rows.

    It is estimated from held-out rows because trained features overfit the training rows.

    Parameters
    ----------
    moments : FeatureMoments
        Of the training rows.
    rows : Workers
        `Rows` with their features in place of the inputs, in float64.
    noise_bounds : tuple of float
        Of s2.

    Returns
    -------
    noise : float
    density : float
        Mean negative log density of the held-out targets at that noise, row by row.

    Notes
    -----
    O(m^3 + h m^2) once, then O(h m) an evaluation.
    """
    values, basis = torch.linalg.eigh(moments.gram)
    lam, cross = values.clamp_min(0), basis.T @ moments.cross
    rotated = rows.put(_rotated, basis)

    def density(log_noise: float) -> float:
        s2 = math.exp(log_noise)
        inverse = 1 / (lam + s2)
        given = [inverse, inverse[:, None] * cross]
        total, weight = rotated.sum(_losses, s2, *given)[0].tolist()
        return total / weight

    low, high = (math.log(bound) for bound in noise_bounds)
    if low == high:
        return noise_bounds[0], 0.5 * (density(low) + math.log(2 * math.pi))
    grid = np.linspace(low, high, 25)
    best = grid[int(np.argmin([density(g) for g in grid]))]
    step = grid[1] - grid[0]
    around = (max(low, best - step), min(high, best + step))
    found = minimize_scalar(density, bounds=around, method="bounded", options={"xatol": 1e-2})
    return math.exp(found.x), 0.5 * (float(found.fun) + math.log(2 * math.pi))


def best_scales(
    moments: FeatureMoments,
    noise: float,
    noise_bounds: tuple[float, float],
    amplitude_bounds: tuple[float, float],
) -> tuple[float, float]:
    """Maximise the exact likelihood over the noise and a common factor of the features' variance.

    An evaluation costs O(m) in the eigenbasis of Z'Z, which costs O(m^3).

    Parameters
    ----------
    moments : FeatureMoments
    noise : float
        Start of the search; the factor starts at 1.
    noise_bounds : tuple of float
        Of s2.
    amplitude_bounds : tuple of float
        Of the factor; equal bounds fix it.

    Returns
    -------
    noise, amplitude : float
    """
    (m, t), n = moments.cross.shape, moments.n
    values, basis = torch.linalg.eigh(moments.gram)
    lam = values.clamp_min(0).cpu().numpy()
    a = (basis.T @ moments.cross).square().sum(1).cpu().numpy()

    def objective(z: np.ndarray) -> tuple[float, np.ndarray]:
        s2, tau = np.exp(z)
        D = tau * lam + s2
        explained = tau * a / D
        quadratic = (moments.square - explained.sum()) / s2
        f = quadratic + t * np.log(D).sum() + t * (n - m) * z[0]
        # d/dlog s2 and d/dlog tau.
        g0 = -quadratic + (explained / D).sum() + t * (s2 / D).sum() + t * (n - m)
        g1 = -(explained / D).sum() + t * (tau * lam / D).sum()
        return f / n, np.array([g0, g1]) / n

    bounds = np.log([noise_bounds, amplitude_bounds])
    start = np.clip([math.log(noise), 0.0], bounds[:, 0], bounds[:, 1])
    found = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds)
    best = found.x if np.isfinite(found.fun) and found.fun <= objective(start)[0] else start
    return float(np.exp(best[0])), float(np.exp(best[1]))


def data_fit(
    phi: Float[Tensor, "b m"],
    Y: Float[Tensor, "b t"],
    weights: Float[Tensor, "m t"],
    log_noise: Float[Tensor, ""],
    n: int | float,
) -> Float[Tensor, ""]:
    """An unbiased estimate of g / n from a batch of b rows, which is exact for b = n.

    g = |Zw - Y|^2 / s2 + |w|^2 + (n - m) log s2, summed over targets, is the part of the objective
    that is a sum over rows (Shoham and Avron, section 3).
    """
    t, m = Y.shape[1], phi.shape[1]
    residual = (phi @ weights - Y).square().sum() / len(Y)
    rest = weights.square().sum() + t * (n - m) * log_noise
    return residual * torch.exp(-log_noise) + rest / n


def log_det_direction(
    phi: Float[Tensor, "b m"],
    P: Float[Tensor, "m m"],
    trace: Float[Tensor, ""],
    log_noise: Float[Tensor, ""],
    n: int | float,
) -> Float[Tensor, ""]:
    """<P, F_S> / n with F_S = (n / b) phi'phi + s2 I, whose gradient is that of log|F| at P = F^-1.

    It is linear in P, so that an unbiased P that is independent of the batch gives an unbiased
    gradient. `trace` is tr(P). O(b m^2).
    """
    return ((phi @ P) * phi).sum() / len(phi) + torch.exp(log_noise) * trace / n
