"""The solve at the trained hyperparameters that predictions are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...linalg.gradients import (
    GPProblem,
    GradientState,
    PathwiseGradient,
    PathwiseProbes,
    built_preconditioner,
    exact_marginal_likelihood,
)
from ...linalg.operators import KernelOperator
from ...linalg.preconditioners import PivotedCholesky
from ...linalg.solvers import (
    Solution,
    preconditioner_for,
    resolve_solver,
    solve,
    stochastic_log_det,
)
from ._plan import AUTO_RANK, SOLVED_VARIANCE_ROWS
from ._posterior import PathwiseSamples


@dataclass(frozen=True)
class FinalSolve:
    """What an iterative posterior is rebuilt from.

    Attributes
    ----------
    solution : Solution
        How the linear solve ended.
    weights : Tensor of shape (n, t)
        H^-1 Y.
    samples : PathwiseSamples or None
        Of a pathwise posterior.
    value, std_error : float
        The log marginal likelihood, and its standard error where it is an estimate.
    """

    solution: Solution
    weights: Float[Tensor, "n t"]
    samples: PathwiseSamples | None
    value: float
    std_error: float


def final_solve(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    estimator: PathwiseGradient,
    state: GradientState | None,
    generator: Generator,
) -> FinalSolve:
    """Solve for the targets and, where there are probes, for posterior samples.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    theta : Tensor of shape (p,)
        Trained log hyperparameters.
    estimator : PathwiseGradient
        Solver, preconditioner, tolerance and number of samples; 0 for the mean alone.
    state : GradientState or None
        What training ended with; its probes and solutions are moved to theta where they fit.
    generator : torch.Generator
        Randomness of new probes and of the likelihood's estimate.
    """
    operator = problem.operator(theta)
    t = problem.Y.shape[1]
    B, probes, x0 = problem.Y, None, None
    if estimator.n_probes:
        if estimator.warm_start and _continues(state, problem, estimator.n_probes):
            probes, x0 = state.probes, state.previous
        else:
            probes = estimator.draw(problem, generator)
        B = torch.cat([B, estimator.right_hand_sides(problem, operator, probes)], 1)
    solver = resolve_solver(estimator.solver)
    chosen = preconditioner_for(estimator.solver, estimator.preconditioner)
    preconditioner = built_preconditioner(chosen, operator, generator)
    solution = solve(
        operator,
        B,
        solver,
        stopping=estimator.stopping(t),
        x0=x0,
        preconditioner=preconditioner,
    )
    weights, samples = solution.value[:, :t], None
    if probes is not None:
        samples = PathwiseSamples(probes.features, probes.weights, solution.value[:, t:])
    if len(problem.X) <= SOLVED_VARIANCE_ROWS:
        value = exact_marginal_likelihood(problem.to(torch.float64), theta, False).value
        return FinalSolve(solution, weights, samples, value, 0.0)
    value, error = _estimate_likelihood(problem, operator, weights, preconditioner, generator)
    return FinalSolve(solution, weights, samples, value, error)


def _estimate_likelihood(
    problem: GPProblem,
    operator: KernelOperator,
    V: Float[Tensor, "n t"],
    preconditioner: Any,
    generator: Generator,
) -> tuple[float, float]:
    """log p(Y) and its standard error, the log determinant by stochastic Lanczos quadrature.

    So few steps leave a bias of hundreds of nats without a preconditioner: here there always is
    one, whatever the solver uses.
    """
    n, t = problem.Y.shape
    if preconditioner.rank == 0:
        preconditioner = PivotedCholesky(AUTO_RANK, randomized=True).build(operator, generator)
    log_det, error = stochastic_log_det(
        operator, n_probes=16, n_steps=30, generator=generator, preconditioner=preconditioner
    )
    # Y' H^-1 Y to second order in the residual, which training tolerances leave large.
    residual = problem.Y - operator.matmul(V)
    quadratic = float(((problem.Y + residual).double() * V.double()).sum())
    constant = 0.5 * n * t * math.log(2 * math.pi)
    return -0.5 * quadratic - 0.5 * t * log_det - constant, 0.5 * t * error


def _continues(state: GradientState | None, problem: GPProblem, n_probes: int) -> bool:
    """Whether training ended with pathwise probes that fit this problem."""
    probes = None if state is None else state.probes
    return (
        isinstance(probes, PathwiseProbes)
        # Exact prior samples are known at the training rows only.
        and probes.features is not None
        and state.previous is not None
        and probes.noise.shape == (len(problem.X), n_probes)
        and probes.noise.dtype == problem.X.dtype
        and probes.noise.device == problem.X.device
    )
