"""The Fisher information of the hyperparameters, from a subset of the rows."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from ...workers import one_thread
from ..blocks import look_up
from ..solvers import cholesky_with_jitter
from ._problem import GPProblem

# Step of the differences in a log hyperparameter, which gives about seven digits.
_STEP = 1e-7


def fisher_information(
    problem: GPProblem,
    theta: Float64[Tensor, " p"],
    n_rows: int,
    generator: Generator,
    directions: Float64[Tensor, "q p"] | None = None,
) -> Float64[Tensor, "q q"]:
    """Estimate the Fisher information 1/2 tr(H^-1 dH_k H^-1 dH_l) from m random rows.

    The value for the m rows is multiplied by n / m and by the number of targets. The matrix does
    not depend on the targets and is positive semi-definite. As the metric of natural gradient
    steps it need not be exact: an error changes the length and direction of steps, but not the
    point to which they converge.

    Parameters
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        Log hyperparameters.
    n_rows : int
        The number of rows m, at most n.
    generator : torch.Generator
        Draws the rows.
    directions : Tensor of shape (q, p), optional
        The derivatives are along these; by default along each hyperparameter.

    Returns
    -------
    information : Tensor of shape (q, q)

    Notes
    -----
    O(q m^3). The derivatives of H are differences, which any kernel allows.
    """
    if directions is None:
        directions = torch.eye(len(theta), dtype=torch.float64)
    # The digits of sums must not depend on the number of threads of the caller.
    with one_thread():
        n, t = problem.Y.shape
        rows = torch.randperm(n, generator=generator)[: min(n, n_rows)]
        # In order, so that the digits of sums over all rows do not depend on the draw.
        part = problem.subset(rows.sort().values.to(problem.X.device)).to(torch.float64)

        def dense(at: Tensor) -> Tensor:
            look_up()  # Wide tables have thousands of slopes.
            return part.operator(at).to_dense()

        H = dense(theta)
        slopes = [(dense(theta + step) - H) / _STEP for step in directions * _STEP]
        factor, _ = cholesky_with_jitter(H)
        m, p = len(H), len(slopes)
        half = torch.linalg.solve_triangular(factor, torch.cat(slopes, 1), upper=False)
        # The slopes are symmetric, so that the transposed halves are the other side.
        half = half.view(m, p, m).transpose(0, 2).reshape(m, p * m)
        whole = torch.linalg.solve_triangular(factor, half, upper=False)
        A = whole.view(m, p, m).transpose(0, 1).reshape(p, m * m)
        information = A @ A.mT
        information += _of_repeats(part, theta, directions)
        return information.cpu() * (0.5 * t * n / len(rows))


def _of_repeats(
    part: GPProblem, theta: Float64[Tensor, " p"], directions: Float64[Tensor, "q p"]
) -> Float64[Tensor, "q q"]:
    """The information in the scatter of merged rows: k - 1 times that of one number."""
    noise = part.row_noise(theta)
    slopes = torch.stack(
        [
            (part.row_noise(theta + step) - noise) / (_STEP * noise.clamp_min(1e-300))
            for step in directions * _STEP
        ]
    )
    more = part.pair_weight * (part.rows.weight - 1).clamp_min(0)
    return (slopes * more) @ slopes.mT
