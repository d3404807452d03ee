"""Estimates of the evidence lower bound and of its gradient from some rows and some functions.

The model is f(x) = sum_i w_i phi_i(x) with w ~ N(0, S^-1) and q(w) = N(mu, C C'). With a Gaussian
likelihood -2 ELBO = L_mu + L_Sigma + L_const (Evans and Nair 2020, eq. 2), and each is a sum of
products over rows and over pairs of basis functions: rows and both members of a pair are drawn
independently of each other, and the products remain unbiased. Were one draw used for both members,
squares would come up too often. The cost is that of the drawn blocks, whatever n and m.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ._site import Site


@dataclass(frozen=True)
class BasisDraw:
    """Some basis functions at the drawn rows, with their weights.

    Attributes
    ----------
    phi : Tensor of shape (b, u)
        At the batch's rows.
    weights : Tensor of shape (u, k)
        Of these functions; t targets, then dense columns of C.
    scale : float
        m / u, what makes sums over the draw estimates of sums over all m.
    phi_support : Tensor of shape (s, u), optional
        The same functions at the support rows, at the hyperparameters of the control variate.
    """

    phi: Float[Tensor, "b u"]
    weights: Float[Tensor, "u k"]
    scale: float
    phi_support: Float[Tensor, "s u"] | None = None

    def function(self) -> Float[Tensor, "b k"]:
        """Unbiased values of all m functions' weighted sum at the rows."""
        return self.scale * (self.phi @ self.weights)

    def support(self) -> Float[Tensor, "s k"]:
        """The same at the support rows."""
        return self.scale * (self.phi_support @ self.weights)


class Control:
    """No control variate: the draws alone."""

    # Whether a draw's gradient meets what the other draw says of f, whatever the likelihood.
    crosses = False

    def function(self, draw: BasisDraw) -> Float[Tensor, "b k"]:
        """Unbiased values of f at the rows; a gradient only through the draw itself."""
        return draw.function()

    def pull(self, draw: BasisDraw, other: BasisDraw) -> Float[Tensor, "u k"] | float:
        """What is added to a draw's gradient a row; zero in expectation."""
        return 0.0


@dataclass(frozen=True)
class Squares(Control):
    """The paper's control variate (eq. 3, proposition 3): squared norms at the support rows.

    The gradient of the known norm is dense; what is drawn of it is kept, rescaled (appendix F.1).

    Attributes
    ----------
    a : Tensor of shape (s, k)
        Phi_p w.
    weight : float
        Curvature of minus the log likelihood, over s.
    """

    a: Float[Tensor, "s k"]
    weight: float

    def pull(self, draw: BasisDraw, other: BasisDraw) -> Float[Tensor, "u k"]:
        return self.weight * (draw.phi_support.T @ (self.a - other.support()))


@dataclass(frozen=True)
class Projection(Control):
    """A control variate row by row: the part of f that the support rows explain is known exactly.

    f(x) is estimated by ``f_draw(x) + A(x) (a - a_draw)``, with a = Phi_p mu kept up to date and A
    the regression of f(x) on f at the support rows. What is left of the variance is that of f given
    its support values, far less than what sums of squares over all support rows leave.

    Attributes
    ----------
    A : Tensor of shape (b, s)
    a : Tensor of shape (s, k)
        Phi_p w.
    """

    A: Float[Tensor, "b s"]
    a: Float[Tensor, "s k"]
    crosses = True

    def function(self, draw: BasisDraw) -> Float[Tensor, "b k"]:
        return draw.function() + self.A @ (self.a - draw.support()).detach()


def sampled_loss(
    site: Site,
    Y: Float[Tensor, "b t"],
    left: BasisDraw,
    right: BasisDraw,
    control: Control,
    square: Float[Tensor, "b 1"],
    n: int,
    noise: Float[Tensor, " b"] | None = None,
) -> Tensor:
    """Estimate minus E_q log p(Y | f), over all n rows and targets.

    Unbiased for a Gaussian likelihood (theorems 1 and 2). For others it is at least that in
    expectation, given the variance, and exact at full draws: log p is concave, so that its mean
    over draws of f is at most its value at the mean over draws (theorem 3). Eq. 5 prints the
    variance of f where its root belongs.

    Parameters
    ----------
    site : Site
    Y : Tensor of shape (b, t)
        Targets of the drawn rows.
    left, right : BasisDraw
        Independent draws, of k = t columns for the mean, any further ones dense columns of C.
    control : Control
    square : Tensor of shape (b, 1)
        Share of the variance of f that the other columns of C have.
    n : int
        Rows in all.
    noise : Tensor of shape (b,), optional
        Noise variances; the site's unless others are given.
    """
    f, g, t = control.function(left), control.function(right), Y.shape[1]
    variance = square + (f[:, t:] * g[:, t:]).sum(1, keepdim=True)
    noise = site.variances(Y).to(f) if noise is None else noise
    if site.gaussian:
        misfit = ((Y - f[:, :t]) * (Y - g[:, :t])).sum(1) + t * variance[:, 0]
        value = -0.5 * (misfit / noise + t * torch.log(2 * torch.pi * noise))
    else:
        v = variance.clamp_min(0)
        ends = [site.likelihood.expected(Y, h[:, :t], v, noise).value for h in (f, g)]
        value = 0.5 * (ends[0] + ends[1])
    return -n / len(Y) * value.sum()


def sampled_gradient(
    site: Site,
    Y: Float[Tensor, "b t"],
    left: BasisDraw,
    right: BasisDraw,
    control: Control,
    square: Float[Tensor, "b 1"],
    n: int,
) -> tuple[Float[Tensor, "u k"], Float[Tensor, "v k"]]:
    """The gradient of minus E_q log p(Y | f) at the functions of either draw; zero elsewhere.

    For a Gaussian likelihood it is that of `sampled_loss`: either draw meets the residual of the
    other, and the sum is unbiased for the dense gradient. For other likelihoods each meets its own,
    which follows the paper's bound; that pulls weights to zero by the variance of the draws. A
    control that crosses gives it the other's there too: what is left is of the order of the
    residual's curvature.

    Parameters
    ----------
    site, Y, left, right, control, square, n
        As in `sampled_loss`. Dense columns belong to all targets, as does their prior: their
        gradient is a mean over targets.
    """
    t, f, g = Y.shape[1], control.function(left), control.function(right)
    variance = (square + (f[:, t:] * g[:, t:]).sum(1, keepdim=True)).clamp_min(0)
    r, s = (_residuals(site, Y, values, variance) for values in (f, g))
    if site.gaussian or control.crosses:
        r, s = s, r
    factor = 0.5 * n / len(Y)
    pulls = control.pull(left, right), control.pull(right, left)
    return (
        factor * left.scale * (left.phi.T @ r + len(Y) * pulls[0]),
        factor * right.scale * (right.phi.T @ s + len(Y) * pulls[1]),
    )


def _residuals(site: Site, Y: Tensor, f: Tensor, variance: Tensor) -> Tensor:
    """Derivatives in f: residuals for the mean, mean curvature times value for dense columns."""
    t = Y.shape[1]
    terms = site.terms(Y, f[:, :t], variance)
    if f.shape[1] == t:
        return -terms.d_mean
    return torch.cat([-terms.d_mean, -2 / t * terms.d_variance * f[:, t:]], 1)


def optimal_diagonal(squares: Tensor, curvature: Tensor | float, prior: Tensor | float) -> Tensor:
    """c_rr = (curvature |phi_r|^2 + S_rr)^-1/2, what maximises the ELBO (proposition 1).

    Parameters
    ----------
    squares : Tensor
        |phi_r|^2 over all rows.
    curvature : float or Tensor
        1 / s2; for other likelihoods the mean of their curvature, weighted by phi_r^2.
    prior : float or Tensor
        S_rr.
    """
    return torch.rsqrt(curvature * squares + prior)
