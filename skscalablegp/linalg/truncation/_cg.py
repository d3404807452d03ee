"""Conjugate gradients as a stream of increments, weighted as they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..operators import LinearOperator
from ..preconditioners import IdentityPreconditioner, Preconditioner
from ..solvers import CG, CGState
from ._roulette import RouletteSum


def cg_stream(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    n_steps: int,
    *,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> Iterator[CGState]:
    """The states of one CG run from zero: term j of H^-1 B is ``gamma * direction`` of state j.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides.
    n_steps : int
        Most terms. The stream ends early when every column is solved to machine precision.
    preconditioner : Preconditioner, optional
    reorthogonalize : bool, default=False
        Keep all residuals orthogonal: O(n s) memory and O(n s j) operations more in step j.

    Yields
    ------
    CGState
        One and the same object, changed in place.
    """
    chosen = preconditioner or IdentityPreconditioner(len(B), B.dtype, B.device)
    if reorthogonalize:
        chosen = _Reorthogonalizer(chosen, n_steps)
    # A refreshed residual would make the later terms those of another series.
    solver = CG(residual_refresh=None)
    state = solver.init(operator, B, None, chosen)
    while state.iteration < n_steps and bool((state.columns == 0).any()):
        state = solver.step(operator, state)
        yield state


class _Reorthogonalizer(Preconditioner):
    """P^-1 R after R was made orthogonal, in place, to all residuals before it.

    CG applies its preconditioner exactly once a step, to the new residual.
    """

    def __init__(self, inner: Preconditioner, n_steps: int):
        self.inner, self.rank = inner, inner.rank
        self.n_steps, self.used = n_steps, 0
        # Per column, so that all earlier residuals are removed by two products at once.
        self.basis = self.duals = torch.empty(0)

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        n, s = R.shape
        if not self.used:
            self.basis, self.duals = R.new_empty(2, s, self.n_steps + 1, n)
        Q, duals = self.basis[:s, : self.used], self.duals[:s, : self.used]
        for _ in range(2 if self.used else 0):
            coefficients = duals @ R.mT.contiguous()[:, :, None]
            R -= (coefficients.mT @ Q)[:, 0].mT
        Z = self.inner.solve(R)
        norms = (R * Z).sum(0).clamp_min(0).sqrt()
        scale = torch.where(norms > 0, 1 / norms, 0.0)
        self.basis[:s, self.used], self.duals[:s, self.used] = (R * scale).mT, (Z * scale).mT
        self.used += 1
        return Z

    def log_det(self) -> float:
        return self.inner.log_det()

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        return self.inner.sample(s, generator)


@dataclass(frozen=True, eq=False)
class WeightedColumns:
    """Which right-hand sides get which weights; the same columns may appear more than once.

    Attributes
    ----------
    columns : slice
        Of B.
    weights : Tensor of shape (k, terms)
        As in `RouletteSum`.
    """

    columns: slice
    weights: Float64[Tensor, "k terms"]


@dataclass(frozen=True, eq=False)
class WeightedSolve:
    """What `roulette_cg` returns.

    Attributes
    ----------
    values : tuple of Tensor of shape (n, columns)
        One estimate of H^-1 B[:, columns] for each group.
    residuals : Tensor of shape (s,)
        Relative residuals of the unweighted iterates where each column was left, float64.
    n_iter : int
        Steps of the run.
    orthogonality_loss : float
        Largest inner product of a residual with the first one (in P^-1), relative to the first's
        square: 0 in exact arithmetic. Where it is not small, the terms are no longer those of the
        series while the residual still matters, and unbiasedness is lost.
    broken : bool
        Whether a column met a non-positive curvature.
    """

    values: tuple[Tensor, ...]
    residuals: Float64[Tensor, " s"]
    n_iter: int
    orthogonality_loss: float
    broken: bool


def roulette_cg(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    groups: list[WeightedColumns],
    *,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> WeightedSolve:
    """One CG run whose increments are summed with the weights of every group as they arrive.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides; those that need the fewest steps are best put last, since finished ones
        at the end leave the run.
    groups : list of WeightedColumns
    preconditioner, reorthogonalize
        As in `cg_stream`.

    Notes
    -----
    max(J) epochs; beside CG's blocks one block for each group, and one for the current increment.
    Potapczynski et al. (2021), equation 16.
    """
    sums = [RouletteSum(group.weights.to(B.device)) for group in groups]
    n_steps = max(group.weights.shape[1] for group in groups)
    residuals = torch.ones(B.shape[1], dtype=torch.float64, device=B.device)
    loss, broken, iteration = 0.0, False, 0
    stream = cg_stream(
        operator, B, n_steps, preconditioner=preconditioner, reorthogonalize=reorthogonalize
    )
    first = None
    for state in stream:
        iteration = state.iteration
        width = state.x.shape[1]
        if first is None:
            dual = preconditioner.solve(B) if preconditioner is not None else B
            first = (B * dual).sum(0, dtype=torch.float64)
        term = state.direction * state.gamma.to(B.dtype)
        for group, total in zip(groups, sums, strict=True):
            if not total.finished:
                total.add(term[:, group.columns])
        residuals[:width] = state.residual_norms
        loss = max(loss, _loss(state, first[:width]))
        broken = broken or bool((state.columns == 3).any())
        left = [g.columns.stop for g, total in zip(groups, sums, strict=True) if not total.finished]
        if not left:
            break
        if max(left) < width:
            _shrink(state, max(left))
    values = tuple(
        torch.zeros_like(B[:, group.columns]) if total.value is None else total.value
        for group, total in zip(groups, sums, strict=True)
    )
    return WeightedSolve(values, residuals, iteration, loss, broken)


def _loss(state: CGState, first: Float64[Tensor, " s"]) -> float:
    """Largest |r_0' P^-1 r_j| / |r_0|^2, which is 0 in exact arithmetic."""
    product = (state.B * state.Z).sum(0, dtype=torch.float64)
    return float((product.abs() / first.clamp_min(1e-300)).max())


def _shrink(state: CGState, width: int) -> None:
    """Let the columns from `width` on leave the run."""
    for name in (f.name for f in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., :width].contiguous())
