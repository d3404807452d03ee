"""Gradients of the sampled evidence lower bound, in closed form."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ._bounds import BasisDraw, Projection
from ._site import Site


class SampledGradient(NamedTuple):
    """The gradient of minus the ELBO at the drawn functions; zero elsewhere.

    Attributes
    ----------
    left, right : Tensor of shape (u, k)
        For either draw; their sum is unbiased for the dense gradient.
    """

    left: Float[Tensor, "u k"]
    right: Float[Tensor, "v k"]


def sampled_gradient(
    site: Site,
    Y: Float[Tensor, "b t"],
    left: BasisDraw,
    right: BasisDraw,
    control: Projection,
    n: int,
    variance: Float[Tensor, "b 1"],
) -> SampledGradient:
    """The likelihood's part of the gradient, in the means' and the dense columns' weights.

    For the Gaussian likelihood it is that of half of `mean_estimate` and of `covariance_estimate`:
    either draw meets the residual of the other. For other likelihoods it is that of
    `likelihood_bound`, the mean of both draws', where each meets its own residual and the gradient
    of what is known at the support rows goes to the other.

    Parameters
    ----------
    site : Site
    Y : Tensor of shape (b, t)
    left, right : BasisDraw
        Independent draws, of k = t columns for the mean, any further ones dense columns of C.
    control : Projection
    n : int
        Rows in all.
    variance : Tensor of shape (b, 1)
        Of f under q.
    """
    factor = 0.5 * n / len(Y)
    f, g = control.function(left), control.function(right)
    r = _residuals(site, Y, f, variance)
    s = _residuals(site, Y, g, variance)
    if site.gaussian:
        return SampledGradient(
            factor * left.scale * (left.phi.T @ s), factor * right.scale * (right.phi.T @ r)
        )
    return SampledGradient(
        factor * left.scale * _crossed(left, control, r, s),
        factor * right.scale * _crossed(right, control, s, r),
    )


def _residuals(site: Site, Y: Tensor, f: Tensor, variance: Tensor) -> Tensor:
    """Derivatives in f: residuals for the mean, mean curvature times value for dense columns."""
    t = Y.shape[1]
    terms = site.terms(Y, f[:, :t], variance)
    if f.shape[1] == t:
        return -terms.d_mean
    curvature = -2 * terms.d_variance / t
    return torch.cat([-terms.d_mean, curvature * f[:, t:]], 1)


def _crossed(draw: BasisDraw, control: Projection, own: Tensor, other: Tensor) -> Tensor:
    support = draw.phi_support.T @ (control.A.T @ (other - own))
    return draw.phi.T @ own + support
