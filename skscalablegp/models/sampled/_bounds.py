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

    def function(self, draw: BasisDraw, other: BasisDraw | None = None) -> Float[Tensor, "b k"]:
        """Unbiased values of f at the rows.

        The gradient of a is dense. Kept to the functions of a draw and rescaled (appendix F.1) it
        is unbiased; where f goes on into something that is not linear, that takes an `other` draw.
        """
        if other is None:
            # With the same draw it cancels the gradient of what is subtracted.
            return draw.function() + self.A @ (self.a - draw.support()).detach()
        moved = other.support() - other.support().detach()
        return draw.function() + self.A @ (self.a + moved - draw.support())


@dataclass(frozen=True)
class SupportSquares:
    """The paper's control variate (eq. 3, proposition 3): squared norms at the support rows.

    Attributes
    ----------
    a : Tensor of shape (s, k)
        Phi_p mu.
    """

    a: Float[Tensor, "s k"]

    def correction(self, left: BasisDraw, right: BasisDraw, n: int) -> Tensor:
        """Zero in expectation, as is its gradient; to be added to the sum of squares."""
        pl, pr = left.support(), right.support()
        # The exact a'a has a dense gradient: keep what is drawn, rescaled (appendix F.1), half on
        # each draw.
        moved = 0.5 * (pl - pl.detach()) + 0.5 * (pr - pr.detach())
        expected = self.a.square().sum() + 2 * (self.a * moved).sum()
        return n / len(self.a) * (expected - (pl * pr).sum())


Control = Projection | SupportSquares | None


def sampled_function(draw: BasisDraw, control: Control) -> Float[Tensor, "b k"]:
    """f at the rows, unbiased over the draw."""
    return control.function(draw) if isinstance(control, Projection) else draw.function()


def sampled_squares(left: BasisDraw, right: BasisDraw, n: int, control: Control = None) -> Tensor:
    """Estimate sum((Phi W)^2) over all n rows from two independent draws (theorems 1 and 2)."""
    f, g = sampled_function(left, control), sampled_function(right, control)
    value = n / len(f) * (f * g).sum()
    if isinstance(control, SupportSquares):
        value = value + control.correction(left, right, n)
    return value


def sampled_prior(
    left: BasisDraw,
    right: BasisDraw,
    prior: Float[Tensor, " u"] | Float[Tensor, "u v"],
    prior_right: Float[Tensor, " v"] | None = None,
) -> Tensor:
    """Estimate tr(W' S W).

    Parameters
    ----------
    left, right : BasisDraw
        Independent draws.
    prior : Tensor of shape (u,) or (u, v)
        Diagonal entries of S for the left draw, or S between left and right. A diagonal needs one
        draw only: the mean of both is taken.
    prior_right : Tensor of shape (v,), optional
        The diagonal for the right draw.
    """
    if prior.ndim == 2:
        return left.scale * right.scale * (left.weights * (prior @ right.weights)).sum()
    terms = left.scale * (prior @ left.weights.square()).sum()
    return 0.5 * (terms + right.scale * (prior_right @ right.weights.square()).sum())


def mean_estimate(
    Y: Float[Tensor, "b t"],
    left: BasisDraw,
    right: BasisDraw,
    prior: Tensor,
    prior_right: Tensor | None,
    variance: Tensor | float,
    n: int,
    control: Control = None,
) -> Tensor:
    """Estimate L_mu = (-2 y'Phi mu + |Phi mu|^2) / s2 + mu'S mu (theorem 1).

    The linear term takes the mean of both draws, which makes the estimate symmetric in them.

    Parameters
    ----------
    Y : Tensor of shape (b, t)
        Targets of the drawn rows.
    left, right : BasisDraw
        Independent draws.
    prior, prior_right : Tensor
        See `sampled_prior`.
    variance : float or Tensor
        s2.
    n : int
        Rows in all.
    control : Projection, SupportSquares or None
        The control variate.
    """
    f, g = sampled_function(left, control), sampled_function(right, control)
    linear = n / len(Y) * (Y * (f + g)).sum()
    squares = sampled_squares(left, right, n, control)
    return (squares - linear) / variance + sampled_prior(left, right, prior, prior_right)


def covariance_estimate(
    dense: tuple[BasisDraw, BasisDraw, Tensor, Tensor | None] | None,
    dense_diagonal: Float[Tensor, " c"],
    phi: Float[Tensor, "b u"],
    diagonal: Float[Tensor, " u"],
    prior: Float[Tensor, " u"],
    scale: float,
    variance: Tensor | float,
    n: int,
    control: Control = None,
) -> Tensor:
    """Estimate L_Sigma = sum((Phi C)^2) / s2 + tr(S C C') - log|C C'| (theorem 2).

    Parameters
    ----------
    dense : tuple of two BasisDraw and their priors, or None
        Rows i and j of the c dense columns, as in `mean_estimate`.
    dense_diagonal : Tensor of shape (c,)
        Their diagonal entries, all of them.
    phi : Tensor of shape (b, u)
        The third, independent draw r among the other columns, at the rows.
    diagonal : Tensor of shape (u,)
        Their entries c_rr.
    prior : Tensor of shape (u,)
        S_rr.
    scale : float
        (m - c) / u.
    variance, n, control
        As in `mean_estimate`.
    """
    square = diagonal.square()
    of_rows = n / len(phi) * phi.square().sum(0)
    sparse = square * (of_rows / variance + prior) - square.log()
    value = scale * sparse.sum() - 2 * dense_diagonal.log().sum()
    if dense is None:
        return value
    left, right, prior_left, prior_right = dense
    squares = sampled_squares(left, right, n, control)
    return value + squares / variance + sampled_prior(left, right, prior_left, prior_right)


def constant_estimate(
    Y: Float[Tensor, "b t"],
    prior: Float[Tensor, " u"],
    scale: float,
    variance: Tensor,
    n: int,
    m: int,
) -> Tensor:
    """Estimate L_const = -log|S| - m + n log(2 pi s2) + y'y / s2 (proposition 2), S diagonal."""
    rows = n * torch.log(2 * torch.pi * variance) * Y.shape[1]
    return rows + n / len(Y) * Y.square().sum() / variance - scale * prior.log().sum() - m


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
    control: Projection | None = None,
    other: BasisDraw | None = None,
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
    control : Projection or None
        The closer f is estimated, the tighter the bound.
    other : BasisDraw, optional
        A second draw, for an unbiased gradient with a control variate.
    """
    f = draw.function() if control is None else control.function(draw, other)
    return n / len(Y) * site.terms(Y, f, variance).value.sum()
