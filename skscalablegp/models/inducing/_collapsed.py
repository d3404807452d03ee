"""The collapsed bound of a regression with inducing points, summed over blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.likelihoods import Gaussian
from ...core.posteriors import without_own
from ...kernels import TorchKernel
from ...linalg.blocks import look_up
from ...linalg.gradients import GradientEstimate, GradientEstimator, Rows
from ._bound import KernelValues, NaturalBelief, Whitening, backward_sum, inducing_gradient

# Rows whose k(Z, X) is held in memory at a time.
BLOCK_ROWS = 2048
# Factors of the ratio of noise and prior variance among which held-out rows choose.
_RATIOS = tuple(10 ** (k / 8) for k in range(-16, 25))

# ``Workers.sum`` of objects with ``blocks(size)``, which gives the rows as `Rows`.
RowSums = Callable[..., tuple[Tensor, ...]]


@dataclass(frozen=True, eq=False)
class CollapsedBound:
    """The bound at the optimal belief about the inducing values, and that belief.

    Attributes
    ----------
    value : float
        log N(Y; 0, Q + D) - tr(D^-1 (K - Q)) / 2 with Q = k(X, Z) k(Z, Z)^-1 k(Z, X), summed over
        targets; never above the log marginal likelihood.
    belief : NaturalBelief
        The optimal q(v) in whitened coordinates.
    white : Whitening
    grad : Tensor of shape (p,) or None
        In theta.
    grad_inducing : Tensor of shape (m, d) or None
        In the inducing points.
    """

    value: float
    belief: NaturalBelief
    white: Whitening
    grad: Tensor | None = None
    grad_inducing: Tensor | None = None


def collapsed_bound(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    Z: Float[Tensor, "m d"],
    sums: RowSums,
    eval_gradient: bool = False,
    block_rows: int = BLOCK_ROWS,
) -> CollapsedBound:
    """Titsias's bound and, if asked for, its gradient in theta and Z.

    With A = L^-1 k(Z, X) and B = I + A D^-1 A', log|Q + D| = log|B| + log|D| and
    y' (Q + D)^-1 y = y' D^-1 y - b' B^-1 b, b = A D^-1 y. The gradient takes a second pass over the
    rows. It is that of the variational bound with the optimal belief held fixed, since the bound is
    stationary in the belief.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
        Log hyperparameters.
    Z : Tensor of shape (m, d)
        Inducing points.
    sums : callable
        Sums over the rows, which are read once, or twice with a gradient. If ranks have rows of
        their own, about 2 m^2 numbers travel to each of them and m^2 back, and with a gradient
        2 m^2 more to each.
    eval_gradient : bool, default=False
    block_rows : int
        Rows whose k(Z, X) is held in memory at a time.

    Notes
    -----
    It costs O(n m^2 + m^3) time and O(m^2 + block m) memory. Sums are in float64 for any precision
    of the rows. Titsias (2009), equation 9.
    """
    theta, Z = theta.detach(), Z.detach()
    with torch.no_grad():
        white = Whitening.at(kernel, theta, Z.double())
    found = sums(_moments, kernel, block_rows, theta, Z, white.inverse)
    (P, shift, numbers), eye = found, torch.eye(len(Z), dtype=torch.float64, device=Z.device)
    squares, log_noise, left, n, more = numbers.tolist()
    t, belief = shift.shape[1], NaturalBelief((P + eye)[None], shift)
    whitened = belief.whitened()
    quadratic = squares - float((shift * whitened.mean).sum())
    log_det = log_noise - float(whitened.log_det[0])
    unexplained = left - float(P.diagonal().sum())
    value = -0.5 * (quadratic + t * (log_det + unexplained + n * math.log(2 * math.pi))) + more
    if not eval_gradient:
        return CollapsedBound(value, belief, white)
    excess = whitened.covariance[0] - eye
    tensors = theta, Z, white.inverse, excess, whitened.mean
    of_rows = sums(_slopes, kernel, block_rows, *tensors)
    with torch.enable_grad():
        leaves = theta.clone().requires_grad_(True), Z.clone().requires_grad_(True)
        inducing = kernel.cross(leaves[0], leaves[1].double(), leaves[1].double())
        # At the optimum, the likelihood's gradient in the belief's mean equals the divergence's.
        D = whitened.mean @ whitened.mean.T - t * excess @ (belief.precision[0] - eye)
        if inducing.requires_grad:
            backward_sum(inducing, -inducing_gradient(white, D)).backward()
    of_theta, of_Z = (-(a + b) for a, b in zip(of_rows, _gradients(*leaves), strict=True))
    return CollapsedBound(value, belief, white, of_theta, of_Z.to(Z))


@torch.no_grad()
def _moments(
    part: Any, kernel: TorchKernel, block_rows: int, theta: Tensor, Z: Tensor, inverse: Tensor
) -> tuple[Tensor, ...]:
    """Sums over some rows: A D^-1 A', A D^-1 Y, and five numbers.

    These are the sums of y' D^-1 y, log|D| and tr(D^-1 K), the number of rows, and what merged rows
    add.
    """
    P = torch.zeros(len(Z), len(Z), dtype=torch.float64, device=Z.device)
    shift, sums = None, torch.zeros(5, dtype=torch.float64, device=Z.device)
    for rows in part.blocks(block_rows):
        look_up()
        X, Y = rows.X, rows.Y
        single = kernel.noise(theta, X) + rows.noise
        noise = rows.noise_of_means(single)
        check_noise(noise)
        A = inverse.to(X) @ kernel.cross(theta, Z, X)
        scaled = A / noise
        P += scaled @ A.T
        of_Y = (scaled @ Y).double()
        shift = of_Y if shift is None else shift + of_Y
        found = (
            (Y.square() / noise[:, None]).sum(dtype=torch.float64),
            noise.log().sum(dtype=torch.float64),
            (kernel.diag(theta, X) / noise).sum(dtype=torch.float64),
            sums.new_tensor(len(X)),
            rows.log_density(single).sum(dtype=torch.float64).to(sums),
        )
        sums += torch.stack(found)
    return P, shift, sums


def _slopes(
    part: Any,
    kernel: TorchKernel,
    block_rows: int,
    theta: Tensor,
    Z: Tensor,
    inverse: Tensor,
    excess: Tensor,
    belief_mean: Tensor,
) -> tuple[Tensor, Tensor]:
    """The gradients in theta and Z of the negative bound, from k(Z, X) of some rows."""
    with torch.enable_grad():
        theta, Z = (leaf.clone().requires_grad_(True) for leaf in (theta, Z))
        for rows in part.blocks(block_rows):
            look_up()
            X = rows.X
            noise = rows.noise_of_means(kernel.noise(theta, X) + rows.noise)
            K = KernelValues(None, kernel.cross(theta, Z, X), kernel.diag(theta, X), noise)
            with torch.no_grad():
                # A rather than k(Z, Z)^-1, whose rounding errors grow with the condition number and
                # not with its square root.
                A = inverse.to(X) @ K.cross
                T = excess.to(X) @ A
                mean, variance = A.T @ belief_mean.to(X), (K.diag + (A * T).sum(0))[:, None]
                terms = Gaussian().expected(rows.Y, mean, variance, K.noise)
                cross = belief_mean.to(X) @ terms.d_mean.T
                cross.addcmul_(T, terms.d_variance[:, 0], value=2)
                cross = inverse.T.to(X) @ cross
            K.backward(KernelValues(None, cross, terms.d_variance[:, 0], terms.d_noise))
            more = rows.log_density(kernel.noise(theta, X) + rows.noise)
            if more.requires_grad:
                (-more.sum()).backward()
    return _gradients(theta, Z)


def _gradients(theta: Tensor, Z: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients that leaves have got; zeros if there are none."""
    grads = (torch.zeros_like(x) if x.grad is None else x.grad for x in (theta, Z))
    return tuple(grad.double() for grad in grads)


@torch.no_grad()
def _products(
    part: Any, kernel: TorchKernel, block_rows: int, theta: Tensor, Z: Tensor, inverse: Tensor
) -> tuple[Tensor, Tensor]:
    """A A' and A Y of some rows, without their noise."""
    P, shift = torch.zeros(len(Z), len(Z), dtype=torch.float64, device=Z.device), None
    for rows in part.blocks(block_rows):
        A = inverse.to(rows.X) @ kernel.cross(theta, Z, rows.X)
        weighted = A * rows.weight
        P += weighted @ A.T
        of_Y = (weighted @ rows.Y).double()
        shift = of_Y if shift is None else shift + of_Y
    return P, shift


@torch.no_grad()
def left_out_scales(
    kernel: TorchKernel,
    theta: Float[Tensor, " p"],
    Z: Float[Tensor, "m d"],
    sums: RowSums,
    some: Rows,
    block_rows: int = BLOCK_ROWS,
) -> tuple[float, float]:
    """Factors of the prior variance and of the noise variance that suit held-out rows.

    The predicted means depend only on the ratio of noise and prior variance. Of a grid of ratios,
    the one counts with which each of some rows has the highest density if its own target is left
    out. For every ratio, the best common factor of all variances has a closed form.

    Parameters
    ----------
    kernel : TorchKernel
        A constant times a kernel, plus white noise.
    theta : Tensor of shape (p,)
        Log hyperparameters.
    Z : Tensor of shape (m, d)
        Inducing points.
    sums : callable
        Sums over all rows, as in `collapsed_bound`; their known noise does not count.
    some : Rows
        The held-out rows. Of a merged row, all is left out.

    Returns
    -------
    prior, noise : float

    Notes
    -----
    O(n m^2 + m^3). In the eigenvectors of A A', with A = L^-1 k(Z, X), each ratio costs O(m) for
    each of the held-out rows. Titsias (2009), equation 6.
    """
    white = Whitening.at(kernel, theta, Z.double())
    P, shift = sums(_products, kernel, block_rows, theta, Z, white.inverse)
    values, vectors = torch.linalg.eigh(P)
    values.clamp_(min=0)
    X, Y, some = some.X, some.Y, some.to(torch.float64)
    share = some.weight / some.weight.mean()
    A = vectors.T @ (white.inverse.to(X) @ kernel.cross(theta, Z, X)).double()
    squares, shift, Y = A.square(), vectors.T @ shift, Y.double()
    rest = (kernel.diag(theta, X).double() - squares.sum(0)).clamp_min(0)
    noise = kernel.noise(theta, X).double()
    best = (math.inf, 1.0, 1.0)
    for ratio in _RATIOS:
        level = ratio * noise.mean()
        mean = A.T @ (shift / (level + values)[:, None])
        spread = squares.T @ (level / (level + values))
        own = some.noise_of_means(ratio * noise)
        mean, variance = without_own(Y, mean, spread, own)
        variance = variance + rest + (ratio * noise - own)
        squares_of = share * (Y - mean).square().mean(1) / variance
        factor = float(squares_of.mean())
        loss = 0.5 * math.log(max(factor, 1e-300)) + 0.5 * float((share * variance.log()).mean())
        best = min(best, (loss, factor, factor * ratio))
    return best[1:]


def check_noise(noise: Tensor) -> None:
    """Refuse rows without noise, at which the bound is minus infinity.

    Raises
    ------
    ValueError
        With what to set.
    """
    if bool((noise <= 0).any()):
        raise ValueError(
            "A bound with inducing points needs noise in every row: set alpha to a positive "
            "value (alpha=1e-6), or add a WhiteKernel() to the kernel."
        )


class InducingGradient(GradientEstimator):
    """Value and gradient of the collapsed bound of Titsias (2009), both exact.

    Parameters
    ----------
    Z : Tensor of shape (m, d)
        Inducing points.
    scale : Tensor of shape (d,) or None, default=None
        Units in which the points are trained. The points' coordinates in these units, row by row,
        then follow the hyperparameters in theta and in the gradient. None keeps the points.

    Notes
    -----
    It costs O(n m^2) time, and O(m^2) memory in addition to a block of rows.
    """

    exact = True

    def __init__(self, Z: Any, *, scale: Any = None):
        self.Z = Z
        self.scale = scale

    def points(self, theta: Float[Tensor, " p"], n_params: int) -> Tensor:
        """The inducing points that belong to theta."""
        if self.scale is None:
            return self.Z
        return theta[n_params:].reshape(self.Z.shape).to(self.Z) * self.scale

    def moving(self) -> np.ndarray:
        """The initial points in their units, which follow the hyperparameters in theta."""
        return np.zeros(0) if self.scale is None else (self.Z / self.scale).cpu().numpy().ravel()

    def estimate(self, problem, theta, state):
        kernel = problem.kernel
        p, Z = kernel.n_params, self.points(theta, kernel.n_params)
        bound = collapsed_bound(kernel, theta[:p], Z, problem.total, eval_gradient=True)
        grad = bound.grad
        if self.scale is not None:
            grad = torch.cat([grad, (bound.grad_inducing * self.scale).flatten().to(grad)])
        return GradientEstimate(grad, bound.value, None, bound.white.jitter), state
