"""The Nystrom approximation from columns that are drawn uniformly."""

from __future__ import annotations

import torch

from ..._validation import check_integer
from ..operators import LinearOperator
from ._base import PreconditionerConfig, pick_generator
from ._low_rank import LowRankPreconditioner
from ._pivoted_cholesky import _small_cholesky, smooth_rows


class Nystrom(PreconditionerConfig):
    """P = K[:, S] (K[S, S] + shift I)^-1 K[S, :] + noise, S drawn uniformly.

    Parameters
    ----------
    rank : int, default=100
        Number of columns, at most n.
    random_state : int, RandomState instance or None, default=None
        Seed of the columns. None uses the generator that ``build`` is given.

    Notes
    -----
    ``rank`` rows of H (``rank / n`` epochs), all read at once, and O(n rank^2) operations. The
    shift is the rounding error of the trace of K[S, S]. It ensures that P does not exceed H.
    """

    def __init__(self, rank=100, random_state=None):
        self.rank = rank
        self.random_state = random_state

    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> LowRankPreconditioner:
        n = operator.shape[0]
        rank = min(check_integer("rank", self.rank, example=100), n)
        generator = pick_generator(self.random_state, generator)
        idx = torch.randperm(n, generator=generator, device=generator.device)[:rank]
        idx = idx.sort().values.to(operator.device)
        rows = smooth_rows(operator, idx)
        block = rows[:, idx].double()
        block = (block + block.mT) / 2
        block.diagonal().add_(torch.finfo(operator.dtype).eps * block.diagonal().sum())
        factor = _small_cholesky(block)
        Lt = torch.linalg.solve_triangular(factor, rows.double(), upper=False)
        scale = float(operator.diag().double().mean())
        return LowRankPreconditioner.from_factor(Lt.to(operator.dtype).mT, operator.noise, scale)
