"""The loop that runs every solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._clock import now
from ..._end import End
from ...workers import one_thread
from ..blocks import watched
from ..operators import SelfAdjointOperator, column_norms
from ..preconditioners import Preconditioner
from ._base import Column, Solver, SolverState, first_guess
from ._solution import Solution
from ._stopping import Progress, StoppingRule


def solve(  # noqa: C901 (one branch for each case)
    operator: SelfAdjointOperator,
    B: Float[Tensor, "n s"],
    solver: Solver,
    *,
    stopping: StoppingRule,
    x0: Float[Tensor, "n s"] | None = None,
    preconditioner: Preconditioner | None = None,
    callback: Callable[[SolverState], object] | None = None,
) -> Solution:
    """Solve H V = B until a stopping rule holds or no column can improve further.

    Parameters
    ----------
    operator : SelfAdjointOperator
        H. Budgets refer to the epochs that the operator counts.
    B : Tensor of shape (n, s)
        Right-hand sides.
    solver : Solver
        The method and its settings.
    stopping : StoppingRule
        For example ``RelativeResidual(0.01) | MaxEpochs(50)``.
    x0 : Tensor of shape (n, s), optional
        First guess for a warm start, which is not written to. Its residual costs one epoch.
    preconditioner : Preconditioner, optional
        A built preconditioner, which several solves may share. By default the solver builds the one
        that its settings name.
    callback : callable, optional
        Called with the state after every step. The state is updated in place. Its ``x`` is usable,
        and later steps are correct, also after a KeyboardInterrupt, which is not caught here. Very
        large and very small columns appear in the state divided by a power of two.

    Returns
    -------
    Solution
        With a status that says why the solve ended; a failure is not an exception.

    Raises
    ------
    ValueError
        For a B of the wrong shape.
    """
    if B.ndim != 2 or B.shape[0] != operator.shape[0]:
        raise ValueError(
            f"B must have shape ({operator.shape[0]}, s), one column for each right-hand side; "
            f"got {tuple(B.shape)}. Write B[:, None] for a single one."
        )
    begin, epochs = now(), operator.epochs
    B = B.to(dtype=operator.dtype, device=operator.device)
    units = _units(B)
    if units is not None:
        B, x0 = B / units, None if x0 is None else x0.to(B) / units
    # Other operations than products are small, and the time is checked between steps. A direct
    # solver has one long step, which needs all threads and must notice the end of a time budget.
    small = not (solver.direct or operator.threaded)
    with one_thread(small), nullcontext() if solver.direct else watched(None):
        state = solver.init(operator, B, x0, preconditioner)
        if x0 is not None and solver.starts_over(state):
            x0 = None
            state = solver.init(operator, B, None, preconditioner)
        first, before = state.residual_norms.clone(), now()
        while True:
            time = now()
            progress = Progress(
                state.residual_norms,
                state.iteration,
                operator.epochs - epochs,
                time - begin,
                time - before,
            )
            before = time
            status = _verdict(stopping, progress, state.columns)
            if status in (End.CONVERGED, End.STAGNATED) and solver.needs_check(state):
                state = solver.check(operator, state)
                continue
            if status is not None:
                break
            state = solver.step(operator, state)
            if callback is not None:
                callback(state)
        if status is not End.CONVERGED:
            solver.settle(operator, state)
    residuals, n_epochs = state.residual_norms, operator.epochs - epochs
    # The residual of conjugate gradients may rise while their error falls, so that a solve that
    # ended for its budget keeps its last solution.
    if status in (End.STAGNATED, End.BREAKDOWN):
        residuals = _no_worse_than(first, x0, state, residuals)
    if units is not None:
        state.x.mul_(units)
    stats = {**state.stats, "seconds": now() - begin, "residuals_exact": state.exact}
    return Solution(state.x, status, residuals, n_epochs, state.iteration, stats)


def _units(B: Float[Tensor, "n s"]) -> Float[Tensor, " s"] | None:
    """Powers of two to divide B's columns by if squared norms would overflow or vanish, else None.

    Far from the data k(x, X) is tiny. Its squared norm would be zero, and the solve would fail.
    """
    norms = column_norms(B)
    largest = torch.finfo(B.dtype).max ** 0.25
    extreme = ((norms < 1 / largest) | (norms > largest)) & (norms > 0) & norms.isfinite()
    if not bool(extreme.any()):
        return None
    smallest = math.log2(torch.finfo(B.dtype).tiny)
    exponents = torch.where(extreme, norms.log2().floor().clamp(min=smallest), 0.0)
    return torch.exp2(exponents).to(B.dtype)


def _no_worse_than(
    first: Float[Tensor, " s"],
    x0: Float[Tensor, "n s"] | None,
    state: SolverState,
    residuals: Float[Tensor, " s"],
) -> Float[Tensor, " s"]:
    """Reset the columns that a failed solve left with a larger residual than they began with."""
    worse = ~(residuals <= first)
    if not bool(worse.any()):
        return residuals
    at = worse.to(state.x.device)
    state.x[:, at] = first_guess(state.B, x0)[:, at]
    return torch.where(worse, first, residuals)


def _verdict(stopping: StoppingRule, progress: Progress, columns: Int[Tensor, " s"]) -> End | None:
    """The rule's answer, or the reason why no further step can change that answer."""
    status = stopping.check(progress)
    stuck = columns != Column.ACTIVE
    if status is not None or not bool(stuck.any()):
        return status
    norms = progress.residual_norms
    best = replace(progress, residual_norms=torch.zeros_like(norms))
    has_goal = stopping.check(best) is End.CONVERGED
    if has_goal:
        best = replace(progress, residual_norms=torch.where(stuck, norms, 0.0))
        if stopping.check(best) is End.CONVERGED:
            return None
    elif not bool(stuck.all()):
        return None
    if bool((columns == Column.BROKEN).any()):
        return End.BREAKDOWN
    if has_goal or bool((columns == Column.STAGNATED).any()):
        return End.STAGNATED
    return End.CONVERGED
