"""Preconditioned conjugate gradients on many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ..._named import keep_settings
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

# A column has stagnated when its residual has not fallen by a tenth for 4 n steps, or for 250 if n
# is small. In exact arithmetic n steps solve any system, but rounding delays convergence: with a
# condition number of 1e6 float64 residuals rest for almost 2 n steps before they fall again.
_PATIENT_STEPS, _PATIENT_ROUNDS, _A_TENTH = 250, 4, 0.9


@dataclass(eq=False)
class CGState(UpdatedState):
    """State of `CG`; after step k, ``x_{k+1} = x_k + gamma * direction``.

    Attributes
    ----------
    direction : Tensor of shape (n, s)
        The direction of the last step.
    gamma : Tensor of shape (s,)
        The step sizes of the last step, float64; 0 for columns that are settled or broken.
    beta : Tensor of shape (s,)
        The coefficient of the last direction in ``d_k = z_k + beta d_{k-1}``, 0 at first.
    Z : Tensor of shape (n, s)
        The preconditioned residual.
    rz, rz_previous : Tensor of shape (s,)
        R' Z now and one step ago.
    restart : Tensor of shape (s,)
        Columns whose next direction is Z alone; on the CPU.
    lowest, since_lower : Tensor of shape (s,)
        The residual after the last fall by a tenth, and the number of steps since then. These are
        true residuals if the solver computes them regularly, and updated ones otherwise.
    patience : float
        Number of steps without such a fall after which a column has stagnated.
    since_refresh : int
        Number of steps since the residual was last computed as B - H x.
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
    """Preconditioned conjugate gradients, with separate step sizes for each right-hand side.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None, default=None
        Built at the start of a solve, unless the solve is given a built one. See
        `skscalablegp.preconditioners.resolve_preconditioner` for the names.
    residual_refresh : "auto", int or None, default="auto"
        How often the updated residual is replaced by B - H x, which costs one epoch each time. The
        updated residual drifts below the true one, in float32 far enough to end a solve too early.
        "auto" replaces it every 25 steps and before success is declared if products are in float32;
        if they are in float64, only before success is declared, and only if rounding could matter.
        An integer is the number of steps between replacements; there is also one before success is
        declared. None never does, so that the increments are those of plain conjugate gradients.
    residual_dtype : {"same", "float64"}, default="same"
        Precision of the solution and of B - H x. With "float64" on an operator in float32, the
        directions are still computed in float32, but the solution is accumulated in float64 and the
        true residual is evaluated in float64. The solve then reaches tolerances that a float32
        solution cannot represent: the rounding of x alone leaves a relative residual of up to about
        1e-7 times the condition number of H. A float64 product takes about twice the time of a
        float32 one.

    Notes
    -----
    Algorithm 1 of Lin et al. (2024), with its line 8 corrected to start from the preconditioned
    residual. The replacement of residuals follows van der Vorst and Ye (2000). One epoch and O(n s)
    further operations a step, plus those of the preconditioner; five blocks of n x s numbers beside
    B and x.
    """

    takes_preconditioner = True

    def __init__(self, preconditioner=None, residual_refresh="auto", residual_dtype="same"):
        keep_settings(self, locals())

    def init(self, operator, B, x0=None, preconditioner=None) -> CGState:
        self._interval(operator.dtype)  # Wrong settings fail before the work starts.
        if self.residual_dtype not in ("same", "float64"):
            raise ValueError(
                f"residual_dtype must be 'same' or 'float64'; got {self.residual_dtype!r}."
            )
        if self.residual_dtype == "float64":
            B = B.double()
        chosen = self.preconditioner if preconditioner is None else preconditioner
        built = build_preconditioner(chosen, operator)
        fields = begin(operator, B, x0)
        norms = fields["residual_norms"]
        zeros = torch.zeros_like(norms, device=B.device)
        state = CGState(
            **fields,
            preconditioner=built,
            trace=float(operator.diag().sum(dtype=torch.float64)),
            direction=torch.zeros_like(fields["R"]),
            gamma=zeros,
            rz_previous=zeros,
            restart=norms < 0,
            lowest=norms,
            since_lower=torch.zeros_like(norms, dtype=torch.long),
            # A sequence of plain increments is not judged.
            patience=float("inf")
            if self.residual_refresh is None
            else max(_PATIENT_ROUNDS * len(B), _PATIENT_STEPS),
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
        # r'd equals r'z up to rounding and refreshes, but with r'd no step increases the error.
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
        """Count a step and judge its residual, which is computed afresh at regular intervals."""
        state.iteration += 1
        state.since_refresh += 1
        state.since_lower += 1
        interval = self._interval(state.R.dtype)
        if interval is not None and state.since_refresh >= interval:
            _refresh(operator, state)
            return
        norms = relative_norms(state.R, state.b_norms)
        record(state, norms, _stuck(state, norms, looked=interval is None))
        state.restart = torch.zeros_like(state.columns, dtype=torch.bool)

    def needs_check(self, state: CGState) -> bool:
        if state.exact or self.residual_refresh is None:
            return False
        if self.residual_refresh != "auto" or state.R.dtype != torch.float64:
            return True
        # The drift is at most eps |H| |x| a step, and |H| is at most the trace of H.
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
    """Compute the parts of the next direction, Z = P^-1 R and beta = r'z / (r'z one step ago)."""
    state.Z = state.preconditioner.solve(state.R)
    state.rz = column_dots(state.R, state.Z, scratch)
    restart = state.restart.to(state.rz.device, non_blocking=True)
    keep = (state.rz_previous > 0) & ~restart & (state.gamma != 0)
    state.beta = torch.where(keep, state.rz / state.rz_previous, 0.0)
    state.intact = True
    return state


def _refresh(operator: LinearOperator, state: CGState) -> CGState:
    """Replace the updated residual by B - H x, at the cost of one epoch.

    Columns in which the two agree keep their directions (van der Vorst and Ye, 2000); the others
    start again from Z.
    """
    norms, state.restart = replace_residual(operator, state)
    record(state, norms, _stuck(state, norms, looked=True), exact=True)
    state.since_refresh = 0
    state.stats["n_refreshes"] += 1
    return state


def _stuck(state: CGState, norms: Float[Tensor, " s"], looked: bool) -> Bool[Tensor, " s"]:
    """The columns whose residuals have not fallen by a tenth for too long."""
    if looked:
        lower = norms < _A_TENTH * state.lowest
        state.lowest = torch.where(lower, norms, state.lowest)
        state.since_lower = torch.where(lower, 0, state.since_lower)
    return state.since_lower > state.patience


def _retire(state: CGState, HD: Float[Tensor, "n s"], broken: Bool[Tensor, " s"]) -> None:
    """Set broken columns to zero, so that a product of zero and infinity never reaches x."""
    if bool(broken.any()):
        state.columns = torch.where(broken.cpu(), Column.BROKEN, state.columns)
        for block in (state.direction, state.R, HD):
            block.masked_fill_(broken, 0.0)
