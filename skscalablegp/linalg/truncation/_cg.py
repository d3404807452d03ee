"""Conjugate gradients as a stream of increments, which are weighted as they arrive."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ..operators import LinearOperator
from ..preconditioners import IdentityPreconditioner, Preconditioner
from ..solvers import CG, CGState, Column
from ._roulette import RouletteSum


def cg_stream(
    operator: LinearOperator,
    B: Float[Tensor, "n s"],
    n_steps: int,
    *,
    preconditioner: Preconditioner | None = None,
    reorthogonalize: bool = False,
) -> Iterator[CGState]:
    """The states of one CG run that starts from zero.

    Term j of the series for H^-1 B is ``gamma * direction`` of state j.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides.
    n_steps : int
        Largest number of terms. The stream ends earlier if every column is solved to machine
        precision.
    preconditioner : Preconditioner, optional
        The identity by default.
    reorthogonalize : bool, default=False
        Whether to keep all residuals orthogonal. This takes the memory of ``n_steps`` residuals and
        their duals, and O(n s j) further operations in step j.

    Yields
    ------
    CGState
        The same object every time, changed in place.
    """
    chosen = preconditioner or IdentityPreconditioner(len(B), B.dtype, B.device)
    if reorthogonalize:
        chosen = _Reorthogonalizer(chosen, n_steps)
    # After a refresh of the residual, later terms would belong to another series.
    solver = CG(residual_refresh=None)
    state = solver.init(operator, B, None, chosen)
    while state.iteration < n_steps and bool((state.columns == Column.ACTIVE).any()):
        state = solver.step(operator, state)
        yield state


class _Reorthogonalizer(Preconditioner):
    """Computes P^-1 R, after it has made R orthogonal to all former residuals, in place.

    This works because CG applies its preconditioner exactly once a step, to the new residual.
    """

    def __init__(self, inner: Preconditioner, n_steps: int):
        self.inner, self.rank = inner, inner.rank
        self.n_steps, self.used = n_steps, 0
        # Stored by columns of R, so that two products remove all former residuals at once.
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
    """Right-hand sides and the weights of their terms; several groups may use the same columns.

    Attributes
    ----------
    columns : slice
        Columns of B.
    weights : Tensor of shape (k, terms)
        As in `RouletteSum`.
    """

    columns: slice
    weights: Float64[Tensor, "k terms"]


@dataclass(frozen=True, eq=False)
class WeightedSolve:
    """The result of `roulette_cg`.

    Attributes
    ----------
    values : tuple of Tensor of shape (n, columns)
        One estimate of H^-1 B[:, columns] for each group.
    residuals : Tensor of shape (s,)
        Relative residuals of the unweighted iterates at the last step of each column, float64.
    n_iter : int
        Number of steps.
    orthogonality_loss : float
        The largest inner product, in P^-1, of a residual with the first one, relative to the first
        one's square. It is 0 in exact arithmetic. If it is not small, rounding has changed the
        terms of the series while they still matter, and the estimates are biased.
    broken : bool
        Whether a curvature that is not positive was met.
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
    """Sum the increments of one CG run with the weights of every group.

    Parameters
    ----------
    operator : LinearOperator
        H.
    B : Tensor of shape (n, s)
        Right-hand sides. Those that need the fewest steps should come last, because only finished
        columns at the end are dropped from the run.
    groups : list of WeightedColumns
    preconditioner, reorthogonalize
        As in `cg_stream`.

    Notes
    -----
    max(J) epochs. The memory is that of CG, plus a block for each group and for the current term.
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
        broken = broken or bool((state.columns == Column.BROKEN).any())
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
    """The largest |r_0' P^-1 r_j| / |r_0|^2, which is 0 in exact arithmetic."""
    product = (state.B * state.Z).sum(0, dtype=torch.float64)
    return float((product.abs() / first.clamp_min(1e-300)).max())


def _shrink(state: CGState, width: int) -> None:
    """Drop the columns from `width` on from the run."""
    for name in (f.name for f in fields(state)):
        value = getattr(state, name)
        if isinstance(value, Tensor):
            setattr(state, name, value[..., :width].contiguous())
    state.watch.shrink(width)
