"""Conjugate gradients in one Krylov space for all right-hand sides."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from ..operators import LinearOperator
from ._cg import CG, CGState, _refresh


class BlockCG(CG, name="block_cg"):
    """Block conjugate gradients, in which every column moves along the directions of all columns.

    Parameters
    ----------
    preconditioner : str, PreconditionerConfig, Preconditioner or None, default=None
        As in `CG`.
    residual_refresh : "auto", int or None, default="auto"
        As in `CG`.
    residual_dtype : {"same", "float64"}, default="same"
        As in `CG`.

    Notes
    -----
    O'Leary (1980), The block conjugate gradient algorithm and related methods. The directions are
    made orthonormal at every step (Dubrulle, 2001), so that linearly dependent right-hand sides and
    converged columns do no harm. After k steps the error of each column is the smallest, in the
    energy norm, within the sum of the Krylov spaces of all columns, which has up to s k dimensions.
    One epoch and O(n s^2) further operations a step, and six blocks of n x s numbers in addition to
    B and x.
    """

    def init(self, operator, B, x0=None, preconditioner=None) -> CGState:
        state = super().init(operator, B, x0, preconditioner)
        state.direction = _orthonormal(state.Z)
        return state

    def step(self, operator: LinearOperator, state: CGState) -> CGState:
        if not state.intact:
            _refresh(operator, state)
            state.direction = _orthonormal(state.preconditioner.solve(state.R))
        state.intact = False
        D = state.direction
        HD = operator.matmul(D.double()).to(D) if state.sharp else operator.matmul(D)
        curvature = (D.mT @ HD).double()
        factor, info = torch.linalg.cholesky_ex((curvature + curvature.mT) / 2)
        # The end of the step reads whether there was a factor; without one, x stays as it is.
        sound = (info == 0) & factor.isfinite().all()
        state.broken = (~sound).expand(state.R.shape[1])
        alpha = torch.cholesky_solve((D.mT @ state.R).double(), factor).to(D.dtype)
        state.x += torch.where(sound, D @ alpha, 0)
        state.R.addmm_(HD, alpha, alpha=-1)
        self._count(operator, state)
        Z = state.preconditioner.solve(state.R)
        beta = torch.cholesky_solve((HD.mT @ Z).double(), factor).to(D.dtype)
        state.direction = _orthonormal(Z.addmm_(D, beta, alpha=-1))
        self._test_residual(operator, state)
        return state

    def check(self, operator: LinearOperator, state: CGState) -> CGState:
        return _refresh(operator, state)

    def _sharpen(self, operator: LinearOperator, state: CGState) -> None:
        super()._sharpen(operator, state)
        if state.sharp:
            state.direction = _orthonormal(state.preconditioner.solve(state.R))


def _orthonormal(V: Float[Tensor, "n s"]) -> Float[Tensor, "n k"]:
    """An orthonormal basis of the columns' span, with k = min(n, s) columns."""
    return torch.linalg.qr(V)[0]
