"""Stochastic gradient descent on the quadratic whose minimum is the solution."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer, check_number
from ..operators import LinearOperator
from ._base import give_up, relative_norms
from ._rows import RowSolver, RowState, draw_rows, largest_eigenvalue, next_rows


@dataclass(eq=False)
class SGDState(RowState):
    """State of `SGD`, in which ``scale`` is the step size.

    Attributes
    ----------
    momentum : Tensor of shape (n, s)
        The last step.
    floor : Tensor of shape (s,)
        The true residuals at the last check. For an epoch after it, no smaller ones are reported.
    since_check : int
        Rows visited since the last check.
    """

    momentum: Tensor = None
    floor: Tensor = None
    since_check: int = 0


class SGD(RowSolver, name="sgd"):
    """Stochastic gradient descent with momentum over batches of rows.

    Parameters
    ----------
    batch_size : int, default=500
        Rows of a batch, at most n. Batches are cut from random orders of all rows.
    momentum : float, default=0.9
        Fraction of the last step that is repeated.
    step_size : float or "auto", default="auto"
        Factor on the residual of a batch (the paper's learning rate divided by the batch size).
        "auto" takes about one over the largest eigenvalue of a batch's block of H, which power
        iteration estimates. A step size that diverges is halved, and the statistics count this.
    random_state : int, RandomState instance or None, default=None
        Seed of the batches. None means seed 0, so that solves are repeatable.

    Notes
    -----
    Algorithm 3 of Lin et al. (2024). The residual B - H x is stored; it is that of the first guess
    at first, and each batch replaces its own rows by minus its gradient. This estimate lags behind.
    Success is therefore declared by a true residual only, which costs one epoch, and for an epoch
    after a check that failed no smaller residual is reported than the check found. A step takes b /
    n epochs and O(b n s) operations; three blocks of n x s numbers in addition to B and x.
    Preconditioners are not used.
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

    def _advance(self, operator, state, idx, rows) -> None:
        residual = state.B[idx] - rows.matmul(state.x)
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
        # The estimate differs from the true residual for other reasons than rounding.
        state.strikes = torch.zeros_like(state.strikes)
        return state

    def _restart(self, state: SGDState) -> None:
        state.momentum.zero_()


def check_descent(solver: RowSolver) -> None:
    """Check the settings that the methods with gradients of batches share."""
    check_integer("batch_size", solver.batch_size)
    check_number("momentum", solver.momentum, below=1)
    check_number("step_size", solver.step_size, positive=True, other=("auto",))


def first_step(
    step_size: float | str, operator: LinearOperator, state: RowState, momentum: float = 0.0
) -> float:
    """The given step size, or one from the largest eigenvalue of a random block of H.

    With step sizes below two over that eigenvalue, a step on the rows of the block lowers the
    energy norm of the error. Part of the eigenvalue does not grow with the size of the block; it
    differs between batches, and momentum without a look-ahead adds it up. That part is estimated by
    linear extrapolation from the whole block and half of it to a block of size zero.
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
