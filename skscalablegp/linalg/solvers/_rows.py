"""What solvers share that see H through a few of its rows at a time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import torch
from jaxtyping import Float, Int
from sklearn.utils import check_random_state
from torch import Generator, Tensor

from ..operators import LinearOperator
from ..preconditioners import Preconditioner
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

# A residual so many times the first one (or |b|) is divergence: residuals of methods that
# minimise the energy norm may well rise for a while.
_DIVERGED = 100.0
# So many epochs and steps without a better solution, at a residual so much larger, are as well.
_PATIENT_EPOCHS, _PATIENT_STEPS, _WORSE = 30, 200, 2.0
# So many epochs without a residual that is smaller by so much: nothing is gained.
_STALE, _LOWER = 200, 1e-3
# Step sizes below 2**-30 of the first one say that the matrix is to blame.
_MAX_HALVINGS = 30


@dataclass(eq=False)
class RowState(UpdatedState):
    """State of a `RowSolver`; `SGD` estimates the residual.

    Attributes
    ----------
    blocks : list of Tensor
        Rows of the steps ahead, or all blocks of a fixed partition.
    block_size : int
        Most rows of a step.
    generator : torch.Generator
        Draws the rows.
    scale : float
        The step size, or the factor on the method's own steps: halved at each divergence.
    safe, safe_norm : Tensor of shape (n, s), float
        The best solution of the last looks (one an epoch) and its mean relative residual.
    limit : float
        A mean relative residual above it is divergence.
    since_look, since_better : int
        Rows read since the last look, and since one that found a better solution.
    lowest, since_lower : float, int
        The mean relative residual that the last fall worth the name led to, and the rows read
        since.
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
    """A method whose step reads a block of b rows: b / n epochs, b n s operations.

    Subclasses make their state in ``_begin``, choose rows in ``_choose``, move in ``_advance`` and
    forget momentum in ``_restart``.
    """

    reads_rows = True
    _state_class = RowState

    def init(
        self,
        operator: LinearOperator,
        B: Float[Tensor, "n s"],
        x0: Float[Tensor, "n s"] | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> RowState:
        self._check_settings()
        fields = begin(operator, B, x0)
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
            state.R = true_residual(operator, state)
            self._restart(state)
        state.intact = False
        idx = self._choose(state)
        rows = operator.rows(idx)
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
            self._look(operator, state, len(idx))
        state.intact = True
        return state

    def check(self, operator: LinearOperator, state: RowState) -> RowState:
        """Replace the residual by the true one; one epoch."""
        norms, _ = replace_residual(operator, state)
        state.stats["n_checks"] += 1
        _record(state, norms, exact=True)
        return state

    # whether steps can be too long
    _can_diverge = True

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise for wrong settings before work starts."""

    @abstractmethod
    def _begin(self, operator: LinearOperator, state: RowState) -> None:
        """Fill the subclass's part of the state."""

    def _choose(self, state: RowState) -> Int[Tensor, " b"]:
        """The rows of the next step."""
        return next_rows(state)

    @abstractmethod
    def _advance(
        self,
        operator: LinearOperator,
        state: RowState,
        idx: Int[Tensor, " b"],
        rows: Float[Tensor, "b n"],
    ) -> None:
        """Move x and R."""

    @abstractmethod
    def _restart(self, state: RowState) -> None:
        """Forget momentum: x and R are all that is known."""

    def _norms(self, state: RowState) -> Float[Tensor, " s"]:
        return relative_norms(state.R, state.b_norms)

    def _look(self, operator: LinearOperator, state: RowState, b: int) -> None:
        """Once an epoch: keep the solution if it is the best so far."""
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
        """Back to the best solution with half the step."""
        state.stats["n_halvings"] += 1
        state.scale *= 0.5
        self._go_back(operator, state)
        if state.stats["n_halvings"] >= _MAX_HALVINGS:
            give_up(state)

    def _go_back(self, operator: LinearOperator, state: RowState) -> None:
        """To the best solution; one epoch for its residual."""
        state.since_look = state.since_better = 0
        state.x.copy_(state.safe)
        state.R = true_residual(operator, state)
        norms = relative_norms(state.R, state.b_norms)
        if not bool(norms.isfinite().all()):
            give_up(state)
            return
        self._restart(state)
        _record(state, norms, exact=True)


def n_blocks(n: int, block_size: int) -> int:
    """How many blocks of at most ``block_size`` rows make n."""
    return max(1, ceil(n / block_size))


def draw_rows(state: RowState, block_size: int, random_state) -> None:
    """Have steps take the blocks of random orders; drawn on the CPU, None is seed 0."""
    seed = 0 if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
    state.generator, state.block_size = Generator().manual_seed(seed), block_size


def next_rows(state: RowState) -> Int[Tensor, " b"]:
    """The next block of a random order of all rows, drawn anew when it is used up."""
    if not state.blocks:
        n = len(state.x)
        order = torch.randperm(n, generator=state.generator).to(state.x.device)
        state.blocks = list(order.tensor_split(n_blocks(n, state.block_size)))
    return state.blocks.pop().sort().values


def largest_eigenvalue(
    image: Callable[[Float[Tensor, "b 1"]], Float[Tensor, "b 1"]],
    size: int,
    device: torch.device,
    generator: Generator,
    n_iter: int = 30,
) -> Float[Tensor, ""]:
    """Of a symmetric matrix in modulus, by power iteration; float64, a slight underestimate."""
    v = torch.randn(size, 1, generator=generator, dtype=torch.float64).to(device)
    value = v.norm()
    for _ in range(n_iter):
        v = image(v / value)
        value = v.norm()
    return value


def _mean(norms: Float[Tensor, " s"]) -> float:
    return float(norms.mean()) if len(norms) else 0.0


def _record(state: RowState, norms: Float[Tensor, " s"], exact: bool = False) -> None:
    record(state, norms, torch.full_like(norms, _stale(state), dtype=torch.bool), exact)


def _stale(state: RowState) -> bool:
    return state.since_lower > _STALE * len(state.x)
