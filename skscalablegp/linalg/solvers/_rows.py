"""The common parts of the solvers that read a few rows of H at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ..operators import ChosenRows, LinearOperator
from ..preconditioners import pick_generator
from ._base import (
    Solver,
    UpdatedState,
    begin,
    give_up,
    record,
    relative_norms,
    replace_residual,
    true_residual,
)

# A solve diverges when its residual exceeds 100 times the first one (or |b|). The factor is large
# because methods that minimise the energy norm may let the residual rise for a while.
_DIVERGED = 100.0
# It also diverges when no better solution was found for 30 epochs and 200 steps, and the residual
# is twice that of the best one.
_PATIENT_EPOCHS, _PATIENT_STEPS, _WORSE = 30, 200, 2.0
# It has stagnated when the residual has not fallen by a thousandth for 200 epochs.
_STALE, _LOWER = 200, 1e-3
# If steps of 2**-30 of the first size still diverge, the matrix is not positive definite.
_MAX_HALVINGS = 30


@dataclass(eq=False)
class RowState(UpdatedState):
    """State of a `RowSolver`, whose residual is exact up to rounding (only `SGD` estimates it).

    Attributes
    ----------
    blocks : list of Tensor or slice
        Rows of the next steps, or all blocks of a fixed partition.
    block_size : int
        Largest number of rows of a step.
    generator : torch.Generator
        Draws the rows.
    scale : float
        The step size, or a factor on the method's own steps; halved at each divergence.
    safe, safe_norm : Tensor of shape (n, s), float
        The best solution found by the checks after each epoch, and its mean relative residual.
    limit : float
        The solve has diverged if the mean relative residual exceeds this limit.
    since_look, since_better : int
        Rows read since the last check, and since the last check that found a better solution.
    lowest, since_lower : float, int
        The mean relative residual after the last substantial fall, and the rows read since then.
    """

    blocks: list = None
    block_size: int = 0
    generator: Generator = None
    scale: float = 1.0
    safe: Tensor = None
    safe_norm: float = float("inf")
    limit: float = float("inf")
    since_look: int = 0
    since_better: int = 0
    lowest: float = float("inf")
    since_lower: int = 0


class RowSolver(Solver):
    """A method whose step reads a block of b rows, in b / n epochs and O(b n s) operations.

    The step multiplies by these rows; unless H is kept, large ones are not stored (`ChosenRows`).
    Where a step also reads the b^2 entries of their block, it then evaluates these once more.

    Subclasses complete the state in ``_begin``, choose rows in ``_choose``, change the solution in
    ``_advance`` and discard momentum in ``_restart``.
    """

    reads_rows = True
    _state_class = RowState

    def init(self, operator, B, x0=None, preconditioner=None) -> RowState:
        self._check_settings()
        fields = begin(operator, B, x0)
        # By columns, because products with few rows of H and norms are then up to three times as
        # fast. All tensors of a state are made from these two.
        fields |= {name: fields[name].T.contiguous().T for name in ("x", "R")}
        norm = _mean(fields["residual_norms"])
        state = self._state_class(
            **fields,
            blocks=[],
            safe=fields["x"].clone(),
            safe_norm=norm,
            limit=_DIVERGED * max(1.0, norm),
            stats={"n_halvings": 0, "n_checks": 0},
        )
        self._begin(operator, state)
        return state

    def step(self, operator: LinearOperator, state: RowState) -> RowState:
        if not state.intact:
            state.R.copy_(true_residual(operator, state))
            self._restart(state)
        state.intact = False
        idx = self._choose(state)
        rows = operator.chosen(idx)
        try:
            self._advance(operator, state, idx, rows)
        except torch.linalg.LinAlgError as error:
            state.stats["error"] = str(error)
            give_up(state)
        state.iteration += 1
        norms = self._norms(state)
        if not _mean(norms) <= state.limit:
            self._retreat(operator, state)
        else:
            _record(state, norms)
            self._look(operator, state, rows.size)
        state.intact = True
        return state

    def check(self, operator: LinearOperator, state: RowState) -> RowState:
        """Replace the residual by the true one; one epoch."""
        norms, _ = replace_residual(operator, state)
        state.stats["n_checks"] += 1
        _record(state, norms, exact=True)
        return state

    def starts_over(self, state: RowState) -> bool:
        """A sequence of warm starts, each a little worse than the last, must not grow."""
        return _mean(state.residual_norms) > _WORSE

    def settle(self, operator: LinearOperator, state: RowState) -> None:
        """Return to the best solution if the last one is much worse."""
        if not _mean(state.residual_norms) <= _WORSE * state.safe_norm:
            self._go_back(operator, state)

    # Whether a step can be too long.
    _can_diverge = True

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise for wrong settings before work starts."""

    @abstractmethod
    def _begin(self, operator: LinearOperator, state: RowState) -> None:
        """Fill the subclass's part of the state."""

    def _choose(self, state: RowState) -> Int[Tensor, " b"] | slice:
        """The rows of the next step."""
        return next_rows(state)

    @abstractmethod
    def _advance(
        self,
        operator: LinearOperator,
        state: RowState,
        idx: Int[Tensor, " b"] | slice,
        rows: ChosenRows,
    ) -> None:
        """Change x and R by one step."""

    @abstractmethod
    def _restart(self, state: RowState) -> None:
        """Discard momentum, so that x and R alone determine the next step."""

    def _norms(self, state: RowState) -> Float[Tensor, " s"]:
        return relative_norms(state.R, state.b_norms)

    def _look(self, operator: LinearOperator, state: RowState, b: int) -> None:
        """Once an epoch, keep the solution if it is the best so far, and test for divergence."""
        state.since_look += b
        if state.since_look < len(state.x):
            return
        norm = _mean(state.residual_norms)
        state.since_lower += state.since_look
        state.since_look = 0
        if norm < (1 - _LOWER) * state.lowest:
            state.lowest, state.since_lower = norm, 0
        if norm < state.safe_norm:
            state.safe_norm, state.since_better = norm, 0
            state.safe.copy_(state.x)
            return
        state.since_better += len(state.x)
        patience = max(_PATIENT_EPOCHS * len(state.x), _PATIENT_STEPS * b)
        worse = norm > _WORSE * state.safe_norm
        if self._can_diverge and worse and state.since_better > patience:
            self._retreat(operator, state)
        elif _stale(state):
            self._go_back(operator, state)

    def _retreat(self, operator: LinearOperator, state: RowState) -> None:
        """Return to the best solution and halve the step size."""
        state.stats["n_halvings"] += 1
        state.scale *= 0.5
        self._go_back(operator, state)
        if state.stats["n_halvings"] >= _MAX_HALVINGS:
            give_up(state)

    def _go_back(self, operator: LinearOperator, state: RowState) -> None:
        """Return to the best solution and compute its residual, at the cost of one epoch."""
        state.since_look = state.since_better = 0
        state.x.copy_(state.safe)
        state.R.copy_(true_residual(operator, state))
        norms = relative_norms(state.R, state.b_norms)
        if not bool(norms.isfinite().all()):
            give_up(state)
            return
        self._restart(state)
        _record(state, norms, exact=True)


def n_blocks(n: int, block_size: int) -> int:
    """The number of blocks of at most ``block_size`` rows that n rows need."""
    return max(1, ceil(n / block_size))


def draw_rows(state: RowState, block_size: int, random_state) -> None:
    """Let steps take blocks from random orders, drawn on the CPU; None means seed 0."""
    state.generator, state.block_size = pick_generator(random_state), block_size


def next_rows(state: RowState) -> Int[Tensor, " b"]:
    """The next block of a random order of all rows; a new order is drawn when one is used up."""
    if not state.blocks:
        n = len(state.x)
        order = torch.randperm(n, generator=state.generator)
        order = order.to(state.x.device, non_blocking=True)
        state.blocks = list(order.tensor_split(n_blocks(n, state.block_size)))
    return state.blocks.pop().sort().values


def largest_eigenvalue(
    image: Callable[[Float[Tensor, "b 1"]], Float[Tensor, "b 1"]],
    size: int,
    device: torch.device,
    generator: Generator,
    n_iter: int = 30,
) -> Float[Tensor, ""]:
    """The largest eigenvalue by modulus of a symmetric matrix, slightly underestimated, in float64.

    Parameters
    ----------
    image : callable
        Multiplies the matrix by a vector.
    size : int
        Number of rows of the matrix.
    device : torch.device
    generator : torch.Generator
        Draws the vector that the power iteration starts from.
    n_iter : int, default=30
        Number of iterations.
    """
    v = torch.randn(size, 1, generator=generator, dtype=torch.float64)
    v = v.to(device, non_blocking=True)
    value = v.norm()
    for _ in range(n_iter):
        v = image(v / value)
        value = v.norm()
    return value


def _mean(norms: Float[Tensor, " s"]) -> float:
    return float(norms.mean()) if len(norms) else 0.0


def _record(state: RowState, norms: Float[Tensor, " s"], exact: bool = False) -> None:
    record(state, norms, _stale(state), exact)


def _stale(state: RowState) -> bool:
    return state.since_lower > _STALE * len(state.x)
