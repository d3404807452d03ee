"""The Fisher information of the hyperparameters, from a subset of the rows."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from ..solvers import cholesky_with_jitter
from ._problem import GPProblem

# Step of the central differences in a log hyperparameter, which gives about eight digits.
_STEP = 1e-4


def fisher_information(
    problem: GPProblem, theta: Float64[Tensor, " p"], n_rows: int, generator: Generator
) -> Float64[Tensor, "p p"]:
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

    Returns
    -------
    information : Tensor of shape (p, p)

    Notes
    -----
    O(p m^3). The derivatives of H are central differences, which any kernel allows.
    """
    n, t = problem.Y.shape
    rows = torch.randperm(n, generator=generator)[: min(n, n_rows)].to(problem.X.device)
    part = problem.subset(rows).to(torch.float64)

    def dense(at: Tensor) -> Tensor:
        return part.operator(at).to_dense()

    factor, _ = cholesky_with_jitter(dense(theta))
    whitened = []
    for step in torch.eye(len(theta), dtype=torch.float64) * _STEP:
        slope = (dense(theta + step) - dense(theta - step)) / (2 * _STEP)
        half = torch.linalg.solve_triangular(factor, slope, upper=False)
        whitened.append(torch.linalg.solve_triangular(factor, half.mT, upper=False).flatten())
    A = torch.stack(whitened)
    return (A @ A.mT).cpu() * (0.5 * t * n / len(rows))
