"""The solve at the trained hyperparameters that predictions are made of."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from ...core.training import Monitor
from ...linalg.gradients import (
    GPProblem,
    GradientState,
    exact_marginal_likelihood,
)
from ...linalg.operators import KernelOperator
from ...linalg.preconditioners import Preconditioner, build_preconditioner
from ...linalg.solvers import (
    MaxSeconds,
    Solution,
    Solver,
    SolverState,
    Status,
    preconditioner_for,
    solve,
    stochastic_log_det,
)
from ._plan import SOLVED_VARIANCE_ROWS
from ._posterior import PathwiseSamples
from ._solves import Solves, default_preconditioner


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
        The log marginal likelihood, and its standard error where it is an estimate; NaN where
        there was no time for it.
    interrupted : bool
        Whether an interrupt cut it short.
    """

    solution: Solution
    weights: Float[Tensor, "n t"]
    samples: PathwiseSamples | None
    value: float
    std_error: float
    interrupted: bool


def final_solve(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    solves: Solves,
    n_samples: int,
    state: GradientState,
    generator: Generator,
    monitor: Monitor,
) -> FinalSolve:
    """Solve for the targets and, where there are any, for posterior samples.

    Parameters
    ----------
    problem : GPProblem
        All rows.
    theta : Tensor of shape (p,)
        Trained log hyperparameters.
    solves : Solves
        Solver, tolerance and budget.
    n_samples : int
        Of a pathwise posterior; 0 for the mean alone.
    state : GradientState
        What training ended with; its probes and solutions are moved to theta where they fit.
    generator : torch.Generator
        Randomness of new probes and of the likelihood's estimate.
    monitor : Monitor
        For what is left of the time budget: the solve has that, and a tenth of it in any case, and
        what it has reached by then is the answer, as it is after an interrupt.
    """
    operator, estimator = problem.operator(theta), solves.pathwise(n_samples)
    t = problem.Y.shape[1]
    B, probes, x0 = problem.Y, None, None
    if n_samples:
        if solves.warm_start and _continues(state, problem, n_samples):
            probes, x0 = state.probes, state.previous
        else:
            probes = estimator.draw(problem, generator)
        B = torch.cat([B, estimator.right_hand_sides(problem, operator, probes)], 1)
    preconditioner = build_preconditioner(preconditioner_for(solves.solver), operator, generator)
    stopping = estimator.stopping(t)
    if monitor.max_seconds is not None:
        stopping = stopping | MaxSeconds(max(monitor.seconds_left, 0.1 * monitor.max_seconds))
    solution, interrupted = _interruptible(operator, B, solves.solver, stopping, x0, preconditioner)
    weights, samples = solution.value[:, :t], None
    if probes is not None:
        samples = PathwiseSamples(probes.features, probes.weights, solution.value[:, t:])
    value = error = float("nan")
    try:
        if len(problem.X) <= SOLVED_VARIANCE_ROWS:
            exact = problem.to(torch.float64)
            value, error = exact_marginal_likelihood(exact, theta, False).value, 0.0
        elif not interrupted and monitor.seconds_left != 0:
            if preconditioner.rank == 0:
                preconditioner = _of_variances(solves, operator, generator)
            value, error = _estimate_likelihood(
                problem, operator, weights, preconditioner, generator
            )
    except KeyboardInterrupt:
        interrupted = True
    return FinalSolve(solution, weights, samples, value, error, interrupted)


def _interruptible(
    operator: KernelOperator,
    B: Float[Tensor, "n s"],
    solver: Solver,
    stopping: Any,
    x0: Tensor | None,
    preconditioner: Preconditioner,
) -> tuple[Solution, bool]:
    """The solution, as far as it came before an interrupt, and whether there was one."""
    states: list[SolverState] = []

    def keep(state: SolverState) -> None:
        states[:] = [state]

    try:
        return solve(
            operator,
            B,
            solver,
            stopping=stopping,
            x0=x0,
            preconditioner=preconditioner,
            callback=keep,
        ), False
    except KeyboardInterrupt:
        if not states:
            raise
    state = states[0]
    # Columns of an extreme size are solved for in other units.
    units = torch.where(state.b_norms > 0, B.double().norm(dim=0).cpu() / state.b_norms, 1.0)
    value, residuals = state.x * units.to(state.x), state.residual_norms
    return Solution(value, Status.MAX_ITER, residuals, operator.epochs, state.iteration), True


def _of_variances(solves: Solves, operator: KernelOperator, generator: Generator) -> Preconditioner:
    """One for the quadrature: that of predictions, or the one that "auto" builds."""
    chosen = preconditioner_for(solves.variances) or default_preconditioner()
    return build_preconditioner(chosen, operator, generator)


def _estimate_likelihood(
    problem: GPProblem,
    operator: KernelOperator,
    V: Float[Tensor, "n t"],
    preconditioner: Preconditioner,
    generator: Generator,
) -> tuple[float, float]:
    """log p(Y) and its error, bias included, the log determinant by stochastic Lanczos quadrature.

    So few steps leave a bias of hundreds of nats without a preconditioner: here there always is
    one, whatever the solver uses.
    """
    n, t = problem.Y.shape
    log_det, error = stochastic_log_det(
        operator, 16, 30, generator=generator, preconditioner=preconditioner, lower=1.0
    )
    # Y' H^-1 Y to second order in the residual, which training tolerances leave large.
    residual = problem.Y - operator.matmul(V)
    quadratic = float(((problem.Y + residual).double() * V.double()).sum())
    constant = 0.5 * n * t * math.log(2 * math.pi)
    return -0.5 * quadratic - 0.5 * t * log_det - constant, 0.5 * t * error


def _continues(state: GradientState, problem: GPProblem, n_probes: int) -> bool:
    """Whether training ended with pathwise probes that fit this problem."""
    probes = state.samples
    return (
        probes is not None
        and state.previous is not None
        and probes.noise.shape == (len(problem.X), n_probes)
        and probes.noise.dtype == problem.X.dtype
        and probes.noise.device == problem.X.device
    )
