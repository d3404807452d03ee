"""What solvers share that see H through a few of its rows at a time."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from math import ceil
from numbers import Integral, Real

import torch
from jaxtyping import Float, Int
from sklearn.utils import check_random_state
from torch import Generator, Tensor

from ..operators import LinearOperator
from ..preconditioners import Preconditioner
from ._base import Column, Solver, SolverState, column_norms, relative_norms, start, true_residual

# A residual so many times the first one (or |b|) is divergence: residuals of methods that
# minimise the energy norm may well rise for a while.
_DIVERGED = 100.0
# So many epochs and steps without a better solution, at a residual so much larger, are as well.
_PATIENT_EPOCHS, _PATIENT_STEPS, _WORSE = 30, 200, 2.0
# So many looks, one an epoch, without a residual that is smaller by so much: nothing is gained.
_STALE, _LOWER = 300, 1e-3
# Step sizes below 2**-30 of the first one say that the matrix is to blame.
_MAX_HALVINGS = 30


@dataclass(eq=False)
class RowState(SolverState):
    """State of a `RowSolver`.

    Attributes
    ----------
    R : Tensor of shape (n, s)
        B - H x, updated or (`SGD`) estimated; replaced by the true one at each check.
    blocks : list of Tensor
        Rows of the steps ahead, or all blocks of a fixed partition.
    generator : torch.Generator
        Draws the rows.
    scale : float
        The step size, or the factor on the method's own steps: halved at each divergence.
    safe, safe_norm : Tensor of shape (n, s), float
        The best solution of the last looks (one an epoch) and its mean relative residual.
    limit : float
        A mean relative residual above it is divergence.
    best_norms, strikes : Tensor of shape (s,)
        Smallest true residual seen, and how often in a row rounding kept it from falling.
    since_look, since_better : int
        Rows read since the last look, and since one that found a better solution.
    lowest, since_lower : float, int
        The mean relative residual that the last fall worth the name led to, and the looks since.
    intact : bool
        False while a step is under way: after an interruption the next step starts afresh from x.
    """

    R: Tensor = None
    blocks: list = None
    generator: Generator = None
    scale: float = 1.0
    safe: Tensor = None
    safe_norm: float = float("inf")
    limit: float = float("inf")
    best_norms: Tensor = None
    strikes: Tensor = None
    since_look: int = 0
    since_better: int = 0
    lowest: float = float("inf")
    since_lower: int = 0
    intact: bool = True


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
        x, b_norms = start(B, x0)
        R = B.clone() if x0 is None else operator.matmul(x).neg_().add_(B)
        norms = relative_norms(R, b_norms)
        state = self._state_class(
            B=B,
            x=x,
            b_norms=b_norms,
            residual_norms=norms,
            columns=torch.where(norms <= _rounding(B.dtype), Column.SETTLED, Column.ACTIVE),
            R=R,
            blocks=[],
            safe=x.clone(),
            safe_norm=_mean(norms),
            limit=_DIVERGED * max(1.0, _mean(norms)),
            best_norms=norms,
            strikes=torch.zeros_like(norms, dtype=torch.long),
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
        self._advance(operator, state, idx, rows)
        state.iteration += 1
        state.exact = False
        norms = self._norms(state)
        if not _mean(norms) <= state.limit:
            self._retreat(operator, state)
        else:
            _record(state, norms)
            self._look(operator, state, len(idx))
        state.intact = True
        return state

    def check(self, operator: LinearOperator, state: RowState) -> RowState:
        """Replace the residual by the true one and judge what rounding did to it; one epoch."""
        R = true_residual(operator, state)
        norms = relative_norms(R, state.b_norms)
        drift = column_norms(state.R.sub_(R)) / state.b_norms
        state.R = R
        held_up = (drift > 0.1 * norms) & (norms > 0.9 * state.best_norms) & self._updates_residual
        state.strikes = torch.where(held_up, state.strikes + 1, 0)
        state.best_norms = torch.minimum(state.best_norms, norms)
        state.stats["n_checks"] += 1
        _record(state, norms)
        state.exact = True
        return state

    # whether R follows x exactly, so that only rounding can part them
    _updates_residual = True
    # whether steps can be too long
    _can_diverge = True

    @abstractmethod
    def _check_settings(self) -> None:
        """Raise for wrong settings before work starts."""

    @abstractmethod
    def _begin(self, operator: LinearOperator, state: RowState) -> None:
        """Fill the subclass's part of the state."""

    @abstractmethod
    def _choose(self, state: RowState) -> Int[Tensor, " b"]:
        """The rows of the next step."""

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
        state.since_look, norm = 0, _mean(state.residual_norms)
        state.since_lower += 1
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

    def _retreat(self, operator: LinearOperator, state: RowState) -> None:
        """Back to the best solution with half the step; one epoch for its residual."""
        state.stats["n_halvings"] += 1
        state.scale *= 0.5
        state.since_look = state.since_better = 0
        state.x.copy_(state.safe)
        state.R = true_residual(operator, state)
        norms = relative_norms(state.R, state.b_norms)
        if state.stats["n_halvings"] >= _MAX_HALVINGS or not bool(norms.isfinite().all()):
            give_up(state)
            return
        self._restart(state)
        _record(state, norms)
        state.exact = True


def give_up(state: RowState) -> None:
    """No column can improve: the matrix is not positive definite as far as one can see."""
    state.columns = torch.full_like(state.columns, Column.BROKEN)


def n_blocks(n: int, block_size: int) -> int:
    """How many blocks of at most ``block_size`` rows make n."""
    return max(1, ceil(n / block_size))


def next_rows(state: RowState, block_size: int) -> Int[Tensor, " b"]:
    """The next block of a random order of all rows, drawn anew when it is used up."""
    if not state.blocks:
        n = len(state.x)
        order = torch.randperm(n, generator=state.generator).to(state.x.device)
        state.blocks = list(order.tensor_split(n_blocks(n, block_size)))
    return state.blocks.pop().sort().values


def make_generator(random_state) -> Generator:
    """A generator on the CPU; None is seed 0, so that solves repeat."""
    seed = 0 if random_state is None else int(check_random_state(random_state).randint(2**31 - 1))
    return Generator().manual_seed(seed)


def largest_eigenvalue(
    block: Float[Tensor, "b b"], generator: Generator, n_iter: int = 30
) -> float:
    """Of a symmetric matrix in modulus, by power iteration; float64, a slight underestimate."""
    A = block.double()
    v = torch.randn(len(A), 1, generator=generator, dtype=torch.float64).to(A.device)
    value = v.norm()
    for _ in range(n_iter):
        v = A @ (v / value)
        value = v.norm()
    return float(value)


def check_count(name: str, value) -> None:
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be an integer of at least 1; got {value!r}.")


def check_number(name: str, value, low: float, high: float, auto: bool = False) -> None:
    """A number with low <= value < high, or "auto" where that is allowed."""
    if auto and isinstance(value, str) and value == "auto":
        return
    if isinstance(value, bool) or not isinstance(value, Real) or not low <= value < high:
        allowed = " or 'auto'" if auto else ""
        raise ValueError(f"{name} must be a number in [{low:g}, {high:g}){allowed}; got {value!r}.")


def _rounding(dtype: torch.dtype) -> float:
    return 0.1 * torch.finfo(dtype).eps


def _mean(norms: Float[Tensor, " s"]) -> float:
    return float(norms.mean()) if len(norms) else 0.0


def _record(state: RowState, norms: Float[Tensor, " s"]) -> None:
    """Store residual norms and what they say about each column; broken columns keep theirs."""
    broken = state.columns == Column.BROKEN
    state.residual_norms = torch.where(broken, state.residual_norms, norms)
    stuck = (state.strikes >= 3) | (state.since_lower > _STALE)
    columns = torch.where(stuck, Column.STAGNATED, Column.ACTIVE)
    columns = torch.where(norms <= _rounding(state.x.dtype), Column.SETTLED, columns)
    state.columns = torch.where(broken, Column.BROKEN, columns)
