"""What a solver is: settings, a state, and one step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..._named import NamedSettings
from ..operators import LinearOperator
from ..preconditioners import Preconditioner, resolve_preconditioner


class Column(IntEnum):
    """How one right-hand side is doing; only ACTIVE ones can still improve."""

    ACTIVE = 0
    SETTLED = 1  # at machine precision, or zero
    STAGNATED = 2  # the true residual stopped falling above the tolerance
    BROKEN = 3  # a non-positive or non-finite curvature was met


@dataclass(eq=False)
class SolverState:
    """Where a solve stands; steps change it in place and return it.

    What decides how a solve goes on, one number for each right-hand side, lives on the CPU, so that
    a step waits for a GPU once.

    Attributes
    ----------
    B : Tensor of shape (n, s)
        Right-hand sides; never written to.
    x : Tensor of shape (n, s)
        Best solution so far: usable at any time, also after an interruption.
    b_norms : Tensor of shape (s,)
        Norms of the right-hand sides, float64, on the CPU.
    residual_norms : Tensor of shape (s,)
        Relative residuals, float64, on the CPU; those of zero right-hand sides are 0.
    columns : Tensor of shape (s,)
        A `Column` for every right-hand side, on the CPU.
    iteration : int
        Steps taken.
    exact : bool
        Whether ``residual_norms`` was computed as B - H x for this x.
    stats : dict
        Counters that end up in ``Solution.stats``.
    """

    B: Float[Tensor, "n s"]
    x: Float[Tensor, "n s"]
    b_norms: Float[Tensor, " s"]
    residual_norms: Float[Tensor, " s"]
    columns: Int[Tensor, " s"]
    iteration: int = 0
    exact: bool = True
    stats: dict = field(default_factory=dict)


@dataclass(eq=False)
class UpdatedState(SolverState):
    """State of a solver that updates the residual, which rounding then parts from the true one.

    Attributes
    ----------
    R : Tensor of shape (n, s)
        B - H x, as updated.
    best_norms, strikes : Tensor of shape (s,)
        Smallest true residual seen, and how often in a row rounding kept it from falling; on the
        CPU.
    intact : bool
        False while a step is under way: after an interruption the next step starts afresh from x.
    """

    R: Tensor = None
    best_norms: Tensor = None
    strikes: Tensor = None
    intact: bool = True


class Solver(NamedSettings, ABC):
    """Settings of an iterative (or direct) method for H V = B with many right-hand sides.

    A new solver is a subclass with ``init`` and ``step``; an object of it works everywhere, and a
    row in the table of `resolve_solver` gives it a name.

    Attributes
    ----------
    direct : bool
        Whether a step factorises H, so that training may do the same.
    reads_rows : bool
        Whether a step reads a few rows of H: made for loose tolerances.
    takes_preconditioner : bool
        Whether a built preconditioner changes its steps; then ``preconditioner`` is one of its
        settings.
    """

    _named = {"preconditioner": resolve_preconditioner}

    direct = False
    reads_rows = False
    takes_preconditioner = False

    @abstractmethod
    def init(
        self,
        operator: LinearOperator,
        B: Float[Tensor, "n s"],
        x0: Float[Tensor, "n s"] | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> SolverState:
        """The state before the first step."""

    @abstractmethod
    def step(self, operator: LinearOperator, state: SolverState) -> SolverState:
        """One iteration, in place."""

    def needs_check(self, state: SolverState) -> bool:
        """Whether ``residual_norms`` must be recomputed before success is declared."""
        return not state.exact

    def check(self, operator: LinearOperator, state: SolverState) -> SolverState:
        """Put the true residuals into the state; one epoch."""
        state.residual_norms = relative_norms(true_residual(operator, state), state.b_norms)
        state.exact = True
        return state


def start(
    B: Float[Tensor, "n s"], x0: Float[Tensor, "n s"] | None
) -> tuple[Float[Tensor, "n s"], Float[Tensor, " s"]]:
    """A writable first guess, zero where B is zero or x0 is not finite, and the norms of B."""
    b_norms = column_norms(B)
    if x0 is None:
        return torch.zeros_like(B), b_norms.cpu()
    x0 = x0.to(dtype=B.dtype, device=B.device)
    usable = (b_norms > 0) & x0.isfinite().all(0)
    x = torch.where(usable, x0, torch.zeros_like(B))
    return x, b_norms.cpu()


def begin(
    operator: LinearOperator, B: Float[Tensor, "n s"], x0: Float[Tensor, "n s"] | None
) -> dict:
    """The fields of an `UpdatedState` before the first step; one epoch for a warm start."""
    x, b_norms = start(B, x0)
    R = B.clone() if x0 is None else operator.matmul(x).neg_().add_(B)
    norms = relative_norms(R, b_norms)
    return {
        "B": B,
        "x": x,
        "b_norms": b_norms,
        "residual_norms": norms,
        "columns": torch.where(norms <= _rounding(B.dtype), Column.SETTLED, Column.ACTIVE),
        "R": R,
        "best_norms": norms,
        "strikes": torch.zeros_like(norms, dtype=torch.long),
    }


def replace_residual(
    operator: LinearOperator, state: UpdatedState
) -> tuple[Float[Tensor, " s"], Bool[Tensor, " s"]]:
    """Put B - H x in the place of the updated residual and judge what rounding did; one epoch.

    Returns its norms, and whether the two were far apart.
    """
    R = true_residual(operator, state)
    both = torch.stack([column_norms(R), column_norms(state.R.sub_(R))]).cpu()
    norms, apart = (_relative(lengths, state.b_norms) for lengths in both)
    drifted = apart > 0.1 * norms
    held_up = drifted & (norms > 0.9 * state.best_norms)
    state.R = R
    state.strikes = torch.where(held_up, state.strikes + 1, 0)
    state.best_norms = torch.minimum(state.best_norms, norms)
    return norms, drifted


def record(
    state: UpdatedState,
    norms: Float[Tensor, " s"],
    stuck: Bool[Tensor, " *s"],
    exact: bool = False,
) -> None:
    """Store residual norms and what they say about each column; broken columns keep theirs."""
    broken = state.columns == Column.BROKEN
    state.residual_norms = torch.where(broken, state.residual_norms, norms)
    columns = torch.where((state.strikes >= 3) | stuck, Column.STAGNATED, Column.ACTIVE)
    columns = torch.where(norms <= _rounding(state.x.dtype), Column.SETTLED, columns)
    state.columns = torch.where(broken, Column.BROKEN, columns)
    state.exact = exact


def give_up(state: SolverState) -> SolverState:
    """No column can improve: the matrix is not positive definite as far as one can see."""
    state.columns = torch.full_like(state.columns, Column.BROKEN)
    return state


def _rounding(dtype: torch.dtype) -> float:
    return 0.1 * torch.finfo(dtype).eps


def column_norms(V: Float[Tensor, "n s"]) -> Float[Tensor, " s"]:
    """Norms of the columns, summed in float64."""
    return torch.linalg.vector_norm(V, dim=0, dtype=torch.float64)


def relative_norms(R: Float[Tensor, "n s"], b_norms: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """|r| / |b| for every column, 0 where b is 0; on the CPU."""
    return _relative(column_norms(R).cpu(), b_norms)


def _relative(lengths: Float[Tensor, " s"], b_norms: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    return torch.where(b_norms == 0, 0.0, lengths / b_norms)


def column_dots(
    left: Float[Tensor, "n s"], right: Float[Tensor, "n s"], out: Float[Tensor, "n s"] | None = None
) -> Float[Tensor, " s"]:
    """left[:, c]' right[:, c] for every column, summed in float64; ``out`` is scratch space."""
    return torch.mul(left, right, out=out).sum(0, dtype=torch.float64)


def true_residual(operator: LinearOperator, state: SolverState) -> Float[Tensor, "n s"]:
    """B - H x as a new tensor, one epoch."""
    return operator.matmul(state.x).neg_().add_(state.B)
