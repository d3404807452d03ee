"""Estimators of the evidence lower bound from some rows and some basis functions.

The model is f(x) = sum_i w_i phi_i(x) with w ~ N(0, S^-1) and q(w) = N(mu, C C'). With a Gaussian
likelihood -2 ELBO = L_mu + L_Sigma + L_const (Evans and Nair 2020, eq. 2), and each is a sum of
products over rows and over pairs of basis functions: rows and both members of a pair are drawn
independently of each other, and the products remain unbiased. Were one draw used for both members,
squares would come up too often.

Every function is differentiable, and the expectation of its gradient is the dense gradient, where
entries that are not drawn count as zero. The cost is that of the drawn blocks, whatever n and m.
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
        Of these functions; k targets, or dense columns of C.
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


@dataclass(frozen=True)
class Projection:
    """A control variate row by row: the part of f that the support rows explain is known exactly.

    f(x) is estimated by ``f_draw(x) + A(x) (a - a_draw)``, with a = Phi_p mu kept up to date and A
    the regression of f(x) on f at the support rows. What is left of the variance is that of f given
    its support values, far less than what sums of squares over all support rows leave (eq. 3).

    Attributes
    ----------
    A : Tensor of shape (b, s)
    a : Tensor of shape (s, k)
        Phi_p mu.
    """

    A: Float[Tensor, "b s"]
    a: Float[Tensor, "s k"]

    def function(self, draw: BasisDraw) -> Float[Tensor, "b k"]:
        """Unbiased values of f at the rows; a gradient only through the draw itself.

        The gradient of a is dense; with the same draw it cancels that of what is subtracted.
        """
        return draw.function() + self.A @ (self.a - draw.support()).detach()


def sampled_squares(
    left: BasisDraw, right: BasisDraw, n: int, control: Projection, variance: Tensor | float = 1.0
) -> Tensor:
    """Estimate sum((Phi W)^2 / variance) over all n rows from two independent draws.

    Theorems 1 and 2; the variance is that of the rows' noise, (b, 1), or one of all rows.
    """
    f, g = control.function(left), control.function(right)
    return n / len(f) * (f * g / variance).sum()


def mean_estimate(
    Y: Float[Tensor, "b t"],
    left: BasisDraw,
    right: BasisDraw,
    variance: Tensor | float,
    n: int,
    control: Projection,
) -> Tensor:
    """Estimate (-2 y'Phi mu + |Phi mu|^2) / s2, the rows' part of L_mu (theorem 1).

    The linear term takes the mean of both draws, which makes the estimate symmetric in them.

    Parameters
    ----------
    Y : Tensor of shape (b, t)
        Targets of the drawn rows.
    left, right : BasisDraw
        Independent draws.
    variance : float or Tensor
        s2, or that of each row, (b, 1).
    n : int
        Rows in all.
    control : Projection
        The control variate.
    """
    f, g = control.function(left), control.function(right)
    linear = n / len(Y) * (Y * (f + g) / variance).sum()
    return sampled_squares(left, right, n, control, variance) - linear


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


def sampled_variance(
    dense: Float[Tensor, "b c"] | None,
    phi: Float[Tensor, "b u"],
    diagonal: Float[Tensor, "u k"],
    scale: float,
) -> Float[Tensor, "b k"]:
    """Variance, over eps, of the sampled estimate of phi C eps with eps ~ N(0, I).

    The deviation of f is not linear in the entries of C, so that no sampled value of it is
    unbiased, and the variance that eq. 5 and theorem 3 print in its place has the wrong unit.
    phi C eps is linear: sampling it keeps Jensen's argument, and given the draw it is normal with
    variance |f_dense|^2 + scale^2 sum_r (phi_r c_rr)^2. At scale 1 that is the variance of f.

    Parameters
    ----------
    dense : Tensor of shape (b, c) or None
        Sampled values of phi times the dense columns.
    phi : Tensor of shape (b, u)
        The drawn functions among the others.
    diagonal : Tensor of shape (u, k)
        Their c_rr, for each target or for all.
    scale : float
        (m - c) / u.
    """
    variance = scale**2 * (phi.square() @ diagonal.square())
    if dense is not None:
        variance = variance + dense.square().sum(1, keepdim=True)
    return variance.clamp_min(0)


def likelihood_bound(
    site: Site,
    Y: Float[Tensor, "b t"],
    draw: BasisDraw,
    variance: Float[Tensor, "b 1"],
    n: int,
    control: Projection,
) -> Tensor:
    """Estimate a lower bound of E_q log p(y | X, w): exact at full draws (theorem 3).

    log g is concave, so that its mean over draws of f is at most its value at the mean over draws.

    Parameters
    ----------
    site : Site
        log g and its expectation over a Gaussian f.
    Y : Tensor of shape (b, t)
    draw : BasisDraw
        Of the mean's weights.
    variance : Tensor of shape (b, 1)
        See `sampled_variance`; of a draw independent of `draw` or the same one.
    n : int
        Rows in all.
    control : Projection
        The closer f is estimated, the tighter the bound.
    """
    f = control.function(draw)
    return n / len(Y) * site.terms(Y, f, variance).value.sum()
