"""The interface of a solver: settings, a state and a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..._named import NamedSettings
from ..operators import SelfAdjointOperator, column_norms
from ..preconditioners import Preconditioner, resolve_preconditioner


class Column(IntEnum):
    """The condition of one right-hand side; only ACTIVE ones can still improve."""

    ACTIVE = 0
    SETTLED = 1  # solved to machine precision, or zero
    STAGNATED = 2  # the true residual no longer falls, and is above the tolerance
    BROKEN = 3  # a curvature that is not positive, or not finite, was met


@dataclass(eq=False)
class SolverState:
    """The state of a solve, which steps change in place and return.

    The numbers that decide how a solve continues, one for each right-hand side, are kept on the
    CPU, so that a step waits for a GPU only once.

    Attributes
    ----------
    B : Tensor of shape (n, s)
        Right-hand sides, which are never written to.
    x : Tensor of shape (n, s)
        The solution so far. It is usable at any time, also after an interruption.
    b_norms : Tensor of shape (s,)
        Norms of the right-hand sides, float64, on the CPU.
    residual_norms : Tensor of shape (s,)
        Relative residuals, float64, on the CPU; those of zero right-hand sides are 0.
    columns : Tensor of shape (s,)
        A `Column` for every right-hand side, on the CPU.
    iteration : int
        Steps taken.
    exact : bool
        Whether ``residual_norms`` was computed from B - H x for this x, rather than updated.
    stats : dict
        Counters that become part of ``Solution.stats``.
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
    """State of a solver that updates the residual, so that rounding makes it drift from the truth.

    Attributes
    ----------
    R : Tensor of shape (n, s)
        The updated residual, an approximation of B - H x.
    best_norms, strikes : Tensor of shape (s,)
        The smallest true residual so far, and the number of successive checks at which rounding
        kept the residual from falling; on the CPU.
    intact : bool
        False during a step. After an interruption the next step therefore starts afresh from x.
    broken : Tensor of shape (s,) or None
        Columns that this step has found to be broken, on the device until `fetched` reads them.
    """

    R: Tensor = None
    best_norms: Tensor = None
    strikes: Tensor = None
    intact: bool = True
    broken: Tensor | None = None


AnyState = TypeVar("AnyState", bound="SolverState")

# The solvers that have a name, by name.
SOLVERS: dict[str, type[Solver]] = {}


class Solver(NamedSettings, ABC):
    """Settings of an iterative or direct method for H V = B with many right-hand sides.

    A new solver is a subclass with ``init`` and ``step``. Its objects work wherever a solver is
    accepted. With ``class MySolver(Solver, name="mine")`` its name does, too.

    Attributes
    ----------
    direct : bool
        Whether a step factorises H, in which case training may factorise H as well.
    reads_rows : bool
        Whether a step reads only some rows of H. Such methods suit loose tolerances.
    takes_preconditioner : bool
        Whether the method uses a preconditioner; if so, ``preconditioner`` is one of its settings.
    """

    _named = {"preconditioner": resolve_preconditioner}

    direct = False
    reads_rows = False
    takes_preconditioner = False

    def __init_subclass__(cls, name: str | None = None, **kwargs: Any):
        super().__init_subclass__(**kwargs)
        if name is not None:
            SOLVERS[name] = cls

    @abstractmethod
    def init(
        self,
        operator: SelfAdjointOperator,
        B: Float[Tensor, "n s"],
        x0: Float[Tensor, "n s"] | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> SolverState:
        """The state before the first step."""

    @abstractmethod
    def step(self, operator: SelfAdjointOperator, state: SolverState) -> SolverState:
        """Do one iteration in place."""

    def starts_over(self, state: SolverState) -> bool:
        """Whether zero is a better start than that of this state."""
        return False

    def settle(self, operator: SelfAdjointOperator, state: SolverState) -> None:
        """Choose the solution of a solve that ends before it has reached its tolerance."""

    def needs_check(self, state: SolverState) -> bool:
        """Whether ``residual_norms`` must be recomputed before success is declared."""
        return not state.exact

    def check(self, operator: SelfAdjointOperator, state: SolverState) -> SolverState:
        """Compute the true residuals for the state, at the cost of one epoch."""
        state.residual_norms = relative_norms(true_residual(operator, state), state.b_norms)
        state.exact = True
        return state


def first_guess(B: Float[Tensor, "n s"], x0: Float[Tensor, "n s"] | None) -> Float[Tensor, "n s"]:
    """A new first guess, zero in columns where B is zero or x0 is not finite."""
    x = torch.zeros_like(B)
    if x0 is None:
        return x
    x0 = x0.to(x)
    return torch.where((B != 0).any(0) & x0.isfinite().all(0), x0, x)


def begin(
    operator: SelfAdjointOperator, B: Float[Tensor, "n s"], x0: Float[Tensor, "n s"] | None
) -> dict:
    """The fields of an `UpdatedState` before the first step; a warm start costs one epoch."""
    x, b_norms = first_guess(B, x0), operator.norms(B).cpu()
    R = B.clone() if x0 is None else operator.matmul(x).neg_().add_(B)
    R = R.to(operator.dtype)
    norms = divide_norms(b_norms if x0 is None else operator.norms(R).cpu(), b_norms)
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
    operator: SelfAdjointOperator, state: UpdatedState
) -> tuple[Float[Tensor, " s"], Bool[Tensor, " s"]]:
    """Replace the updated residual by B - H x, and measure the effect of rounding; one epoch.

    Returns
    -------
    norms : Tensor of shape (s,)
        Relative norms of B - H x.
    drifted : Tensor of shape (s,)
        Whether the updated residual had drifted far from it.
    """
    R = true_residual(operator, state)
    both = fetched(state, operator.norms(R), operator.norms(state.R.sub_(R)))
    norms, apart = (divide_norms(lengths, state.b_norms) for lengths in both)
    drifted = apart > 0.1 * norms
    held_up = drifted & (norms > 0.9 * state.best_norms)
    state.R.copy_(R)
    state.strikes = torch.where(held_up, state.strikes + 1, 0)
    state.best_norms = torch.minimum(state.best_norms, norms)
    return norms, drifted


def fetched(state: UpdatedState, *lengths: Float[Tensor, " s"]) -> list[Float[Tensor, " s"]]:
    """Numbers of each column on the CPU, with the columns that broke: one wait for a device."""
    broken, state.broken = state.broken, None
    if broken is None:
        return list(torch.stack(lengths).cpu())
    *rows, broke = torch.stack([*lengths, broken.to(lengths[0])]).cpu()
    state.columns = torch.where(broke > 0, Column.BROKEN, state.columns)
    return rows


def record(
    state: UpdatedState,
    norms: Float[Tensor, " s"],
    stuck: Bool[Tensor, " s"] | bool,
    exact: bool = False,
) -> None:
    """Store residual norms and the condition of each column; broken columns stay as they are."""
    # In NumPy, which takes a fifth of the time for so few numbers; some methods have short steps.
    new, old, columns = norms.numpy(), state.residual_norms.numpy(), state.columns.numpy()
    broken = columns == Column.BROKEN
    stuck = np.asarray(stuck) | (state.strikes.numpy() >= 3)
    columns = np.where(stuck, int(Column.STAGNATED), int(Column.ACTIVE))
    columns[new <= _rounding(state.x.dtype)] = Column.SETTLED
    columns[broken] = Column.BROKEN
    state.residual_norms = torch.from_numpy(np.where(broken, old, new))
    state.columns = torch.from_numpy(columns)
    state.exact = exact


def give_up(state: AnyState) -> AnyState:
    """Mark all columns as broken, since the matrix seems not to be positive definite."""
    state.columns = torch.full_like(state.columns, Column.BROKEN)
    return state


def _rounding(dtype: torch.dtype) -> float:
    return 0.1 * torch.finfo(dtype).eps


def relative_norms(R: Float[Tensor, "n s"], b_norms: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """|r| / |b| for every column on the CPU, 0 where b is 0."""
    return divide_norms(column_norms(R).cpu(), b_norms)


def divide_norms(lengths: Float[Tensor, " s"], b_norms: Float[Tensor, " s"]) -> Float[Tensor, " s"]:
    """Lengths divided by the norms of the right-hand sides, 0 where these are 0."""
    lengths, b = lengths.numpy(), b_norms.numpy()
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.divide(lengths, b, out=np.zeros_like(b), where=b != 0))


def true_residual(operator: SelfAdjointOperator, state: SolverState) -> Float[Tensor, "n s"]:
    """B - H x as a new tensor in the precision of x, one epoch."""
    return operator.matmul(state.x).neg_().add_(state.B)
