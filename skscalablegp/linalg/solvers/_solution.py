"""The result of a solve; a failure is a status here, not an exception."""

from __future__ import annotations

from dataclasses import dataclass, field

from jaxtyping import Float
from torch import Tensor

from ..._end import End


@dataclass(frozen=True)
class SolveSummary:
    """The status, largest relative residual and cost of a solve, without its vectors.

    Attributes
    ----------
    status : End
    residual : float
        Largest relative residual.
    epochs : float
    own_remedy : str
        Advice that replaces the usual remedy for the status, if that does not apply.
    """

    status: End
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
    status : End
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
    status: End
    residuals: Float[Tensor, " s"]
    epochs: float
    n_iter: int
    stats: dict = field(default_factory=dict)

    @property
    def converged(self) -> bool:
        return self.status is End.CONVERGED

    def summary(self) -> SolveSummary:
        return SolveSummary(self.status, float(self.residuals.max()), float(self.epochs))
