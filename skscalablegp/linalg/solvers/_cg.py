"""Preconditioned conjugate gradients on many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer
from ..operators import SelfAdjointOperator, column_dots, column_norms
from ..preconditioners import Preconditioner, build_preconditioner
from ._base import (
    Column,
    Solver,
    UpdatedState,
    begin,
    divide_norms,
    fetched,
    record,
    replace_residual,
)

# A column has stagnated when its residual has not fallen by a tenth for 4 n steps, or for 250 if n
# is small. In exact arithmetic n steps solve any system, but rounding delays convergence: with a
# condition number of 1e6 float64 residuals rest for almost 2 n steps before they fall again.
_PATIENT_STEPS, _PATIENT_ROUNDS, _A_TENTH = 250, 4, 0.9


@dataclass(eq=False)
class ColumnWatch:
    """When true residuals are due, and which columns no longer improve; on the CPU.

    Attributes
    ----------
    interval : int or None
        Number of steps between two true residuals; None for never.
    patience : float
        Number of steps without a fall by a tenth after which a column has stagnated.
    lowest, since_lower : Tensor of shape (s,)
        The residual after the last fall by a tenth, and the number of steps since then. These are
        true residuals if they are computed regularly, and updated ones otherwise.
    since_true : int
        Number of steps since the residual was last computed as B - H x.
    """

    interval: int | None
    patience: float
    lowest: Float[Tensor, " s"]
    since_lower: Int[Tensor, " s"]
    since_true: int = 0

    def count(self) -> bool:
        """Count a step; whether a true residual is due after it."""
        self.since_true += 1
        self.since_lower = self.since_lower + 1
        return self.interval is not None and self.since_true >= self.interval

    def stuck(self, norms: Float[Tensor, " s"], true: bool) -> Bool[Tensor, " s"]:
        """The columns whose residuals have not fallen by a tenth for too long."""
        if true or self.interval is None:
            lower = norms < _A_TENTH * self.lowest
            self.lowest = torch.where(lower, norms, self.lowest)
            self.since_lower = torch.where(lower, 0, self.since_lower)
        return self.since_lower > self.patience

    def shrink(self, width: int) -> None:
        """Drop the columns from `width` on."""
        self.lowest, self.since_lower = self.lowest[:width], self.since_lower[:width]


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
    dual_Z, dual_direction : Tensor of shape (n, s) or None
        M Z and M times the direction, if the operator has an inner product of its own.
    rz, rz_previous : Tensor of shape (s,)
        R' M Z now and one step ago.
    sharp : bool
        Whether products are in double precision, because rounded ones got no further.
    restart : Tensor of shape (s,)
        Columns whose next direction is Z alone; on the CPU.
    trace : float
        The trace of H, which bounds the effect of rounding.
    watch : ColumnWatch
    """

    preconditioner: Preconditioner = None
    trace: float = 0.0
    Z: Tensor = None
    direction: Tensor = None
    dual_Z: Tensor | None = None
    dual_direction: Tensor = None
    gamma: Tensor = None
    beta: Tensor = None
    rz: Tensor = None
    rz_previous: Tensor = None
    restart: Tensor = None
    sharp: bool = False
    watch: ColumnWatch = None


class CG(Solver, name="cg"):
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
        float32 one. Where float32 products break a column or reduce its residual no further, the
        solve continues with float64 products.

    Notes
    -----
    Algorithm 1 of Lin et al. (2024), with its line 8 corrected to start from the preconditioned
    residual. The replacement of residuals follows van der Vorst and Ye (2000). One epoch and O(n s)
    further operations a step, plus those of the preconditioner; five blocks of n x s numbers in
    addition to B and x.
    """

    takes_preconditioner = True

    def __init__(self, preconditioner=None, residual_refresh="auto", residual_dtype="same"):
        keep_settings(self, locals())

    def init(self, operator, B, x0=None, preconditioner=None) -> CGState:
        interval = self._interval(operator.dtype)  # Wrong settings fail before the work starts.
        if self.residual_dtype not in ("same", "float64"):
            raise ValueError(
                f"residual_dtype must be 'same' or 'float64'; got {self.residual_dtype!r}."
            )
        if self.residual_dtype == "float64":
            B = B.double()
        chosen = self.preconditioner if preconditioner is None else preconditioner
        built = build_preconditioner(chosen, operator)
        fields = begin(operator, B, x0)
        norms, R = fields["residual_norms"], fields["R"]
        # A sequence of plain increments is not tested for stagnation.
        plain = self.residual_refresh is None
        patience = float("inf") if plain else max(_PATIENT_ROUNDS * len(B), _PATIENT_STEPS)
        zeros = torch.zeros_like(norms, device=B.device)
        state = CGState(
            **fields,
            preconditioner=built,
            trace=0.0 if plain else float(operator.diag().sum(dtype=torch.float64)),
            direction=torch.zeros_like(R),
            gamma=zeros,
            rz_previous=zeros,
            restart=norms < 0,
            watch=ColumnWatch(interval, patience, norms, torch.zeros_like(norms, dtype=torch.long)),
            stats={"n_refreshes": 0, "preconditioner_rank": built.rank},
        )
        _precondition(operator, state)
        if state.dual_Z is not None:
            state.dual_direction = torch.zeros_like(R)
        return state

    def step(self, operator: SelfAdjointOperator, state: CGState) -> CGState:
        """One step of the recurrence for all columns (Lin et al. 2024, algorithm 1)."""
        if not state.intact:
            state.rz_previous = torch.zeros_like(state.rz_previous)
            self.check(operator, state)
        state.intact = False
        beta = state.beta.to(state.direction.dtype)
        D = state.direction.mul_(beta).add_(state.Z)
        MD = D if state.dual_Z is None else state.dual_direction.mul_(beta).add_(state.dual_Z)
        HD = operator.matmul(D.double()).to(D) if state.sharp else operator.image(D, MD)
        curvature = column_dots(MD, HD)
        moving = _moving(state, curvature, HD)
        # r'd equals r'z up to rounding and refreshes, but with r'd no step increases the error.
        state.gamma = torch.where(moving, column_dots(state.R, MD) / curvature, 0.0)
        gamma = state.gamma.to(D.dtype)
        state.x.addcmul_(D, gamma)
        state.R.addcmul_(HD, gamma, value=-1)
        state.rz_previous = state.rz
        self._count(operator, state)
        _precondition(operator, state, HD)
        self._test_residual(operator, state)
        return state

    def _count(self, operator: SelfAdjointOperator, state: CGState) -> None:
        """Count a step, and compute the residual afresh if that is due."""
        state.iteration += 1
        if state.watch.count():
            _refresh(operator, state)

    def _test_residual(self, operator: SelfAdjointOperator, state: CGState) -> None:
        """Test the updated residual of a step for convergence and stagnation.

        After a refresh, the true residual has been tested already.
        """
        if state.watch.since_true > 0:
            # Without a preconditioner R' M Z is the square in the operator's inner product.
            own = state.dual_Z is not None
            norms = state.rz.clamp_min(0).sqrt() if own else column_norms(state.R)
            norms = divide_norms(fetched(state, norms)[0], state.b_norms)
            record(state, norms, state.watch.stuck(norms, true=False))
        if not state.sharp and state.x.dtype != state.R.dtype:
            self._sharpen(operator, state)
        state.intact = True

    def _sharpen(self, operator: SelfAdjointOperator, state: CGState) -> None:
        """Begin again with products in double precision where rounded ones get no further.

        Products that are rounded to ten bits are those of another matrix. If noise is little, its
        smallest eigenvalues differ by more than their size: curvatures become negative, or steps
        after a true residual undo what the steps before it have gained.
        """
        held_up = (state.columns == Column.BROKEN) | (state.columns == Column.STAGNATED)
        if bool(held_up.any()):
            state.sharp, state.columns = True, torch.where(held_up, Column.ACTIVE, state.columns)
            state.strikes = torch.zeros_like(state.strikes)
            state.watch.since_lower = torch.zeros_like(state.watch.since_lower)
            state.rz_previous = torch.zeros_like(state.rz_previous)
            self.check(operator, state)
            state.stats["n_sharpened"] = 1

    def needs_check(self, state: CGState) -> bool:
        if state.exact or self.residual_refresh is None:
            return False
        if self.residual_refresh != "auto" or state.R.dtype != torch.float64:
            return True
        # The drift is at most eps |H| |x| a step, and |H| is at most the trace of H.
        drift = state.watch.since_true * torch.finfo(state.x.dtype).eps * state.trace
        bound = drift * column_norms(state.x).cpu()
        return bool((bound > 0.1 * state.residual_norms * state.b_norms).any())

    def check(self, operator: SelfAdjointOperator, state: CGState) -> CGState:
        state.intact = False
        _precondition(operator, _refresh(operator, state))
        state.intact = True
        return state

    def _interval(self, dtype: torch.dtype) -> int | None:
        """Steps between two true residuals, None for never."""
        every = check_integer(
            "residual_refresh", self.residual_refresh, example=25, other=("auto", None)
        )
        if every == "auto":
            return None if dtype == torch.float64 else 25
        return every


def _precondition(
    operator: SelfAdjointOperator, state: CGState, scratch: Float[Tensor, "n s"] | None = None
) -> None:
    """Compute the parts of the next direction, Z = P^-1 R and beta = r'z / (r'z one step ago)."""
    state.Z = state.preconditioner.solve(state.R)
    dual = operator.dual(state.Z)
    state.dual_Z = None if dual is state.Z else dual
    state.rz = column_dots(state.R, dual, scratch)
    restart = state.restart.to(state.rz.device, non_blocking=True)
    keep = (state.rz_previous > 0) & ~restart & (state.gamma != 0)
    state.beta = torch.where(keep, state.rz / state.rz_previous, 0.0)
    state.restart = torch.zeros_like(state.restart)


def _refresh(operator: SelfAdjointOperator, state: CGState) -> CGState:
    """Replace the updated residual by B - H x, at the cost of one epoch.

    Columns in which the two agree keep their directions (van der Vorst and Ye, 2000); the others
    start again from Z.
    """
    norms, state.restart = replace_residual(operator, state)
    record(state, norms, state.watch.stuck(norms, true=True), exact=True)
    state.watch.since_true = 0
    state.stats["n_refreshes"] += 1
    return state


def _moving(
    state: CGState, curvature: Float[Tensor, " s"], HD: Float[Tensor, "n s"]
) -> Bool[Tensor, " s"]:
    """The columns that take a step.

    Those that break are set to zero, so that a product of zero and infinity never reaches x.
    """
    moving = (state.columns == Column.ACTIVE) | (state.columns == Column.STAGNATED)
    moving = moving.to(HD.device, non_blocking=True)
    sound = (curvature > 0) & curvature.isfinite() & (state.rz > 0) & state.rz.isfinite()
    broken = moving & ~sound
    # This does not wait for a device: the end of the step reads the flag together with the norms.
    if not broken.is_cpu or bool(broken.any()):
        state.broken = broken
        for block in (state.direction, state.R, HD):
            block.masked_fill_(broken, 0.0)
    return moving & sound
