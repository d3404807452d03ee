"""Gaussian variational inference in a linear model with all rows and all basis functions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from ._site import Site

MOST_NEWTON_STEPS = 100


@dataclass(frozen=True)
class LinearPosterior:
    """q(w) = N(mean, C C') with every entry of the lower triangular C.

    Attributes
    ----------
    mean : Tensor of shape (m, t)
    factor : Tensor of shape (m, m)
        C.
    precision : Tensor of shape (m, m)
        (C C')^-1.
    std : Tensor of shape (n, 1)
        Of the function at the rows; half way to where it is going while steps go on.
    n_steps : int
        Newton steps.
    """

    mean: Float64[Tensor, "m t"]
    factor: Float64[Tensor, "m m"]
    precision: Float64[Tensor, "m m"]
    std: Float64[Tensor, "n 1"]
    n_steps: int


def newton_steps(
    site: Site,
    phi: Float64[Tensor, "n m"],
    Y: Float64[Tensor, "n t"],
    prior_mean: Float64[Tensor, "m t"],
    prior_precision: Float64[Tensor, "m m"],
    tol: float = 1e-6,
) -> Iterator[LinearPosterior]:
    """The optimum of the ELBO over all Gaussians that share one covariance over targets.

    For a Gaussian likelihood this is Bayesian linear regression, one step. For others the
    precision is the prior's plus Phi' Lambda Phi with Lambda the mean curvature (Price's theorem),
    and Newton steps alternate with it until both stand still.

    Parameters
    ----------
    site : Site
    phi : Tensor of shape (n, m)
        The basis at the rows.
    Y : Tensor of shape (n, t)
    prior_mean : Tensor of shape (m, t)
    prior_precision : Tensor of shape (m, m)
    tol : float, default=1e-6
        Stop when no function value moves by more, relative to the largest and to the largest
        standard deviation under the prior.

    Yields
    ------
    posterior : LinearPosterior
        After every step; the last is the optimum.

    Notes
    -----
    O(n m^2 + m^3) a step.
    """
    mean, precision = prior_mean, prior_precision
    # Of the prior; a Gaussian likelihood does not ask.
    std = phi.new_zeros(len(phi), 1) if site.gaussian else _std(phi, _factor(precision))
    unit = float(std.max())
    steps = 1 if site.gaussian else MOST_NEWTON_STEPS
    for step in range(1, steps + 1):
        f = phi @ mean
        curvature = -2 * site.terms(Y, f, std.square()).d_variance / Y.shape[1]
        new = prior_precision + phi.T @ (curvature * phi)
        # Mean and curvature would chase each other back and forth: go half of the way.
        precision = new if site.gaussian or step < 3 else 0.5 * (new + precision)
        factor = _factor(precision)
        loss, gradient = _loss(site, phi, Y, mean, std, prior_mean, prior_precision)
        change = factor @ (factor.T @ gradient)
        if not site.gaussian:
            change = _accepted(
                change,
                loss,
                lambda w, std=std: _loss(site, phi, Y, w, std, prior_mean, prior_precision)[0],
                mean,
            )
        mean = mean - change
        new_std = _std(phi, factor)
        if not site.gaussian and step > 2:
            new_std = 0.5 * (new_std + std)
        moved = torch.cat([(phi @ change).abs().max()[None], (new_std - std).abs().max()[None]])
        std = new_std
        yield LinearPosterior(mean, factor, precision, std, step)
        if float(moved.max()) <= tol * max(float(f.abs().max()), unit):
            return


def linear_posterior(
    site: Site,
    phi: Float64[Tensor, "n m"],
    Y: Float64[Tensor, "n t"],
    prior_mean: Float64[Tensor, "m t"],
    prior_precision: Float64[Tensor, "m m"],
    tol: float = 1e-6,
) -> LinearPosterior:
    """The last of `newton_steps`, which see."""
    steps = newton_steps(site, phi, Y, prior_mean, prior_precision, tol)
    return deque(steps, maxlen=1).pop()


def _factor(precision: Tensor) -> Tensor:
    """C, lower triangular, with C C' = precision^-1."""
    reverse = torch.linalg.cholesky(precision.flip(0, 1))
    eye = torch.eye(len(precision)).to(precision)
    return torch.linalg.solve_triangular(reverse, eye, upper=False).flip(0, 1).T


def _std(phi: Tensor, factor: Tensor) -> Tensor:
    """Standard deviations (n, 1) of the functions' values; O(n m^2)."""
    return (phi @ factor).square().sum(1, keepdim=True).sqrt()


def _loss(
    site: Site,
    phi: Tensor,
    Y: Tensor,
    mean: Tensor,
    std: Tensor,
    prior_mean: Tensor,
    prior_precision: Tensor,
) -> tuple[float, Tensor]:
    """Minus the ELBO as a function of the mean, and its gradient."""
    f, away = phi @ mean, mean - prior_mean
    pull = prior_precision @ away
    terms = site.terms(Y, f, std.square())
    value = 0.5 * (away * pull).sum() - terms.value.sum()
    return float(value), pull - phi.T @ terms.d_mean


def _accepted(
    change: Tensor, loss: float, loss_at: Callable[[Tensor], float], mean: Tensor
) -> Tensor:
    """The step, halved until it is no loss."""
    for _ in range(30):
        if loss_at(mean - change) <= loss:
            return change
        change = 0.5 * change
    return torch.zeros_like(change)
