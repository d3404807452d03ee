"""Preconditioned conjugate gradients on many right-hand sides at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..operators import LinearOperator
from ..preconditioners import IdentityPreconditioner, Preconditioner, resolve_preconditioner
from ._base import (
    Column,
    Solver,
    SolverState,
    column_dots,
    column_norms,
    relative_norms,
    start,
    true_residual,
)

# In exact arithmetic n steps solve any system: a residual that has not fallen by a tenth for n
# steps, or for so many where there are fewer rows, has nothing more to gain.
_PATIENT_STEPS, _A_TENTH = 250, 0.9


@dataclass(eq=False)
class CGState(SolverState):
    """State of `CG`; after step k, ``x_{k+1} = x_k + gamma * direction``.

    Attributes
    ----------
    direction : Tensor of shape (n, s)
        The direction of the last step.
    gamma : Tensor of shape (s,)
        Its step sizes, float64; 0 for columns that are settled or broken.
    gammas, betas : list of Tensor of shape (s,)
        Step sizes and direction coefficients of every step so far (``d_k = z_k + beta_k d_{k-1}``,
        ``beta_0 = 0``), from which `tridiagonal_from_cg` makes Lanczos matrices.
    R, Z : Tensor of shape (n, s)
        Residual and preconditioned residual.
    rz, rz_previous : Tensor of shape (s,)
        R' Z now and one step ago.
    restart : Tensor of shape (s,)
        Columns whose next direction forgets the last one.
    best_norms, strikes : Tensor of shape (s,)
        Smallest true residual seen, and how often in a row rounding kept it from falling.
    lowest, since_lower : Tensor of shape (s,)
        The residual that the last fall by a tenth led to, and the steps since. True residuals are
        looked at where they are computed now and then, else the updated ones.
    patience : float
        Steps without such a fall after which a column has stagnated.
    since_refresh : int
        Steps since the residual was last computed as B - H x.
    intact : bool
        False while a step is under way: after an interruption the next step starts afresh from x.
    """

    preconditioner: Preconditioner = None
    trace: float = 0.0
    R: Tensor = None
    Z: Tensor = None
    direction: Tensor = None
    gamma: Tensor = None
    beta: Tensor = None
    rz: Tensor = None
    rz_previous: Tensor = None
    restart: Tensor = None
    best_norms: Tensor = None
    strikes: Tensor = None
    lowest: Tensor = None
    since_lower: Tensor = None
    patience: float = float("inf")
    gammas: list = field(default_factory=list)
    betas: list = field(default_factory=list)
    since_refresh: int = 0
    intact: bool = True


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
        x, b_norms = start(B, x0)
        built = self._build(operator, preconditioner)
        R = B.clone() if x0 is None else operator.matmul(x).neg_().add_(B)
        norms = relative_norms(R, b_norms)
        zeros = torch.zeros_like(b_norms)
        state = CGState(
            B=B,
            x=x,
            b_norms=b_norms,
            residual_norms=norms,
            columns=_classify(norms, zeros > 0, B.dtype),
            preconditioner=built,
            trace=float(operator.diag().sum(dtype=torch.float64)),
            R=R,
            direction=torch.zeros_like(B),
            gamma=zeros,
            rz_previous=zeros,
            restart=zeros > 0,
            best_norms=norms,
            strikes=torch.zeros_like(norms, dtype=torch.long),
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
        sound = (curvature > 0) & curvature.isfinite() & (state.rz > 0) & state.rz.isfinite()
        _retire(state, HD, moving & ~sound)
        # r'd instead of r'z: the same until rounding or a refresh; it never increases the error
        slope = column_dots(state.R, D)
        gamma = torch.where(moving & sound, slope / curvature, 0.0)
        step = gamma.to(D.dtype)
        state.x.addcmul_(D, step)
        state.R.addcmul_(HD, step, value=-1)
        state.gamma = gamma
        state.gammas.append(gamma)
        state.betas.append(state.beta)
        state.iteration += 1
        state.since_refresh += 1
        state.since_lower += 1
        state.rz_previous = state.rz
        interval = self._interval(D.dtype)
        if interval is not None and state.since_refresh >= interval:
            _refresh(operator, state)
        else:
            _record(state, relative_norms(state.R, state.b_norms), looked=interval is None)
            state.exact = False
            state.restart = torch.zeros_like(state.restart)
        return _prepare(state, HD)

    def needs_check(self, state: CGState) -> bool:
        if state.exact or self.residual_refresh is None:
            return False
        if self.residual_refresh != "auto" or state.x.dtype != torch.float64:
            return True
        # the drift is below eps |H| |x| a step, and |H| below its trace
        drift = state.since_refresh * torch.finfo(state.x.dtype).eps * state.trace
        bound = drift * column_norms(state.x)
        return bool((bound > 0.1 * state.residual_norms * state.b_norms).any())

    def check(self, operator: LinearOperator, state: CGState) -> CGState:
        state.intact = False
        return _prepare(_refresh(operator, state))

    def _interval(self, dtype: torch.dtype) -> int | None:
        """Steps between two true residuals, None for never."""
        every = self.residual_refresh
        if isinstance(every, str) and every == "auto":
            return None if dtype == torch.float64 else 25
        if every is None:
            return None
        if isinstance(every, bool) or not isinstance(every, Integral) or every < 1:
            raise ValueError(
                "residual_refresh must be 'auto', None or an integer of at least 1, for example "
                f"25; got {every!r}."
            )
        return int(every)

    def _build(
        self, operator: LinearOperator, preconditioner: Preconditioner | None
    ) -> Preconditioner:
        chosen = self.preconditioner if preconditioner is None else preconditioner
        chosen = resolve_preconditioner(chosen)
        if chosen is None:
            return IdentityPreconditioner(operator.shape[0], operator.dtype, operator.device)
        return chosen.build(operator)


def _prepare(state: CGState, scratch: Float[Tensor, "n s"] | None = None) -> CGState:
    """What the next direction is made of: Z = P^-1 R and beta = (r'z) / (r'z one step ago)."""
    state.Z = state.preconditioner.solve(state.R)
    state.rz = column_dots(state.R, state.Z, scratch)
    keep = (state.rz_previous > 0) & ~state.restart & (state.gamma != 0)
    state.beta = torch.where(keep, state.rz / state.rz_previous, 0.0)
    state.intact = True
    return state


def _refresh(operator: LinearOperator, state: CGState) -> CGState:
    """Replace the updated residual by B - H x and judge what rounding did to it; one epoch.

    Directions are kept where the two agree (van der Vorst and Ye, 2000) and restarted elsewhere.
    """
    R = true_residual(operator, state)
    drift = column_norms(state.R.sub_(R)) / state.b_norms
    state.R = R
    norms = relative_norms(R, state.b_norms)
    state.restart = drift > 0.1 * norms
    held_up = state.restart & (norms > 0.9 * state.best_norms)
    state.strikes = torch.where(held_up, state.strikes + 1, 0)
    state.best_norms = torch.minimum(state.best_norms, norms)
    _record(state, norms, looked=True)
    state.exact = True
    state.since_refresh = 0
    state.stats["n_refreshes"] += 1
    return state


def _record(state: CGState, norms: Float[Tensor, " s"], looked: bool) -> None:
    """Store residual norms and what they say about each column; broken columns keep theirs."""
    if looked:
        lower = norms < _A_TENTH * state.lowest
        state.lowest = torch.where(lower, norms, state.lowest)
        state.since_lower = torch.where(lower, 0, state.since_lower)
    broken = state.columns == Column.BROKEN
    state.residual_norms = torch.where(broken, state.residual_norms, norms)
    stuck = (state.strikes >= 3) | (state.since_lower > state.patience)
    columns = _classify(norms, stuck, state.x.dtype)
    state.columns = torch.where(broken, Column.BROKEN, columns)


def _classify(
    norms: Float[Tensor, " s"], stuck: Bool[Tensor, " s"], dtype: torch.dtype
) -> Int[Tensor, " s"]:
    columns = torch.where(stuck, Column.STAGNATED, Column.ACTIVE)
    return torch.where(norms <= 0.1 * torch.finfo(dtype).eps, Column.SETTLED, columns)


def _retire(state: CGState, HD: Float[Tensor, "n s"], broken: Bool[Tensor, " s"]) -> None:
    """Clear the columns that broke down, so that no 0 * inf reaches x."""
    if bool(broken.any()):
        state.columns = torch.where(broken, Column.BROKEN, state.columns)
        for block in (state.direction, state.R, HD):
            block.masked_fill_(broken, 0.0)
