"""Preconditioned conjugate gradients on many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..._validation import check_integer
from ..operators import LinearOperator
from ..preconditioners import Preconditioner, build_preconditioner
from ._base import (
    Column,
    Solver,
    UpdatedState,
    begin,
    column_dots,
    column_norms,
    record,
    relative_norms,
    replace_residual,
)

# In exact arithmetic n steps solve any system: a residual that has not fallen by a tenth for n
# steps, or for so many where there are fewer rows, has nothing more to gain.
_PATIENT_STEPS, _A_TENTH = 250, 0.9


@dataclass(eq=False)
class CGState(UpdatedState):
    """State of `CG`; after step k, ``x_{k+1} = x_k + gamma * direction``.

    Attributes
    ----------
    direction : Tensor of shape (n, s)
        The direction of the last step.
    gamma : Tensor of shape (s,)
        Its step sizes, float64; 0 for columns that are settled or broken.
    beta : Tensor of shape (s,)
        The share of the last direction in the next: ``d_k = z_k + beta d_{k-1}``, 0 at first.
    Z : Tensor of shape (n, s)
        The preconditioned residual.
    rz, rz_previous : Tensor of shape (s,)
        R' Z now and one step ago.
    restart : Tensor of shape (s,)
        Columns whose next direction forgets the last one; on the CPU.
    lowest, since_lower : Tensor of shape (s,)
        The residual that the last fall by a tenth led to, and the steps since. True residuals are
        looked at where they are computed now and then, else the updated ones.
    patience : float
        Steps without such a fall after which a column has stagnated.
    since_refresh : int
        Steps since the residual was last computed as B - H x.
    """

    preconditioner: Preconditioner = None
    trace: float = 0.0
    Z: Tensor = None
    direction: Tensor = None
    gamma: Tensor = None
    beta: Tensor = None
    rz: Tensor = None
    rz_previous: Tensor = None
    restart: Tensor = None
    lowest: Tensor = None
    since_lower: Tensor = None
    patience: float = float("inf")
    since_refresh: int = 0


class CG(Solver):
    """Preconditioned conjugate gradients, each column with its own step sizes.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None, default=None
        Built at the start of a solve unless one is handed to it. See
        `skscalablegp.preconditioners.resolve_preconditioner` for the names.
    residual_refresh : "auto", int or None, default="auto"
        How often the updated residual is replaced by B - H x, one epoch each time. The updated one
        drifts below the true one, in float32 far enough to stop too early. "auto": every 25 steps
        and before success is declared in float32; in float64 only before success is declared, and
        only if rounding could matter there. An integer: every so many steps and before success.
        None: never, which keeps the sequence of increments that of plain CG.

    Notes
    -----
    Algorithm 1 of Lin et al. (2024) with its line 8 corrected to start from the preconditioned
    residual. One epoch and O(n s) further operations a step, plus the preconditioner's; five
    blocks of n x s numbers beside B and x.
    """

    takes_preconditioner = True

    def __init__(self, preconditioner=None, residual_refresh="auto"):
        self.preconditioner = preconditioner
        self.residual_refresh = residual_refresh

    def init(
        self,
        operator: LinearOperator,
        B: Float[Tensor, "n s"],
        x0: Float[Tensor, "n s"] | None = None,
        preconditioner: Preconditioner | None = None,
    ) -> CGState:
        self._interval(operator.dtype)  # a wrong setting should fail before work starts
        chosen = self.preconditioner if preconditioner is None else preconditioner
        built = build_preconditioner(chosen, operator)
        fields = begin(operator, B, x0)
        norms = fields["residual_norms"]
        zeros = torch.zeros_like(norms, device=B.device)
        state = CGState(
            **fields,
            preconditioner=built,
            trace=float(operator.diag().sum(dtype=torch.float64)),
            direction=torch.zeros_like(B),
            gamma=zeros,
            rz_previous=zeros,
            restart=norms < 0,
            lowest=norms,
            since_lower=torch.zeros_like(norms, dtype=torch.long),
            # a sequence of plain increments is never judged
            patience=float("inf") if self.residual_refresh is None else max(len(B), _PATIENT_STEPS),
            stats={"n_refreshes": 0, "preconditioner_rank": built.rank},
        )
        return _prepare(state)

    def step(self, operator: LinearOperator, state: CGState) -> CGState:
        if not state.intact:
            state.rz_previous = torch.zeros_like(state.rz_previous)
            _prepare(_refresh(operator, state))
        state.intact = False
        D = state.direction
        D.mul_(state.beta.to(D.dtype)).add_(state.Z)
        HD = operator.matmul(D)
        curvature = column_dots(D, HD)
        moving = (state.columns == Column.ACTIVE) | (state.columns == Column.STAGNATED)
        moving = moving.to(D.device, non_blocking=True)
        sound = (curvature > 0) & curvature.isfinite() & (state.rz > 0) & state.rz.isfinite()
        _retire(state, HD, moving & ~sound)
        # r'd instead of r'z: the same until rounding or a refresh; it never increases the error
        slope = column_dots(state.R, D)
        gamma = torch.where(moving & sound, slope / curvature, 0.0)
        step = gamma.to(D.dtype)
        state.x.addcmul_(D, step)
        state.R.addcmul_(HD, step, value=-1)
        state.gamma = gamma
        state.rz_previous = state.rz
        self._judge(operator, state)
        return _prepare(state, HD)

    def _judge(self, operator: LinearOperator, state: CGState) -> None:
        """Count a step; the residual that it leaves is computed now and then, else believed."""
        state.iteration += 1
        state.since_refresh += 1
        state.since_lower += 1
        interval = self._interval(state.x.dtype)
        if interval is not None and state.since_refresh >= interval:
            _refresh(operator, state)
            return
        norms = relative_norms(state.R, state.b_norms)
        record(state, norms, _stuck(state, norms, looked=interval is None))
        state.restart = torch.zeros_like(state.columns, dtype=torch.bool)

    def needs_check(self, state: CGState) -> bool:
        if state.exact or self.residual_refresh is None:
            return False
        if self.residual_refresh != "auto" or state.x.dtype != torch.float64:
            return True
        # the drift is below eps |H| |x| a step, and |H| below its trace
        drift = state.since_refresh * torch.finfo(state.x.dtype).eps * state.trace
        bound = drift * column_norms(state.x).cpu()
        return bool((bound > 0.1 * state.residual_norms * state.b_norms).any())

    def check(self, operator: LinearOperator, state: CGState) -> CGState:
        state.intact = False
        return _prepare(_refresh(operator, state))

    def _interval(self, dtype: torch.dtype) -> int | None:
        """Steps between two true residuals, None for never."""
        every = check_integer(
            "residual_refresh", self.residual_refresh, example=25, other=("auto", None)
        )
        if every == "auto":
            return None if dtype == torch.float64 else 25
        return every


def _prepare(state: CGState, scratch: Float[Tensor, "n s"] | None = None) -> CGState:
    """What the next direction is made of: Z = P^-1 R and beta = (r'z) / (r'z one step ago)."""
    state.Z = state.preconditioner.solve(state.R)
    state.rz = column_dots(state.R, state.Z, scratch)
    restart = state.restart.to(state.rz.device, non_blocking=True)
    keep = (state.rz_previous > 0) & ~restart & (state.gamma != 0)
    state.beta = torch.where(keep, state.rz / state.rz_previous, 0.0)
    state.intact = True
    return state


def _refresh(operator: LinearOperator, state: CGState) -> CGState:
    """Replace the updated residual by B - H x; one epoch.

    Directions are kept where the two agree (van der Vorst and Ye, 2000) and restarted elsewhere.
    """
    norms, state.restart = replace_residual(operator, state)
    record(state, norms, _stuck(state, norms, looked=True), exact=True)
    state.since_refresh = 0
    state.stats["n_refreshes"] += 1
    return state


def _stuck(state: CGState, norms: Float[Tensor, " s"], looked: bool) -> Bool[Tensor, " s"]:
    """Columns that have not fallen by a tenth for too long."""
    if looked:
        lower = norms < _A_TENTH * state.lowest
        state.lowest = torch.where(lower, norms, state.lowest)
        state.since_lower = torch.where(lower, 0, state.since_lower)
    return state.since_lower > state.patience


def _retire(state: CGState, HD: Float[Tensor, "n s"], broken: Bool[Tensor, " s"]) -> None:
    """Clear the columns that broke down, so that no 0 * inf reaches x."""
    if bool(broken.any()):
        state.columns = torch.where(broken.cpu(), Column.BROKEN, state.columns)
        for block in (state.direction, state.R, HD):
            block.masked_fill_(broken, 0.0)
