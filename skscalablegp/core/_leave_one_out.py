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

    O(n^3). Rasmussen and Williams (2006), equation 5.12.
    """
    posterior = ExactPosterior.of(problem, theta)[0]
    rows = torch.arange(len(problem.Y), device=problem.Y.device) if rows is None else rows
    X, Y = problem.X[rows], problem.Y[rows]
    mean, variance = posterior.leave_one_out(rows, X, Y, X.new_zeros(len(X)))
    return Y - mean, variance


def left_out(problem: GPProblem, theta: Float[Tensor, " p"]) -> Leverage:
    """The mean leverage tr(I - S H^-1) / n, with noise variances S, and the leave-one-out errors.

    O(n^3). Hastie, Tibshirani and Friedman (2009), section 7.6.
    """
    errors, variance = errors_without(problem, theta)
    unexplained = errors.square().mean() / problem.Y.var(0, correction=0).mean()
    return Leverage(1 - float((problem.noise(theta) / variance).mean()), float(unexplained))
