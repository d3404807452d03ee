"""The one loop around every solver."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..operators import LinearOperator
from ..parallel import one_thread
from ..preconditioners import Preconditioner
from ._base import Column, Solver, SolverState, column_norms, start
from ._solution import Solution, Status
from ._stopping import Progress, StoppingRule


def solve(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    solver: Solver,
    *,
    stopping: StoppingRule,
    x0: Float[Tensor, "n s"] | None = None,
    preconditioner: Preconditioner | None = None,
    callback: Callable[[SolverState], object] | None = None,
) -> Solution:
    """Solve H V = B until a stopping rule holds or no column can improve any more.

    Parameters
    ----------
    operator : LinearOperator
        H; its own count of epochs is what budgets are held against.
    B : Tensor of shape (n, s)
        Right-hand sides.
    solver : Solver
        The method and its settings.
    stopping : StoppingRule
        For example ``RelativeResidual(0.01) | MaxEpochs(50)``.
    x0 : Tensor of shape (n, s), optional
        Warm start; not written to. Its initial residual costs one epoch.
    preconditioner : Preconditioner, optional
        A built one, to share among solves; otherwise the solver builds what its settings name.
    callback : callable, optional
        Called with the state after every step. The state is updated in place, and its ``x`` and
        every later step stay right after an interruption (KeyboardInterrupt passes through).
        Columns of a size whose square the precision cannot hold appear there in units of a power
        of two.

    Returns
    -------
    Solution
        With a status; failing is never an exception.
    """
    if B.ndim != 2 or B.shape[0] != operator.shape[0]:
        raise ValueError(
            f"B must have shape ({operator.shape[0]}, s), one column for each right-hand side; "
            f"got {tuple(B.shape)}. Write B[:, None] for a single one."
        )
    begin, epochs = perf_counter(), operator.epochs
    B = B.to(dtype=operator.dtype, device=operator.device)
    units = _units(B)
    if units is not None:
        B, x0 = B / units, None if x0 is None else x0.to(B) / units
    # Operations between products are small.
    with one_thread(not solver.direct):
        state = solver.init(operator, B, x0, preconditioner)
        first = state.residual_norms.clone()
        while True:
            progress = Progress(
                state.residual_norms,
                state.iteration,
                operator.epochs - epochs,
                perf_counter() - begin,
            )
            status = _verdict(stopping, progress, state.columns)
            if status in (Status.CONVERGED, Status.STAGNATED) and solver.needs_check(state):
                state = solver.check(operator, state)
                continue
            if status is not None:
                break
            state = solver.step(operator, state)
            if callback is not None:
                callback(state)
    residuals = progress.residual_norms
    # Within a budget the residual of conjugate gradients may rise while their error falls.
    if status in (Status.STAGNATED, Status.BREAKDOWN):
        residuals = _no_worse_than(first, x0, state, residuals)
    if units is not None:
        state.x.mul_(units)
    stats = {**state.stats, "seconds": perf_counter() - begin, "residuals_exact": state.exact}
    return Solution(state.x, status, residuals, progress.epochs, state.iteration, stats)


def _units(B: Float[Tensor, "n s"]) -> Float[Tensor, " s"] | None:
    """Powers of two for columns whose squared norm would leave the precision's range, else None.

    Far from the data k(x, X) is tiny: its products with itself would be zero, and the solve broken.
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
    """Put columns that a failed solve left worse than they began back to their beginning."""
    worse = ~(residuals <= first)
    if not bool(worse.any()):
        return residuals
    at = worse.to(state.x.device)
    state.x[:, at] = start(state.B, x0)[0][:, at]
    return torch.where(worse, first, residuals)


def _verdict(
    stopping: StoppingRule, progress: Progress, columns: Int[Tensor, " s"]
) -> Status | None:
    """The rule's answer, or the reason why no further step can change it."""
    status = stopping.check(progress)
    stuck = columns != Column.ACTIVE
    if status is not None or not bool(stuck.any()):
        return status
    norms = progress.residual_norms
    best = replace(progress, residual_norms=torch.zeros_like(norms))
    has_goal = stopping.check(best) is Status.CONVERGED
    if has_goal:
        best = replace(progress, residual_norms=torch.where(stuck, norms, 0.0))
        if stopping.check(best) is Status.CONVERGED:
            return None
    elif not bool(stuck.all()):
        return None
    if bool((columns == Column.BROKEN).any()):
        return Status.BREAKDOWN
    if has_goal or bool((columns == Column.STAGNATED).any()):
        return Status.STAGNATED
    return Status.CONVERGED
