"""The Fisher information of the hyperparameters, from a few rows."""

from __future__ import annotations

import torch
from jaxtyping import Float64
from torch import Generator, Tensor

from ..solvers import cholesky_with_jitter
from ._problem import GPProblem

# Of a log hyperparameter, for differences that are good to eight digits.
_STEP = 1e-4


def fisher_information(
    problem: GPProblem, theta: Float64[Tensor, " p"], n_rows: int, generator: Generator
) -> Float64[Tensor, "p p"]:
    """n / m times 1/2 tr(H^-1 dH_k H^-1 dH_l) of m random rows: the metric of natural steps.

    It needs no targets, is never indefinite, and hardly depends on which rows are drawn: a metric,
    not a gradient, so that an error changes how long steps are, never where they end.

    Parameters
    ----------
    problem : GPProblem
    theta : Tensor of shape (p,)
        Log hyperparameters.
    n_rows : int
        m, at most n.
    generator : torch.Generator
        Which rows.

    Notes
    -----
    O(p m^3); derivatives of H are central differences, so that any kernel will do.
    """
    n, t = problem.Y.shape
    rows = torch.randperm(n, generator=generator)[: min(n, n_rows)].to(problem.X.device)
    part = problem.subset(rows).to(torch.float64)

    def dense(at: Tensor) -> Tensor:
        return part.operator(at).to_dense().clone()

    factor, _ = cholesky_with_jitter(dense(theta))
    whitened = []
    for step in torch.eye(len(theta), dtype=torch.float64) * _STEP:
        slope = (dense(theta + step) - dense(theta - step)) / (2 * _STEP)
        half = torch.linalg.solve_triangular(factor, slope, upper=False)
        whitened.append(torch.linalg.solve_triangular(factor, half.mT, upper=False).flatten())
    A = torch.stack(whitened)
    return (A @ A.mT).cpu() * (0.5 * t * n / len(rows))
