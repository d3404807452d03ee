"""The end of a last solve whose mean neighbours correct: when held-out errors no longer fall."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ..._end import End
from ...core.data import random_rows
from ...linalg.operators import ChosenRows, KernelOperator, column_norms
from ...linalg.solvers import Progress, SolverState, StoppingRule
from ._nearest import coefficients

# Steps in which the mean squared error has to fall by more than this share of it. On 24,000 drawn
# rows the NLPD of new rows changes by at most 0.002 from the sixth step on
# (python benchmarks/last_solve.py --part steps --rows 24000 --clock cpu --max-steps 24).
_STEPS, _SHARE = 4, 0.005
# Rows that are watched.
_WATCHED = 512
# Rows whose covariances with all rows are held in memory at a time.
_ROWS = 128


class HeldOutErrors(StoppingRule):
    """Success when further steps do not reduce the errors of rows that the solve does not have.

    The weights v of the rows in the solve leave the residual r = y - H v of all rows. A held-out
    row i is predicted by k_i' v and by what its neighbours N in the solve know of the residual.
    With c = H_NN^-1 k_N its error is r_i - c' r_N. Far from convergence r is large, but the
    neighbours know most of it.

    Parameters
    ----------
    operator : KernelOperator
        H of all rows.
    Y : Tensor of shape (n, t)
        Targets of all rows.
    solved : Tensor of shape (n,)
        Whether a row is in the solve.
    k : int
        Number of neighbours.
    keep : bool, default=False
        Whether the entries of the watched rows are stored, not evaluated in each step. Those of a
        NumPy kernel are.

    Notes
    -----
    Up to 512 held-out rows are watched. O(n + k^3) operations each at first, and O(n) in a step.
    `watch` is the callback of the solve; without it the rule has no answer.
    """

    def __init__(
        self,
        operator: KernelOperator,
        Y: Float[Tensor, "n t"],
        solved: Bool[Tensor, " n"],
        k: int,
        keep: bool = False,
    ):
        held, self._solved = (~solved).nonzero()[:, 0], solved.nonzero()[:, 0]
        some = random_rows(len(held), _WATCHED, torch.Generator().manual_seed(0))
        rows = held[some.to(held.device)]
        stored = keep or operator.kernel.numpy_code
        H = operator.rows(rows) if stored else None
        self._rows = operator.chosen(rows) if H is None else ChosenRows(H, rows)
        parts = []
        for some in torch.arange(len(rows), device=rows.device).split(_ROWS):
            K = operator.rows(rows[some]) if H is None else H[some]
            parts.append(_neighbours(operator, K, rows[some], solved, k))
        self._near, self._coefficients, variance = map(torch.cat, zip(*parts, strict=True))
        self._precision, self.scores = 1 / variance[:, None], list[float]()
        # Solvers rescale targets of an extreme size: scores are those of targets of norm one.
        norms = column_norms(Y[self._solved])
        self._Y = Y[rows] / torch.where(norms > 0, norms, 1.0).to(Y)
        self._n = len(Y)

    def errors(self, v: Float[Tensor, "m t"], r: Float[Tensor, "m t"]) -> Float[Tensor, "h t"]:
        """The errors of the watched rows, if all targets are divided by their norms in the solve.

        Parameters
        ----------
        v, r : Tensors of shape (m, t)
            The weights for such targets, and what they leave of the m rows in the solve.
        """
        weights, left = (v.new_zeros(self._n, v.shape[1]) for _ in range(2))
        weights[self._solved], left[self._solved] = v, r
        explained = torch.einsum("hk,hkt->ht", self._coefficients, left[self._near].double())
        return self._Y - self._rows.matmul(weights.to(self._Y)) - explained

    def watch(self, state: SolverState) -> None:
        """Compute the score of a step: the mean logarithm of the columns' mean squared errors."""
        norms = torch.where(state.b_norms > 0, state.b_norms, 1.0).to(state.x)
        squares = self.errors(state.x / norms, state.R / norms).square() * self._precision
        self.scores.append(float(squares.mean(0).clamp_min(1e-300).log().mean()))

    def check(self, progress: Progress) -> End | None:
        recent, before = self.scores[-_STEPS:], self.scores[:-_STEPS]
        ended = bool(before) and min(recent) > min(before) - _SHARE
        return End.CONVERGED if ended else None


def _neighbours(
    operator: KernelOperator,
    K: Float[Tensor, "h n"],
    rows: Int[Tensor, " h"],
    solved: Bool[Tensor, " n"],
    k: int,
) -> tuple[Int[Tensor, "h k"], Float[Tensor, "h k"], Float[Tensor, " h"]]:
    """The solved rows near each row of K, the coefficients of their values, the variance left."""
    diagonal = K[torch.arange(len(rows), device=rows.device), rows].double()
    k = min(k, int(solved.sum()))
    near = K.abs().masked_fill_(~solved, -1).topk(k, 1, sorted=False).indices
    c, least = coefficients(operator, K, near), torch.finfo(operator.dtype).eps * diagonal
    left = diagonal - (K.gather(1, near).double() * c).sum(1)
    return near, c, torch.maximum(left, least)
