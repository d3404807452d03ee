"""Estimates of the evidence lower bound and of its gradient from sampled rows and functions.

The model is f(x) = sum_i w_i phi_i(x) with w ~ N(0, S^-1) and q(w) = N(mu, C C'). With a Gaussian
likelihood -2 ELBO = L_mu + L_Sigma + L_const (Evans and Nair 2020, eq. 2), where each part is a sum
of products over rows and over pairs of basis functions. Rows and both members of a pair are drawn
independently of each other, so that products of draws are unbiased. One draw for both members
would count the squares too often. The cost depends on the size of the draws alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from ...core.data import RowSource
from ._basis import BasisPart, SampledBasis
from ._noise import NoiseAtRows
from ._support import SupportRows


@dataclass(frozen=True)
class BasisDraw:
    """Drawn basis functions at drawn rows, with their weights.

    Attributes
    ----------
    phi : Tensor of shape (b, u)
        The functions at the rows of the batch.
    weights : Tensor of shape (u, k)
        Their weights for t targets, followed by dense columns of C.
    scale : float
        m / u, which turns a sum over the draw into an estimate of the sum over all m functions.
    correction : Tensor of shape (b, k) or float, default=0.0
        What a control variate adds to these estimates, for example A(x) (a - a_draw), by regression
        on the support rows: a = Phi_p mu is known exactly there, and A is the regression of f(x) on
        f at the support rows. The remaining variance is that of f given its support values, which
        is far less than with sums of squares over all support rows.
    """

    phi: Float[Tensor, "b u"]
    weights: Float[Tensor, "u k"]
    scale: float
    correction: Float[Tensor, "b k"] | float = 0.0

    def function(self) -> Float[Tensor, "b k"]:
        """Unbiased estimates of the weighted sum of all m functions at the rows."""
        return self.scale * (self.phi @ self.weights) + self.correction


def pull_of_squares(
    phi_support: Float[Tensor, "s u"], misfit: Float[Tensor, "s k"], weight: float
) -> Float[Tensor, "u k"]:
    """A term of a draw's gradient, per row, whose expectation is zero.

    The paper's control variate (eq. 3, proposition 3) has squared norms over the support rows. The
    gradient of the known norm is dense. The drawn part of it is kept and rescaled (appendix F.1).

    Parameters
    ----------
    phi_support : Tensor of shape (s, u)
        The drawn functions at the support rows.
    misfit : Tensor of shape (s, k)
        Phi_p w less the estimate of it from the other draw.
    weight : float
        Curvature of minus the log likelihood, divided by s.
    """
    return weight * (phi_support.T @ misfit)


@dataclass(frozen=True)
class SampledBatch:
    """What a step has drawn.

    Attributes
    ----------
    Y : Tensor of shape (b, t)
        Targets of the drawn rows.
    left, right : BasisDraw
        Independent draws. Their first t columns are for the mean, further ones are dense columns
        of C.
    square : Tensor of shape (b, 1)
        Variance of f from the other columns of C.
    n : float
        Number of rows that the batch represents; one that stands for several counts once.
    crosses : bool, default=False
        Whether the gradient of a draw uses the other draw's estimate of f for every likelihood, as
        it does with a correction by regression.
    """

    Y: Float[Tensor, "b t"]
    left: BasisDraw
    right: BasisDraw
    square: Float[Tensor, "b 1"]
    n: float
    crosses: bool = False

    def variance(self, f: Float[Tensor, "b k"], g: Float[Tensor, "b k"]) -> Float[Tensor, "b 1"]:
        """The estimate of the variance of f, given those of f; it may be negative."""
        t = self.Y.shape[1]
        return self.square + (f[:, t:] * g[:, t:]).sum(1, keepdim=True)


def sampled_loss(
    noise: NoiseAtRows, batch: SampledBatch, variances: Float[Tensor, " b"] | None = None
) -> Tensor:
    """Estimate minus E_q log p(Y | f), over all n rows and targets.

    The estimate is unbiased for a Gaussian likelihood (theorems 1 and 2). For others its
    expectation, given the variance, is an upper bound that is exact for draws of all functions:
    log p is concave, so that its mean over draws of f is at most its value at the mean over draws
    (theorem 3). Eq. 5 has the variance of f where it should have the standard deviation.

    Parameters
    ----------
    noise : NoiseAtRows
    batch : SampledBatch
    variances : Tensor of shape (b,), optional
        Noise variances; those of `noise` by default.
    """
    f, g, Y, t = batch.left.function(), batch.right.function(), batch.Y, batch.Y.shape[1]
    variance = batch.variance(f, g)
    variances = noise.variances(Y).to(f) if variances is None else variances
    if noise.gaussian:
        misfit = ((Y - f[:, :t]) * (Y - g[:, :t])).sum(1) + t * variance[:, 0]
        value = -0.5 * (misfit / variances + t * torch.log(2 * torch.pi * variances))
    else:
        v = variance.clamp_min(0)
        ends = [
            noise.likelihood.expected(Y, noise.latent(h[:, :t]), v, variances).value for h in (f, g)
        ]
        value = 0.5 * (ends[0] + ends[1])
    return -batch.n / len(Y) * noise.counted(value).sum()


def sampled_gradient(
    noise: NoiseAtRows, batch: SampledBatch, known: Float[Tensor, "b k"] | None = None
) -> tuple[Float[Tensor, "u k"], Float[Tensor, "v k"]]:
    """The gradient of minus E_q log p(Y | f) in the weights of both draws.

    For a Gaussian likelihood it is the gradient of `sampled_loss`: each draw is multiplied by the
    residual of the other, and the sum is unbiased for the dense gradient. For other likelihoods
    each draw is multiplied by its own residual, which is the gradient of the paper's bound and
    pulls weights to zero by the variance of the draws. In a batch that crosses it is the other's
    residual here, too, and the remaining bias is of the order of the residual's curvature.
    If f is known, both draws are multiplied by its residual, which has no bias.

    Parameters
    ----------
    noise : NoiseAtRows
    batch : SampledBatch
        All targets share the dense columns and their prior, so that the gradient of these is a
        mean over targets.
    known : Tensor of shape (b, k), optional
        f and the dense columns' values at the rows, from all functions. The variance from the
        other columns is then exact too.
    """
    Y, left, right = batch.Y, batch.left, batch.right
    f, g = (left.function(), right.function()) if known is None else (known, known)
    variance = batch.variance(f, g).clamp_min(0)
    r, s = (_residuals(noise, Y, values, variance) for values in (f, g))
    if noise.gaussian or batch.crosses:
        r, s = s, r
    factor = 0.5 * batch.n / len(Y)
    return factor * left.scale * (left.phi.T @ r), factor * right.scale * (right.phi.T @ s)


def _residuals(noise: NoiseAtRows, Y: Tensor, f: Tensor, variance: Tensor) -> Tensor:
    """Derivatives in f for the mean, and mean curvature times value for dense columns."""
    t = Y.shape[1]
    terms = noise.terms(Y, f[:, :t], variance)
    if f.shape[1] == t:
        return -terms.d_mean
    return torch.cat([-terms.d_mean, -2 / t * terms.d_variance * f[:, t:]], 1)


def optimal_diagonal(squares: Tensor, curvature: Tensor | float, prior: Tensor | float) -> Tensor:
    """c_rr = (curvature |phi_r|^2 + S_rr)^-1/2, which maximises the ELBO (proposition 1).

    Parameters
    ----------
    squares : Tensor
        |phi_r|^2 over all rows.
    curvature : float or Tensor
        1 / s2, or the mean curvature of another likelihood, weighted by phi_r^2.
    prior : float or Tensor
        S_rr.
    """
    return torch.rsqrt(curvature * squares + prior)


@dataclass(frozen=True, eq=False)
class StepRows:
    """Rows that batches are drawn from, and what does not change from step to step.

    Attributes
    ----------
    source : RowSource
    basis : SampledBasis
    support : SupportRows
    """

    source: RowSource
    basis: SampledBasis
    support: SupportRows


def batch_sums(  # noqa: PLR0913 (ranks get tensors one by one)
    rows: StepRows,
    own: np.ndarray,
    noise: NoiseAtRows,
    drawn: list[np.ndarray],
    n: float,
    size: int,
    regression: bool,
    theta: Float[Tensor, " p"],
    left: Float[Tensor, "u k"],
    right: Float[Tensor, "u k"],
    left_support: Float[Tensor, "s k"],
    right_support: Float[Tensor, "s k"],
    a: Float[Tensor, "s k"],
    *more: Tensor,
) -> tuple[Tensor, ...]:
    """Sums over some rows: gradients of minus E_q log p in both draws' weights, and in theta.

    The gradients are those of `sampled_gradient`, and are zeros without rows.

    Parameters
    ----------
    rows : StepRows
    own : ndarray of int
        The numbers of the rows.
    noise : NoiseAtRows
        Of no particular rows.
    drawn : list of ndarray of int
        Blocks of basis functions: of the left draw, of the right one, and of one for the variance
        in the gradient of the hyperparameters, if that is wanted.
    n : float
        Number of rows that the batch represents.
    size : int
        Number of rows of the whole batch.
    regression : bool
        Whether f at the rows is controlled by regression on the support rows.
    theta : Tensor of shape (p,)
    left, right : Tensor of shape (u, k)
        The drawn weights.
    left_support, right_support, a : Tensor of shape (s, k)
        The draws' estimates at the support rows, and the values there.
    more : Tensor
        Diagonals of C (q, u) for the functions of the left draw and the right one, under a
        likelihood that is not Gaussian; that for the third draw, if there is one; and the weights
        (q, units, k) and the diagonal (q, units) of all functions, if f is to come from these.
    """
    if not len(own):
        return tuple(torch.zeros_like(part).double() for part in (left, right, theta))
    some = rows.source.take(own)
    X, noise, draws = some.X, noise.at(some), []
    parts = [rows.basis.part(blocks) for blocks in drawn]
    A = rows.support.regression(rows.support.cross(X)) if regression else None
    given = (left, left_support), (right, right_support)
    for part, (w, known) in zip(parts[:2], given, strict=True):
        correction = 0.0 if A is None else A @ (a - known)
        draws.append(BasisDraw(part.evaluate(theta, X), w, part.scale, correction))
    n_diagonals = len(parts) - (2 if noise.gaussian else 0)
    diagonals, whole = more[:n_diagonals], more[n_diagonals:]
    square, f = draws[0].phi.new_zeros(len(X), 1), None
    if not noise.gaussian:
        # An unbiased estimate of the variance of f from the diagonal of C.
        both = [
            draw.scale * (draw.phi.square() @ c.flatten().square())
            for draw, c in zip(draws, diagonals, strict=False)
        ]
        square = (sum(both) / len(both))[:, None]
    if whole:
        f, square, (coef, c) = 0.0, 0.0, whole
        for index, phi in rows.basis.evaluations(theta, X):
            f = f + phi @ coef[:, index].flatten(0, 1)
            square = square + (phi.square() @ c[:, index].flatten().square())[:, None]
    # Sums are scaled from the rows of the whole batch.
    batch = SampledBatch(some.Y, *draws, square, n * len(own) / size, regression)
    gradients = sampled_gradient(noise, batch, f)
    of_theta = torch.zeros_like(theta)
    if len(parts) > 2:
        of_theta = _of_theta(rows, noise, batch, parts, diagonals[-1], X, theta)
    return tuple(part.detach().double() for part in (*gradients, of_theta))


def _of_theta(
    rows: StepRows,
    noise: NoiseAtRows,
    batch: SampledBatch,
    parts: list[BasisPart],
    c: Float[Tensor, "q u"],
    X: Float[Tensor, "b d"],
    theta: Float[Tensor, " p"],
) -> Float[Tensor, " p"]:
    """The gradient of the sampled loss (empirical Bayes), zeros if there is none.

    The control variate keeps the basis of the start (appendix F.3), so that f at the support rows
    remains known.
    """
    with torch.enable_grad():
        theta = theta.detach().requires_grad_(True)
        left, right, third = (part.evaluate(theta, X) for part in parts)
        batch = replace(
            batch,
            left=replace(batch.left, phi=left),
            right=replace(batch.right, phi=right),
            square=parts[2].scale * (third.square() @ c.flatten().square())[:, None],
        )
        variances = None
        if noise.gaussian:
            white = rows.support.kernel.noise(theta, X[:1].double())[0]
            variances = (white + noise.known).expand(len(X)).to(X)
        loss = sampled_loss(noise, batch, variances)
        (gradient,) = torch.autograd.grad(loss, theta, allow_unused=True)
    return torch.zeros_like(theta) if gradient is None else gradient
