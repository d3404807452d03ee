"""Estimates of the evidence lower bound and of its gradient from sampled rows and functions.

The model is f(x) = sum_i w_i phi_i(x) with w ~ N(0, S^-1) and q(w) = N(mu, C C'). With a Gaussian
likelihood -2 ELBO = L_mu + L_Sigma + L_const (Evans and Nair 2020, eq. 2), where each part is a sum
of products over rows and over pairs of basis functions. Rows and both members of a pair are drawn
independently of each other, so that products of draws are unbiased. One draw for both members
would count the squares too often. The cost depends on the size of the draws alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ._noise import NoiseAtRows


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
        Number of rows of the table, before they stand for several rows each.
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
