"""The result of a solve; a failure is a status here, not an exception."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from jaxtyping import Float
from torch import Tensor


class Status(Enum):
    """The reason why a solve ended; ``remedy`` says what to change."""

    CONVERGED = "converged"
    MAX_EPOCHS = "max_epochs"
    MAX_ITER = "max_iter"
    MAX_SECONDS = "max_seconds"
    STAGNATED = "stagnated"
    BREAKDOWN = "breakdown"

    @property
    def remedy(self) -> str:
        """A sentence on what to change; empty for CONVERGED."""
        return _REMEDIES[self]


_BUDGET = (
    "The {} ran out before the tolerance was reached: raise it, loosen the tolerance "
    "(solver_tol), raise the preconditioner's rank, or bound the noise variance from below."
)
_REMEDIES = {
    Status.CONVERGED: "",
    Status.MAX_EPOCHS: _BUDGET.format("budget of solver epochs (solver_max_epochs)"),
    Status.MAX_ITER: _BUDGET.format("number of iterations"),
    Status.MAX_SECONDS: _BUDGET.format("time (max_seconds)"),
    Status.STAGNATED: (
        "The residual stopped falling because the working precision is exhausted: use "
        "dtype='float64', loosen the tolerance, raise the preconditioner's rank, or bound the "
        "noise variance from below."
    ),
    Status.BREAKDOWN: (
        "The matrix or the preconditioner is not numerically positive definite: increase the "
        "noise (alpha or the WhiteKernel's lower bound), use dtype='float64', and look for "
        "duplicate rows or non-finite inputs."
    ),
}


@dataclass(frozen=True)
class SolveSummary:
    """The status, largest relative residual and cost of a solve, without its vectors.

    Attributes
    ----------
    status : Status
    residual : float
        Largest relative residual.
    epochs : float
    own_remedy : str
        Advice that replaces the usual remedy for the status, if that does not apply.
    """

    status: Status
    residual: float
    epochs: float
    own_remedy: str = ""

    @property
    def remedy(self) -> str:
        """One sentence on what to change, empty for a solve that converged."""
        return self.own_remedy or self.status.remedy


@dataclass(frozen=True, eq=False)
class Solution:
    """The solution V of H V = B, and how it was reached.

    Attributes
    ----------
    value : Tensor of shape (n, s)
        V, in the operator's precision, or in float64 if the solver accumulates it in float64.
    status : Status
        The reason why the solve ended.
    residuals : Tensor of shape (s,)
        Relative residual of every column, float64.
    epochs : float
        Entries of H evaluated by this solve, divided by n^2, including those for first residuals,
        preconditioners and checks.
    n_iter : int
        Number of steps.
    stats : dict
        ``seconds``, ``residuals_exact`` (whether the residuals were computed from B - H V rather
        than updated), and the solver's own statistics, such as ``jitter`` or ``n_refreshes``.
    """

    value: Float[Tensor, "n s"]
    status: Status
    residuals: Float[Tensor, " s"]
    epochs: float
    n_iter: int
    stats: dict = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        return self.status is Status.CONVERGED

    def summary(self) -> SolveSummary:
        return SolveSummary(self.status, float(self.residuals.max()), float(self.epochs))
