"""Alternating projections: block Gauss-Southwell with cached Cholesky factors."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer, check_number
from ..operators import ChosenRows, LinearOperator, column_norms
from ._base import divide_norms
from ._cholesky import cholesky_with_jitter
from ._rows import RowSolver, RowState, n_blocks


@dataclass(eq=False)
class APState(RowState):
    """State of `AP`; ``blocks`` is the fixed partition, as slices.

    Attributes
    ----------
    factors : dict of int to Tensor
        Cholesky factors of the blocks visited so far, as many as fit the memory.
    weights : Tensor of shape (s,)
        1 / |b|^2, scaled to a largest value of 1, so that all columns count equally.
    owner : Tensor of shape (n,)
        The block of each row.
    chosen : int
        The block of the current step.
    following : int or None
        The block of the next step, if the end of this one has found it.
    room : float
        Bytes that are left for factors.
    """

    factors: dict = field(default_factory=dict)
    weights: Tensor = None
    owner: Tensor = None
    chosen: int = 0
    following: int | None = None
    room: float = 0.0


class AP(RowSolver, name="ap"):
    """Alternating projections: each step solves the block with the largest residual exactly.

    Parameters
    ----------
    block_size : int, default=1000
        Rows of a block, at most n. The blocks are contiguous and of nearly equal size; a single
        block makes the step a Cholesky solve.
    factor_memory : float, default=1e9
        Bytes for the Cholesky factors that are kept; all of them take ``n * block_size`` numbers.
        The other blocks are factorised at every visit.
    max_jitter : float, default=1e-3
        Largest multiple of a block's mean diagonal entry that may be added to its diagonal. The
        statistics report the largest addition as ``jitter``.

    Notes
    -----
    Algorithm 2 of Lin et al. (2024), after Wu et al. (2024). A step reads the b rows of one block,
    b / n epochs, and takes O(b n s) operations, and b^3 / 3 more at the first visit to a block. Two
    blocks of n x s numbers in addition to B and x, and the factors. The residual is updated, never
    estimated, and the true one is computed before success is declared. Preconditioners are not
    used.
    """

    _state_class = APState
    _can_diverge = False

    def __init__(self, block_size=1000, *, factor_memory=1e9, max_jitter=1e-3):
        keep_settings(self, locals())

    def _check_settings(self) -> None:
        check_integer("block_size", self.block_size)
        check_number("factor_memory", self.factor_memory)
        check_number("max_jitter", self.max_jitter, below=1)

    def _begin(self, operator: LinearOperator, state: APState) -> None:
        n = len(state.x)
        squares = state.b_norms.square()
        weights = torch.where(squares > 0, 1 / squares, 0.0)
        # Scaled, because 1 / |b|^2 may exceed the range of float32.
        state.weights = (weights / weights.max()).to(state.R)
        parts = torch.arange(n).tensor_split(n_blocks(n, self.block_size))
        state.blocks = [slice(int(part[0]), int(part[-1]) + 1) for part in parts]
        sizes = torch.tensor([len(part) for part in parts])
        state.owner = torch.arange(len(parts)).repeat_interleave(sizes).to(state.x.device)
        state.room = float(self.factor_memory)
        state.stats["jitter"] = 0.0

    def _choose(self, state: APState) -> slice:
        if len(state.blocks) == 1:
            return state.blocks[0]
        known = state.following
        state.chosen = int(_largest(state)) if known is None else known
        return state.blocks[state.chosen]

    def _norms(self, state: APState) -> Float[Tensor, " s"]:
        """With the next block, so that a device is waited for once."""
        if len(state.blocks) == 1:
            return super()._norms(state)
        *norms, block = torch.cat([column_norms(state.R), _largest(state).double()[None]]).cpu()
        state.following = int(block)
        return divide_norms(torch.stack(norms), state.b_norms)

    def _advance(self, operator, state, idx, rows) -> None:
        delta = torch.cholesky_solve(state.R[idx], self._factor(state, rows))
        state.x[idx] += delta
        state.R -= rows.rmatmul(delta)

    def _factor(self, state: APState, rows: ChosenRows) -> Float[Tensor, "b b"]:
        if state.chosen in state.factors:
            return state.factors[state.chosen]
        factor, jitter = cholesky_with_jitter(rows.block().contiguous(), self.max_jitter)
        state.stats["jitter"] = max(state.stats["jitter"], jitter)
        size = factor.numel() * factor.element_size()
        if size <= state.room:
            state.room -= size
            state.factors[state.chosen] = factor
        return factor

    def _restart(self, state: APState) -> None:
        """There is no momentum, but the residual is another."""
        state.following = None


def _largest(state: APState) -> Int[Tensor, ""]:
    """The block with the largest residual."""
    mass = state.R.square() @ state.weights
    return mass.new_zeros(len(state.blocks)).index_add_(0, state.owner, mass).argmax()
