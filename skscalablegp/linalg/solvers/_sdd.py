"""Stochastic dual descent."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_number
from ..operators import LinearOperator
from ._rows import RowSolver, RowState, draw_rows
from ._sgd import check_descent, first_step


@dataclass(eq=False)
class SDDState(RowState):
    """State of `SDD`, in which ``x`` is the average and ``scale`` the step size.

    Attributes
    ----------
    iterate, iterate_R : Tensor of shape (n, s)
        The iterate that is averaged, and its residual.
    velocity, H_velocity : Tensor of shape (n, s)
        The last step, and its product with H.
    """

    iterate: Tensor = None
    iterate_R: Tensor = None
    velocity: Tensor = None
    H_velocity: Tensor = None


class SDD(RowSolver, name="sdd"):
    """Stochastic dual descent: random coordinates, Nesterov's momentum, geometric averaging.

    Parameters
    ----------
    batch_size : int, default=500
        Coordinates of a step, at most n. Batches are cut from random orders of all rows.
    momentum : float, default=0.9
        Fraction of the last step that is repeated. The gradient is evaluated after that part.
    step_size : float or "auto", default="auto"
        As in `SGD`.
    averaging_epochs : float, default=2.0
        Number of epochs that the moving average extends over; 0 returns the last iterate.
    random_state : int, RandomState instance or None, default=None
        Seed of the batches. None means seed 0, so that solves are repeatable.

    Notes
    -----
    Algorithm 1 of Lin, Padhy, Antoran, Tripp, Terenin, Szepesvari, Hernandez-Lobato and Janz
    (2024), Stochastic gradient descent for Gaussian processes done right. Apart from momentum a
    step changes b rows of the solution. Since H is symmetric, the rows that give the gradient also
    give the product of H with the step, so that the residuals of the iterate and of the average are
    known at no further cost. A step takes b / n epochs and O(b n s) operations; six blocks of n x s
    numbers in addition to B and x. Preconditioners are not used.
    """

    _state_class = SDDState

    def __init__(
        self,
        batch_size=500,
        *,
        momentum=0.9,
        step_size="auto",
        averaging_epochs=2.0,
        random_state=None,
    ):
        keep_settings(self, locals())

    def _check_settings(self) -> None:
        check_descent(self)
        check_number("averaging_epochs", self.averaging_epochs)

    def _begin(self, operator: LinearOperator, state: SDDState) -> None:
        draw_rows(state, self.batch_size, self.random_state)
        state.scale = first_step(self.step_size, operator, state)
        self._restart(state)

    def _advance(self, operator, state, idx, rows) -> None:
        rho, V, HV = self.momentum, state.velocity, state.H_velocity
        ahead = state.iterate_R[idx] - rho * HV[idx]
        V.mul_(rho).index_add_(0, idx, ahead, alpha=state.scale)
        HV.mul_(rho).add_(rows.rmatmul(ahead), alpha=state.scale)
        state.iterate += V
        state.iterate_R -= HV
        rate = min(1.0, len(idx) / (len(V) * max(self.averaging_epochs, 1e-12)))
        state.x.lerp_(state.iterate, rate)
        state.R.lerp_(state.iterate_R, rate)

    def check(self, operator: LinearOperator, state: SDDState) -> SDDState:
        """Compute the true residual of the average, and restart the iterate from the average."""
        super().check(operator, state)
        self._restart(state)
        return state

    def _restart(self, state: SDDState) -> None:
        state.iterate, state.iterate_R = state.x.clone(), state.R.clone()
        state.velocity = torch.zeros_like(state.x)
        state.H_velocity = torch.zeros_like(state.x)
