"""How an exact process predicts its own rows without their targets."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..linalg.gradients import GPProblem
from .posteriors import ExactPosterior


class Leverage(NamedTuple):
    """How much the rows of an exact process depend on their own targets.

    Attributes
    ----------
    leverage : float
        Mean derivative of the fitted values with respect to their own targets, between 0 and 1:
        the effective number of parameters for each row.
    unexplained : float
        Mean squared error of predictions without the row's own target, relative to the variance of
        the targets.
    """

    leverage: float
    unexplained: float


def errors_without(
    problem: GPProblem, theta: Float[Tensor, " p"], rows: Int[Tensor, " m"] | None = None
) -> tuple[Float[Tensor, "m t"], Float[Tensor, " m"]]:
    """Errors of predictions of rows (default: all) without their own targets, and the variances.

    Merged rows are left out as a whole. O(n^3). Rasmussen and Williams (2006), equation 5.12.
    """
    posterior = ExactPosterior.of(problem, theta)[0]
    rows = torch.arange(len(problem.Y), device=problem.Y.device) if rows is None else rows
    X, Y = problem.X[rows], problem.Y[rows]
    mean, variance = posterior.leave_one_out(rows, X, Y, X.new_zeros(len(X)))
    return Y - mean, variance


def left_out(problem: GPProblem, theta: Float[Tensor, " p"]) -> Leverage:
    """The mean leverage tr(I - S H^-1) / n, with noise variances S, and the leave-one-out errors.

    O(n^3). Hastie, Tibshirani and Friedman (2009), section 7.6.
    Means are those over the rows before equal ones were merged, of which one at a time is left out.
    """
    errors, variance = errors_without(problem, theta)
    rows, noise = problem.rows, problem.noise(theta)
    counts, n = rows.weight, rows.weight.sum()
    # Where one of k equal rows is left out, the others draw its prediction to their mean.
    latent, several = (variance - noise).clamp_min(0), counts > 1
    drawn = torch.where(several, latent / ((counts - 1) * latent + counts * noise), 0.0)
    squares = counts * errors.square().sum(1) * (1 - (counts - 1) * drawn).square()
    squares = squares + rows.scatter * (1 + drawn).square()
    total = rows.squares_of(rows.Y, centred=True)
    return Leverage(float((1 - noise / variance).sum() / n), float(squares.sum() / total))
