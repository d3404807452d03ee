"""The end of a last solve whose mean neighbours correct: when left-out errors no longer fall."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ...linalg.operators import KernelOperator
from ...linalg.parallel import map_in_order
from ...linalg.solvers import Progress, SolverState, Status, StoppingRule, cholesky_with_jitter

# Steps in which the mean squared error has to fall by more than this share of it. On 24,000 drawn
# rows the NLPD of held-out rows changes by less than 0.002 from the sixth step on
# (python benchmarks/last_solve.py --part steps --rows 24000 --clock cpu --max-steps 24).
_STEPS, _SHARE = 4, 0.005
# Rows whose covariances with all rows are held in memory at a time.
_ROWS = 128


class LeftOutErrors(StoppingRule):
    """Success when further steps do not reduce the errors of rows that are left out.

    Neighbours N of row i predict what the weights v of the other rows have left. With the residual
    r = y - H v and c = H_NN^-1 k_N its error is

        y_i - (sum_{j != i} k_ij v_j + c' (r_N + k_N v_i)) = r_i - c' r_N + (h_ii - k_N' c) v_i,

    in which the last factor is the variance. Far from convergence r is large, but the neighbours
    know most of it.

    Parameters
    ----------
    operator : KernelOperator
        H, better without a stored matrix, from which blocks of near rows are read slowly.
    rows : Tensor of shape (m,)
        The rows that are left out.
    k : int
        Number of neighbours.

    Notes
    -----
    O(m (n + k^3)) operations at first, and O(m k) in a step. `watch` is the callback of the solve;
    without it the rule has no answer.
    """

    def __init__(self, operator: KernelOperator, rows: Int[Tensor, " m"], k: int):
        self._rows, self.scores = rows, list[float]()
        parts = [_neighbours(operator, part, k) for part in rows.split(_ROWS)]
        near, coefficients, variance = (torch.cat(found) for found in zip(*parts, strict=True))
        self._near, self._coefficients, self._variance = near, coefficients, variance

    def errors(self, v: Float[Tensor, "n t"], r: Float[Tensor, "n t"]) -> Float[Tensor, "m t"]:
        """The errors of the rows for the weights v with the residual r."""
        explained = torch.einsum("mk,mkt->mt", self._coefficients, r[self._near].double())
        own = self._variance[:, None] * v[self._rows]
        return r[self._rows] - explained + own

    def watch(self, state: SolverState) -> None:
        """Compute the score of a step: the mean logarithm of the columns' mean squared errors."""
        squares = self.errors(state.x, state.R).square() / self._variance[:, None]
        self.scores.append(float(squares.mean(0).clamp_min(1e-300).log().mean()))

    def check(self, progress: Progress) -> Status | None:
        recent, before = self.scores[-_STEPS:], self.scores[:-_STEPS]
        ended = bool(before) and min(recent) > min(before) - _SHARE
        return Status.CONVERGED if ended else None


def _neighbours(
    operator: KernelOperator, rows: Int[Tensor, " m"], k: int
) -> tuple[Int[Tensor, "m k"], Float[Tensor, "m k"], Float[Tensor, " m"]]:
    """The neighbours of each row, the coefficients of their values, and the variance given them."""
    K = operator.rows(rows)
    own = torch.arange(len(rows), device=rows.device)
    diagonal, score = K[own, rows].double(), K.abs()
    score[own, rows] = -1  # A row is no neighbour of its own.
    near = score.topk(min(k, K.shape[1] - 1), 1, sorted=False).indices
    cross = K.gather(1, near).double()

    def coefficients(i: int) -> Tensor:
        L = cholesky_with_jitter(operator.block(near[i]).double())[0]
        return torch.cholesky_solve(cross[i, :, None], L)[:, 0]

    # A user's own NumPy kernel may not be thread-safe.
    run = map if operator.kernel.numpy_code else partial(map_in_order, device=K.device)
    c = torch.stack(list(run(coefficients, range(len(rows)))))
    least = torch.finfo(operator.dtype).eps * diagonal
    return near, c, torch.maximum(diagonal - (cross * c).sum(1), least)
