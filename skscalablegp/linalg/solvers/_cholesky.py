"""The direct method, with a jitter that grows in steps and is reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ..._validation import check_number
from ..blocks import cholesky_, cholesky_solve
from ..operators import LinearOperator, column_norms
from ._base import Column, Solver, SolverState, give_up, relative_norms, true_residual


@dataclass(eq=False)
class CholeskyState(SolverState):
    """State of `Cholesky`.

    Attributes
    ----------
    L : Tensor of shape (n, n) or None
        Lower factor of H + jitter I; None before the first step, or if there is no factor.
    jitter : float
        Number added to the diagonal.
    R : Tensor of shape (n, s)
        B - H x.
    """

    L: Tensor | None = None
    jitter: float = 0.0
    R: Tensor = None


class Cholesky(Solver, name="cholesky"):
    """Factorise H in the first step; further steps refine the solution with the same factor.

    Parameters
    ----------
    max_jitter : float, default=1e-3
        Largest multiple of the mean diagonal entry that may be added to the diagonal.

    Notes
    -----
    The first step takes O(n^3) operations, n x n numbers, and two epochs: one for the matrix and
    one for the true residual, which shows the effects of jitter and rounding. Each further step is
    one of iterative refinement, with O(n^2 s) operations and one epoch. Warm starts and
    preconditioners are not needed and not used.
    """

    direct = True

    def __init__(self, max_jitter=1e-3):
        self.max_jitter = max_jitter

    def init(self, operator, B, x0=None, preconditioner=None) -> CholeskyState:
        check_number("max_jitter", self.max_jitter, example=1e-3)
        b_norms = column_norms(B).cpu()
        norms = relative_norms(B, b_norms)
        columns = torch.where(norms == 0, Column.SETTLED, Column.ACTIVE)
        return CholeskyState(B, torch.zeros_like(B), b_norms, norms, columns, R=B)

    def step(self, operator: LinearOperator, state: CholeskyState) -> CholeskyState:
        state.iteration += 1
        if state.L is None:
            try:
                state.L, state.jitter = cholesky_with_jitter(
                    operator.to_dense(), self.max_jitter, rebuild=operator.to_dense
                )
            except torch.linalg.LinAlgError as error:
                state.stats["error"] = str(error)
                return give_up(state)
            state.stats["jitter"] = state.jitter
        old, old_norms, old_R = state.x, state.residual_norms, state.R
        state.x = old + cholesky_solve(old_R, state.L)
        R = true_residual(operator, state)
        norms = relative_norms(R, state.b_norms)
        better = norms < old_norms
        there = better.to(R.device)
        state.x = torch.where(there, state.x, old)
        state.R = torch.where(there, R, old_R)
        state.residual_norms = torch.where(better, norms, old_norms)
        falling = norms < 0.5 * old_norms
        state.columns = torch.where(falling, Column.ACTIVE, Column.STAGNATED)
        state.columns[state.residual_norms <= torch.finfo(R.dtype).eps] = Column.SETTLED
        state.columns[~norms.isfinite()] = Column.BROKEN
        return state


def cholesky_with_jitter(
    H: Float[Tensor, "n n"],
    max_jitter: float = 1e-3,
    rebuild: Callable[[], Float[Tensor, "n n"]] | None = None,
) -> tuple[Float[Tensor, "n n"], float]:
    """The factor L of H + jitter I = L L', and the jitter, which is 0 if H itself has a factor.

    Parameters
    ----------
    H : Tensor of shape (n, n)
        Symmetric; not written to, unless ``rebuild`` is given.
    max_jitter : float, default=1e-3
        Largest jitter as a fraction of the mean diagonal entry. After 0 the first attempt is ten
        times the relative rounding, and each further one is ten times the last.
    rebuild : callable, optional
        Returns H again. If it is given, the factor is written over H, which halves the memory, and
        H is rebuilt for every further attempt.

    Returns
    -------
    L : Tensor of shape (n, n)
    jitter : float
        In the units of H.

    Raises
    ------
    torch.linalg.LinAlgError
        If there is no factor even with the largest jitter.
    """
    check_number("max_jitter", max_jitter, example=1e-3)
    mean = H.diagonal().mean(dtype=torch.float64)
    fraction = 0.0
    while True:
        target = H if rebuild is not None else H.clone()
        target.diagonal().add_(fraction * mean)
        # LAPACK stores matrices by columns. H' is H stored by columns, so that nothing is copied.
        L, info = cholesky_(target.mT if target.is_contiguous() else target)
        if bool((info == 0) & L.diagonal().isfinite().all()):
            return L, float(fraction * mean) if fraction else 0.0
        if fraction >= max_jitter or not 0 < float(mean) < float("inf"):
            raise torch.linalg.LinAlgError(
                f"No Cholesky factor with a jitter of {fraction * mean:.3g}: the matrix is not "
                "numerically positive definite. Increase the noise."
            )
        fraction = min(max(10 * torch.finfo(H.dtype).eps, 10 * fraction), max_jitter)
        H = H if rebuild is None else rebuild()


def cholesky_at_once(
    H: Float[Tensor, "n n"], max_jitter: float = 1e-3
) -> tuple[Float[Tensor, "n n"], Float[Tensor, ""]]:
    """`cholesky_with_jitter` of a small matrix, for which no device is waited.

    Four jitters are tried together, and the smallest one that succeeds is chosen on the device.

    Parameters
    ----------
    H : Tensor of shape (n, n)
        Symmetric.
    max_jitter : float, default=1e-3
        Largest jitter as a fraction of the mean diagonal entry. The others are 0, ten times the
        relative rounding, and the geometric mean of these two.

    Returns
    -------
    L : Tensor of shape (n, n)
        NaN if there is no factor even with the largest jitter.
    jitter : Tensor of shape ()
        In the units of H, float64; NaN if there is no factor.
    """
    least = 10 * torch.finfo(H.dtype).eps
    tried = [0.0, least, (least * max_jitter) ** 0.5, max_jitter]
    jitters = torch.stack([fraction * H.diagonal().mean(dtype=torch.float64) for fraction in tried])
    eye = torch.eye(len(H), dtype=H.dtype, device=H.device)
    L, info = torch.linalg.cholesky_ex(H + jitters.to(H)[:, None, None] * eye)
    sound = (info == 0) & L.diagonal(dim1=1, dim2=2).isfinite().all(1)
    # `argmax` finds the first; an index on the device would be read.
    first = sound.byte().argmax()[None]
    L, jitter = L.index_select(0, first)[0], jitters.index_select(0, first)[0]
    return torch.where(sound.any(), L, torch.nan), torch.where(sound.any(), jitter, torch.nan)
