"""Stochastic gradient descent on the quadratic whose minimum is the solution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer, check_number
from ..operators import LinearOperator
from ._base import give_up, relative_norms
from ._rows import RowSolver, RowState, draw_rows, largest_eigenvalue, next_rows


@dataclass(eq=False)
class SGDState(RowState):
    """State of `SGD`; ``scale`` is the step size.

    Attributes
    ----------
    momentum : Tensor of shape (n, s)
    floor : Tensor of shape (s,)
        Residuals found by the last check that failed; none below is reported for an epoch.
    since_check : int
        Rows visited since then.
    """

    momentum: Tensor = None
    floor: Tensor = None
    since_check: int = 0


class SGD(RowSolver):
    """Stochastic gradient descent with momentum over batches of rows.

    Parameters
    ----------
    batch_size : int, default=500
        Rows of a batch, capped at n. Batches are cut from random orders of all rows.
    momentum : float, default=0.9
        Share of the last step that is repeated.
    step_size : float or "auto", default="auto"
        What a batch's residual is multiplied with (the paper's learning rate over the batch size).
        "auto": about one over the largest eigenvalue of a batch's block of H, by power iteration.
        A step size that diverges is halved, and the halvings are counted in the statistics.
    random_state : int, RandomState instance or None, default=None
        Seed of the batches; None is seed 0, so that solves repeat.

    Notes
    -----
    Algorithm 3 of Lin et al. (2024), with the residual stored as B - H x: it starts from that of
    the warm start, and each batch replaces its own rows by minus its gradient. The estimate lags;
    success is declared by a true residual only (one epoch), and after a check that failed none
    smaller than it is reported for an epoch. A step reads b rows, b / n epochs and O(b n s)
    operations; three blocks of n x s numbers beside B and x. Preconditioners are not used.
    """

    _state_class = SGDState

    def __init__(self, batch_size=500, *, momentum=0.9, step_size="auto", random_state=None):
        keep_settings(self, locals())

    def _check_settings(self) -> None:
        check_descent(self)

    def _begin(self, operator: LinearOperator, state: SGDState) -> None:
        draw_rows(state, self.batch_size, self.random_state)
        state.scale = first_step(self.step_size, operator, state, self.momentum)
        state.momentum = torch.zeros_like(state.x)
        state.floor = torch.zeros_like(state.b_norms)

    def _advance(
        self,
        operator: LinearOperator,
        state: SGDState,
        idx: Int[Tensor, " b"],
        rows: Float[Tensor, "b n"],
    ) -> None:
        residual = state.B[idx].addmm_(rows, state.x, alpha=-1)
        state.momentum.mul_(self.momentum).index_add_(0, idx, residual, alpha=state.scale)
        state.x += state.momentum
        state.R[idx] = residual
        state.since_check += len(idx)

    def _norms(self, state: SGDState) -> Float[Tensor, " s"]:
        norms = relative_norms(state.R, state.b_norms)
        if state.since_check < len(state.x):
            return torch.maximum(norms, state.floor)
        return norms

    def check(self, operator: LinearOperator, state: SGDState) -> SGDState:
        super().check(operator, state)
        state.floor, state.since_check = state.residual_norms, 0
        # an estimate is far from the true residual without any rounding
        state.strikes = torch.zeros_like(state.strikes)
        return state

    def _restart(self, state: SGDState) -> None:
        state.momentum.zero_()


def check_descent(solver: RowSolver) -> None:
    """The settings of every method that follows gradients of batches."""
    check_integer("batch_size", solver.batch_size)
    check_number("momentum", solver.momentum, below=1)
    check_number("step_size", solver.step_size, positive=True, other=("auto",))


def first_step(
    step_size: float | str,
    operator: LinearOperator,
    state: RowState,
    momentum: float = 0.0,
) -> float:
    """The given step size, or one from the largest eigenvalue of a random block of H.

    Below two over it, a step on the block's own rows lowers the energy norm of the error. The part
    of that eigenvalue that does not grow with the block varies from batch to batch, and plain
    momentum sums it up: it is what half the block would have left at size zero.
    """
    state.stats["step_size"] = step_size
    if step_size != "auto":
        return float(step_size)
    block = operator.block(next_rows(state))
    largest = _largest(block, state)
    if not 0 < largest < float("inf"):
        give_up(state)
        largest = 1.0
    if momentum:
        local = 2 * _largest(block[::2, ::2], state) - largest
        largest += 0.4 * max(local, 0.0) * momentum / (1 - momentum)
    state.stats["step_size"] = 1 / largest
    return 1 / largest


def _largest(block: Float[Tensor, "b b"], state: RowState) -> float:
    A = block.double()
    return float(largest_eigenvalue(lambda v: A @ v, len(A), A.device, state.generator))
