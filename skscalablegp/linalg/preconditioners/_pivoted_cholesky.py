"""Partial Cholesky factorisations with greedy or random pivots."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..._named import keep_settings
from ..._validation import check_integer
from ..operators import LinearOperator
from ._base import PreconditionerConfig, pick_generator
from ._low_rank import LowRankPreconditioner


class PivotedCholesky(PreconditionerConfig):
    """P = L L' + noise with L a partial pivoted Cholesky factor of K.

    Parameters
    ----------
    rank : int, default=100
        Number of pivots, at most n. The factorisation ends earlier if the remainder is zero up to
        rounding.
    randomized : bool, default=False
        Whether to draw pivots with probabilities proportional to the remaining diagonal
        (RPCholesky: Chen, Epperly, Tropp and Webber, 2023), rather than to take the largest
        remaining entry. Random pivots are not misled by outliers, and rows are read in blocks.
    random_state : int, RandomState instance or None, default=None
        Seed of the random pivots. None uses the generator that ``build`` is given.
    remainder : bool, default=False
        Whether to add the mean diagonal entry of the remainder K - L L' to the noise. Conjugate
        gradients then need fewer steps where the remainder is larger than the noise: the
        eigenvalues of the preconditioned matrix lie around one, and not far above those of the
        rank. The bound on the bias of log determinants is less tight.

    Notes
    -----
    ``rank`` rows of H (``rank / n`` epochs), O(n rank^2) operations and O(n rank) memory. If there
    are as many pivots as rows, P equals H and is computed by an eigendecomposition.
    """

    def __init__(
        self,
        rank=100,
        randomized=False,
        random_state=None,
        remainder=False,
    ):
        keep_settings(self, locals())

    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> LowRankPreconditioner:
        rank = min(check_integer("rank", self.rank, example=100), operator.shape[0])
        if rank == operator.shape[0]:
            return LowRankPreconditioner.from_matrix(operator.to_dense(), operator.noise)
        if self.randomized:
            Lt = _random_factor(operator, rank, pick_generator(self.random_state, generator))
        else:
            Lt = _greedy_factor(operator, rank)
        scale, rest = float(operator.diag().double().mean()), 0.0
        if self.remainder:
            smooth = operator.diag() - operator.noise
            rest = float((smooth - Lt.square().sum(0)).clamp_min_(0).double().mean())
        return LowRankPreconditioner.from_factor(Lt.mT, operator.noise, scale, rest)


def smooth_rows(operator: LinearOperator, idx: Int[Tensor, " b"]) -> Float[Tensor, "b n"]:
    """K[idx, :]: rows of H without the noise."""
    rows = operator.rows(idx)
    rows[torch.arange(len(idx), device=idx.device), idx] -= operator.noise[idx]
    return rows


def _start(operator: LinearOperator, rank: int) -> tuple[Tensor, Tensor, float]:
    """An empty transposed factor, the diagonal of K, and the trace that counts as zero."""
    remaining = (operator.diag() - operator.noise).clamp_min_(0)
    Lt = remaining.new_empty(rank, len(remaining))
    # The remainder is known up to the rounding error of the diagonal, including the noise.
    trace = float(operator.diag().sum(dtype=torch.float64))
    return Lt, remaining, torch.finfo(remaining.dtype).eps * trace


def _greedy_factor(operator: LinearOperator, rank: int) -> Float[Tensor, "k n"]:
    """The transposed factor for pivots that have the largest remaining diagonal entry."""
    Lt, remaining, negligible = _start(operator, rank)
    for k in range(rank):
        if float(remaining.sum()) <= negligible:
            return Lt[:k]
        pivot = remaining.argmax()[None]
        row = smooth_rows(operator, pivot)
        if k:
            row.addmm_(Lt[:k, pivot].mT, Lt[:k], alpha=-1)
        row /= remaining[pivot].sqrt()
        Lt[k] = row[0]
        remaining.addcmul_(Lt[k], Lt[k], value=-1).clamp_min_(0)
        remaining[pivot] = 0
    return Lt


def _random_factor(
    operator: LinearOperator, rank: int, generator: torch.Generator
) -> Float[Tensor, "k n"]:
    """The transposed factor for random pivots.

    Blocks of pivots are proposed from the current diagonal, and thinned so that pivots have the
    same distribution as if they were drawn one at a time. The thinning needs only the block of K
    among the proposed rows (Epperly, Tropp and Webber, 2024, algorithm 2.2).
    """
    Lt, remaining, negligible = _start(operator, rank)
    k, b = 0, max(8, min(rank // 4, 128))
    while k < rank and float(remaining.sum()) > negligible:
        weights = remaining.double().to(generator.device)
        # torch.multinomial is limited to 2**24 categories; inverse transform sampling is not.
        cumulative = weights.cumsum(0)
        uniform = torch.rand(b, 2, generator=generator, device=generator.device).double()
        idx = torch.searchsorted(cumulative, uniform[:, 0] * cumulative[-1], right=True)
        idx = idx.clamp_max_(len(weights) - 1).to(remaining.device)
        chosen = _thin(operator, Lt[:k], remaining, idx, uniform[:, 1])[: rank - k]
        if len(chosen) == 0:
            return Lt[:k]
        rows = smooth_rows(operator, chosen)
        rows.addmm_(Lt[:k, chosen].mT, Lt[:k], alpha=-1)
        factor = _small_cholesky(rows[:, chosen].double())
        rows = torch.linalg.solve_triangular(factor, rows.double(), upper=False)
        Lt[k : k + len(chosen)] = rows
        remaining.sub_(rows.square().sum(0)).clamp_min_(0)
        remaining[chosen] = 0
        k += len(chosen)
    return Lt[:k]


def _thin(
    operator: LinearOperator,
    Lt: Float[Tensor, "k n"],
    remaining: Float[Tensor, " n"],
    idx: Int[Tensor, " b"],
    uniform: Float[Tensor, " b"],
) -> Int[Tensor, " a"]:
    """Keep each proposal with the probability (diagonal after former ones are kept) / (before)."""
    unique, inverse = idx.unique(return_inverse=True)
    block = operator.block(unique).double()
    block.diagonal().sub_(operator.noise[unique])
    block -= (Lt[:, unique].mT @ Lt[:, unique]).double()
    block = block[inverse[:, None], inverse].cpu().numpy()
    before = remaining[idx].double().cpu().numpy()
    # Proposals whose remaining diagonal is a mere rounding error would spoil the factor.
    threshold = np.maximum(uniform.cpu().numpy(), 1e-6) * before
    kept = []
    for i in range(len(block)):
        if block[i, i] > threshold[i]:
            kept.append(i)
            column = block[i:, i] / np.sqrt(block[i, i])
            block[i:, i:] -= column[:, None] * column
    return idx[torch.tensor(kept, dtype=torch.long, device=idx.device)]


def _small_cholesky(block: Float[Tensor, "b b"]) -> Float[Tensor, "b b"]:
    """The Cholesky factor, in float64, of a block that is semi-definite up to rounding."""
    size = block.diagonal().sum()
    for exponent in range(-14, 2):
        factor, info = torch.linalg.cholesky_ex(block)
        if int(info) == 0:
            break
        block = block.clone()
        block.diagonal().add_(10.0**exponent * size)
    return factor
