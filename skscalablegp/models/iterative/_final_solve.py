"""The solve at the trained hyperparameters, from which predictions are made."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ..._end import End
from ...core.training import Budget
from ...linalg.gradients import GPProblem, GradientState, exact_marginal_likelihood
from ...linalg.operators import KernelOperator, LinearOperator
from ...linalg.preconditioners import Preconditioner, build_preconditioner
from ...linalg.solvers import (
    CG,
    LogDet,
    MaxIterations,
    MaxSeconds,
    Solution,
    Solver,
    SolverState,
    WithLogDet,
    preconditioner_for,
    solve,
)
from ._early_end import HeldOutErrors
from ._plan import EXACT_POSTERIOR_ROWS, NEAREST, SOLVED_VARIANCE_ROWS
from ._posterior import PathwiseSamples
from ._solves import Solves, default_preconditioner

# Vectors and steps of the estimate of log|H|; few on large tables, where a step takes a second.
_MANY, _FEW = (16, 30), (2, 10)
# Relative residuals of posterior samples: a share of the noise, and the smallest. On 3,500 rows
# whose noise is 1.4e-3 of the prior's deviation, residuals of 1e-2, 1e-3 and 1.4e-4 give 4.6, 1.22
# and 1.02 of the exact latent deviations after 4, 5 and 6 passes over the kernel matrix.
_OF_NOISE, _LEAST_SAMPLE_TOL = 0.1, 1e-4


@dataclass(frozen=True)
class FinalSolve:
    """The results from which an iterative posterior can be built.

    Attributes
    ----------
    solution : Solution
        How the linear solve ended.
    weights : Tensor of shape (n, t)
        H^-1 Y; zero for rows that were held out.
    samples : PathwiseSamples or None
        Of a pathwise posterior.
    value, std_error : float
        The log marginal likelihood of the rows with weights and its standard error, 0 if it is
        exact; NaN if there was no time for an estimate.
    interrupted : bool
        Whether an interrupt cut it short.
    left : Tensor of shape (n, t) or None
        Y - H weights, if neighbours correct the solve and it ended above its tolerance, or if rows
        were held out.
    ended_early : bool
        Whether it ended above its tolerance, and neighbours correct it.
    summary : str
        The sizes of errors of rows that are left out, in words; empty without any.
    """

    solution: Solution
    weights: Float[Tensor, "n t"]
    samples: PathwiseSamples | None
    value: float
    std_error: float
    interrupted: bool
    left: Float[Tensor, "n t"] | None = None
    ended_early: bool = False
    summary: str = ""


def final_solve(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    solves: Solves,
    n_samples: int,
    state: GradientState,
    generator: Generator,
    budget: Budget,
    corrected: bool = False,
) -> FinalSolve:
    """Solve for the targets and, if `n_samples` is positive, for posterior samples.

    Parameters
    ----------
    problem : GPProblem
        The rows of the solve.
    theta : Tensor of shape (p,)
        Trained log hyperparameters.
    solves : Solves
        Solver, tolerance and budget, and the rule by which the solve may end early.
    n_samples : int
        Of a pathwise posterior; 0 for the mean alone.
    state : GradientState
        The last state of training. Its probes and solutions are used again if they fit.
    generator : torch.Generator
        Randomness of new probes and of the likelihood's estimate.
    budget : Budget
        The solve has the time of `Budget.for_result`; when it is over, or after an interrupt, the
        current iterate is the result.
    corrected : bool, default=False
        Whether neighbours correct a solve that ends early. Its residuals, and what follows, then
        need a part of this time.
    """
    operator, estimator = problem.operator(theta), solves.pathwise(n_samples)
    t = problem.Y.shape[1]
    B, probes, x0, tol = problem.Y, None, None, None
    if n_samples:
        if solves.warm_start and _continues(state, problem, n_samples):
            probes, x0 = state.probes, state.previous
        else:
            probes = estimator.draw(problem, generator)
        prior = estimator.right_hand_sides(problem, operator, probes)
        B, tol = torch.cat([B, prior], 1), _sample_tol(solves, operator, prior)
    preconditioner = build_preconditioner(preconditioner_for(solves.solver), operator, generator)
    stopping = estimator.stopping(t, tol)
    part = "solve of the mean" if corrected else 1.0
    if (seconds := budget.for_result(part)) is not None:
        # Without a step the mean would be that of the prior.
        stopping = stopping | (MaxSeconds(seconds) & MaxIterations(1))
    watch = None
    if solves.early is not None:
        stopping, watch = stopping | solves.early, solves.early.watch
    products, log_det = operator, None
    estimated = operator.shape[0] > SOLVED_VARIANCE_ROWS and preconditioner.rank > 0
    # With a time limit the solve has all of the time.
    if estimated and budget.limit is None and isinstance(solves.solver, CG):
        # Products of the solve also estimate log|H|.
        log_det = _log_det(operator, preconditioner, generator)
        products = WithLogDet(operator, log_det)
    settings = {"stopping": stopping, "x0": x0, "preconditioner": preconditioner}
    solution, interrupted = _interruptible(products, B, solves.solver, budget, watch, settings)
    solved = solution.value.to(problem.X.dtype)
    # A pickle keeps the strides of whole arrays only, and answers have the same bits with them.
    weights, drawn = solved[:, :t], solved[:, t:].contiguous()
    samples = probes and PathwiseSamples(probes.features, probes.weights, drawn)
    left = None
    if corrected and bool((solution.residuals > solves.tol).any()):
        left = problem.Y - operator.matmul(weights)
    value = error = float("nan")
    with budget.may_end() as ending:
        if len(problem.X) <= SOLVED_VARIANCE_ROWS:
            exact = problem.to(torch.float64)
            value, error = exact_marginal_likelihood(exact, theta, False).value, 0.0
        elif not interrupted and budget.left != 0 and (budget.limit is None or solution.converged):
            if preconditioner.rank == 0:
                chosen = preconditioner_for(solves.variances) or default_preconditioner()
                preconditioner = build_preconditioner(chosen, operator, generator)
            log_det = log_det or _log_det(operator, preconditioner, generator)
            R = problem.Y - operator.matmul(weights) if left is None else left
            value, error = _estimate_likelihood(problem, theta, weights, R, preconditioner, log_det)
    interrupted = interrupted or ending.reason is End.INTERRUPTED
    early = left is not None
    return FinalSolve(solution, weights, samples, value, error, interrupted, left, early)


def _sample_tol(solves: Solves, operator: KernelOperator, prior: Float[Tensor, "n s"]) -> float:
    """The relative residual at which posterior samples are known, at most that of the mean.

    A residual moves a sample as much as noise of its size does, which rows near each other average
    out. With a preconditioner, a tenth of the noise needs few more steps.
    """
    if preconditioner_for(solves.solver) is None:
        return solves.tol
    noise = float((operator.noise.mean() / prior.square().mean()).sqrt())
    return min(solves.tol, max(_LEAST_SAMPLE_TOL, _OF_NOISE * noise))


def solve_without(
    held: Int[Tensor, " h"],
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    solved: Callable[[GPProblem, HeldOutErrors | None], FinalSolve],
    budget: Budget,
    ends_early: bool = False,
) -> FinalSolve:
    """The final solve of the rows that are not held out, as one of all rows.

    The weights of held-out rows are zero. Like the residuals of other rows, what the weights leave
    of their targets corrects predictions near them. Their errors are those of new rows. The
    leave-one-out error of another row is its weight times the variance given all rows, and
    neighbours know only a larger variance.

    Parameters
    ----------
    held : Tensor of shape (h,)
    problem : GPProblem
        All rows.
    theta : Tensor of shape (p,)
    solved : callable
        The final solve of a part of the rows, with the rule by which it may end early.
    budget : Budget
        Leaves time for the errors of held-out rows after the solve.
    ends_early : bool, default=False
        Whether it may end when further steps do not reduce the errors of held-out rows.

    Returns
    -------
    final : FinalSolve
        With residuals of all rows. The likelihood is that of the rows that are not held out.
    """
    others = torch.ones(len(problem.X), dtype=torch.bool, device=held.device)
    others[held] = False
    # The part has a workspace of its own.
    problem.workspace.release()
    operator = replace(problem, keep=False).operator(theta)
    early = None
    if ends_early:
        begun = budget.seconds
        early = HeldOutErrors(operator, problem.Y, others, NEAREST, problem.keep)
        # They take as long when the solve has ended.
        budget.reserve(budget.seconds - begun)
    final = solved(problem.subset(others.nonzero()[:, 0]), early)
    weights, left = torch.zeros_like(problem.Y), torch.zeros_like(problem.Y)
    weights[others] = final.weights
    if final.left is not None:
        left[others] = final.left
    left[held] = problem.Y[held] - operator.chosen(held).matmul(weights)
    return replace(final, weights=weights, left=left)


def _interruptible(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    solver: Solver,
    budget: Budget,
    watch: Callable[[SolverState], None] | None,
    settings: dict[str, Any],
) -> tuple[Solution, bool]:
    """The solution, or the last iterate before an interrupt, and whether there was one."""
    states: list[SolverState] = []

    def keep(state: SolverState) -> None:
        states[:] = [state]
        if watch is not None:
            watch(state)

    with budget.may_end(lambda reason: states):
        return solve(operator, B, solver, callback=keep, **settings), False
    state = states[0]
    # The solver rescales columns of an extreme size.
    units = torch.where(state.b_norms > 0, B.double().norm(dim=0).cpu() / state.b_norms, 1.0)
    value, residuals = state.x * units.to(state.x), state.residual_norms
    return Solution(value, End.MAX_ITER, residuals, operator.epochs, state.iteration), True


def _log_det(
    operator: KernelOperator, preconditioner: Preconditioner, generator: Generator
) -> LogDet:
    """The estimate of log|H| by stochastic Lanczos quadrature.

    Without a preconditioner so few steps have a bias of hundreds of nats.
    """
    vectors, steps = _MANY if operator.shape[0] <= EXACT_POSTERIOR_ROWS["cpu"] else _FEW
    return LogDet(operator, vectors, steps, generator, preconditioner, preconditioner.lower)


def _estimate_likelihood(
    problem: GPProblem,
    theta: Float[Tensor, " p"],
    V: Float[Tensor, "n t"],
    R: Float[Tensor, "n t"],
    preconditioner: Preconditioner,
    log_det: LogDet,
) -> tuple[float, float]:
    """log p(Y) and its error, with R = Y - H V.

    The error includes the possible bias of the quadrature if the preconditioner has a bound, and
    what is known only approximately because the solve has a residual.
    """
    n, t = V.shape
    estimate, error = log_det.estimate()
    # Y' H^-1 Y = (Y + R)' V + R' H^-1 R, whose last term the preconditioner approximates.
    rest = float((R.double() * preconditioner.solve(R).double()).sum())
    quadratic = float(((problem.Y + R).double() * V.double()).sum()) + rest
    constant = 0.5 * n * t * math.log(2 * math.pi) - problem.repeated(theta, False)[0]
    return -0.5 * quadratic - 0.5 * t * estimate - constant, 0.5 * (t * error + rest)


def _continues(state: GradientState, problem: GPProblem, n_probes: int) -> bool:
    """Whether training left pathwise probes that fit this problem."""
    probes = state.samples
    return (
        probes is not None
        and state.previous is not None
        and probes.noise.shape == (len(problem.X), n_probes)
        and probes.noise.dtype == problem.X.dtype
        and probes.noise.device == problem.X.device
    )
