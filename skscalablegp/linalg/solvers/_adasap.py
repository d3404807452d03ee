"""Accelerated sketch-and-project with approximate block solves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from ..._named import keep_settings
from ..._validation import check_integer, check_number
from ..operators import LinearOperator, column_norms
from ._base import divide_norms, give_up
from ._cholesky import cholesky_at_once, cholesky_with_jitter
from ._rows import RowSolver, RowState, draw_rows, largest_eigenvalue

# The average weights iterate t by t to about this power.
_TAIL = 7


@dataclass(eq=False)
class ADASAPState(RowState):
    """State of `ADASAP`, in which ``scale`` multiplies the step sizes.

    Attributes
    ----------
    leader, leader_R : Tensor of shape (n, s)
        The second sequence of Nesterov's method, which takes longer steps, and its residual.
    mixing, memory, stride : float
        alpha, beta and gamma of the recursion. With a stride of 0 the next step computes them.
    ratio : float
        The estimate of noise / (noise + smallest eigenvalue kept) that strength="auto" uses; 0
        before the first step.
    jitter : Tensor
        The jitter of the last block, float64; NaN if the block has no factor.
    average, average_R : Tensor of shape (n, s) or None
        The average of the iterates, with weights that grow, and its residual; None without one.
    n_averaged : int
        Iterates in the average.
    """

    leader: Tensor = None
    leader_R: Tensor = None
    mixing: float = 0.0
    memory: float = 0.0
    stride: float = 0.0
    ratio: float = 0.0
    jitter: Tensor = None
    average: Tensor = None
    average_R: Tensor = None
    n_averaged: int = 0


class ADASAP(RowSolver, name="adasap"):
    """Accelerated sketch-and-project: random blocks, Nystrom block solves, Nesterov's momentum.

    Parameters
    ----------
    block_size : int, default=1000
        Rows of a block, at most n. Blocks are cut from random orders of all rows.
    rank : int or None, default=100
        Rank of the Nystrom approximation of a block. With None, or a rank of at least the block
        size, blocks are solved exactly by Cholesky, which costs b^3 / 3 operations a step and needs
        fewer epochs.
    strength : float or "auto", default="auto"
        The parameter mu of the recursion, which is the expected contraction of one step without
        momentum. "auto" takes ``(b / n) * noise / (noise + smallest eigenvalue kept)`` of the first
        block.
    tail_averaging : bool, default=False
        Whether a solve that ends before it has reached its tolerance may return an average of the
        iterates, most of whose weight lies in the last third. It does so in the columns where the
        average has the smaller residual. Two more blocks of n x s numbers.
    random_state : int, RandomState instance or None, default=None
        Seed of blocks and sketches. None means seed 0, so that solves are repeatable.

    Notes
    -----
    P. Rathore, Z. Frangella, S. Garg, S. Fazliani, M. Derezinski and M. Udell (2025), Turbocharging
    Gaussian process inference with approximate sketch-and-project, arXiv:2505.13723. The recursion
    is that of Rathore, Frangella, Yang, Derezinski and Udell (2025), Have ASkotch: fast methods for
    large-scale, memory-constrained kernel ridge regression, with nu = n / b. The step size of a
    block is one over the largest eigenvalue of the block times its approximate inverse.

    A step changes b rows of the solution, so that the b rows of H which it reads suffice to update
    the residuals of both sequences; no estimate of progress is needed. A step takes b / n epochs,
    (b / n)^2 more for the block if H is not kept, O(b n s) operations, and O(b^2 rank) for the
    block. Four blocks of n x s numbers in addition to B and x. Preconditioners are not used.

    Under a limit of epochs, and in badly conditioned systems, predictions from its solutions are
    closer to the exact ones than those of conjugate gradients (``benchmarks/sketch.py``). Tail
    averaging matters under small limits, if at all.
    """

    _state_class = ADASAPState

    def __init__(
        self,
        block_size=1000,
        *,
        rank=100,
        strength="auto",
        tail_averaging=False,
        random_state=None,
    ):
        keep_settings(self, locals())

    def _check_settings(self) -> None:
        check_integer("block_size", self.block_size)
        check_integer("rank", self.rank, other=(None,))
        check_number("strength", self.strength, positive=True, below=1, other=("auto",))

    def _begin(self, operator: LinearOperator, state: ADASAPState) -> None:
        draw_rows(state, self.block_size, self.random_state)
        state.stats["jitter"] = 0.0
        state.jitter = torch.zeros((), dtype=torch.float64, device=state.x.device)
        self._restart(state)

    def _advance(self, operator, state, idx, rows) -> None:
        solve_block, ratio = self._block(operator, state, idx, rows.block())
        if not state.stride:
            self._pace(state, len(idx) / len(state.x), float(ratio))
        x, R, leader, leader_R = state.x, state.R, state.leader, state.leader_R
        x.lerp_(leader, state.mixing)
        R.lerp_(leader_R, state.mixing)
        delta = solve_block(R[idx]).mul_(state.scale)
        H_delta = rows.rmatmul(delta)
        leader.lerp_(x, 1 - state.memory).index_add_(0, idx, delta, alpha=state.stride)
        leader_R.lerp_(R, 1 - state.memory).sub_(H_delta, alpha=state.stride)
        x.index_add_(0, idx, delta)
        R -= H_delta
        if self.tail_averaging:
            _average(state)

    def settle(self, operator: LinearOperator, state: ADASAPState) -> None:
        """Take the average in the columns where it is better, unless the solve has diverged."""
        super().settle(operator, state)
        if not state.n_averaged:
            return
        norms = divide_norms(column_norms(state.average_R).cpu(), state.b_norms)
        better = norms < state.residual_norms
        at = better.to(state.x.device)
        state.x[:, at], state.R[:, at] = state.average[:, at], state.average_R[:, at]
        state.residual_norms = torch.where(better, norms, state.residual_norms)

    def _pace(self, state: ADASAPState, share: float, ratio: float) -> None:
        """Compute alpha, beta and gamma from mu and nu."""
        mu = share * ratio if self.strength == "auto" else float(self.strength)
        # nu = n / b works for almost all matrices, but is no bound; divergence raises it.
        mu, nu = min(mu, share), 4.0 ** state.stats["n_halvings"] / share
        state.memory = 1 - (mu / nu) ** 0.5
        state.stride = 1 / (mu * nu) ** 0.5
        state.mixing = 1 / (1 + state.stride * nu)
        state.stats["strength"] = mu
        state.ratio = ratio

    def _block(
        self,
        operator: LinearOperator,
        state: ADASAPState,
        idx: Int[Tensor, " b"],
        block: Float[Tensor, "b b"],
    ) -> tuple[Callable[[Tensor], Tensor], Tensor | float]:
        """A function that approximately solves the block, and noise / (noise + what it omits)."""
        floor = 10 * torch.finfo(block.dtype).eps * block.diagonal().double().mean()
        noise = torch.maximum(operator.noise[idx].double().min(), floor)
        noise = noise.clamp_min(torch.finfo(block.dtype).tiny)
        if self.rank is None or self.rank >= len(idx):
            factor, state.jitter = _factor(block)
            ratio = state.ratio
            if not (state.stride or ratio):
                values = torch.linalg.eigvalsh(block.double())
                ratio = noise / (noise + (values[len(values) // 2] - noise).clamp_min(0))
            return (lambda V: torch.cholesky_solve(V, factor)), ratio
        explained, ridge = _nystrom(block.double(), noise, self.rank, state.generator)
        inverse = partial(_reduced, explained=explained, ridge=ridge)
        factor = (1 / _largest_ratio(inverse, block.double(), state.generator) / ridge).to(block)
        explained = explained.to(block.dtype)
        return (lambda V: _reduced(V, explained).mul_(factor)), noise / ridge

    def _norms(self, state):
        """With the jitter of the block in the same copy."""
        both = torch.cat([column_norms(state.R), state.jitter.to(state.R.device)[None]]).cpu()
        jitter = float(both[-1])
        if jitter != jitter:
            state.stats["error"] = "A block is not positive definite even with the largest jitter."
            give_up(state)
        state.stats["jitter"] = max(state.stats["jitter"], jitter)
        return divide_norms(both[:-1].contiguous(), state.b_norms)

    def check(self, operator: LinearOperator, state: ADASAPState) -> ADASAPState:
        drifted = state.R.clone()
        super().check(operator, state)
        # The correction for rounding is the same for all sequences, whose differences are kept.
        drifted.sub_(state.R)
        state.leader_R -= drifted
        if state.n_averaged:
            state.average_R -= drifted
        return state

    def _restart(self, state: ADASAPState) -> None:
        """Make both sequences equal; the stride is computed anew, halved for each divergence."""
        state.leader, state.leader_R = state.x.clone(), state.R.clone()
        state.n_averaged = 0
        state.stride, state.scale = 0.0, 0.5 ** max(state.stats["n_halvings"] - 10, 0)


def _average(state: ADASAPState) -> None:
    """Add the iterate to the average: number t has a weight of about t^7.

    Shamir and Zhang (2013), Stochastic gradient descent for non-smooth optimization, section 3. As
    the average of the last third of a solve, but the end of the solve need not be known.
    """
    if not state.n_averaged:
        state.average, state.average_R = state.x.clone(), state.R.clone()
    state.n_averaged += 1
    weight = (_TAIL + 1) / (state.n_averaged + _TAIL)
    state.average.lerp_(state.x, weight)
    state.average_R.lerp_(state.R, weight)


def _factor(block: Float[Tensor, "b b"]) -> tuple[Float[Tensor, "b b"], Float[Tensor, ""]]:
    """The Cholesky factor of a block and its jitter, for which no device is waited."""
    if not block.is_cpu:
        return cholesky_at_once(block)
    factor, jitter = cholesky_with_jitter(block.contiguous())
    return factor, torch.tensor(jitter, dtype=torch.float64)


def _nystrom(
    block: Float[Tensor, "b b"], noise: Float[Tensor, ""], rank: int, generator: Generator
) -> tuple[Float[Tensor, "b k"], Float[Tensor, ""]]:
    """E and a ridge, such that (I - E E') / ridge is the inverse of the approximated block.

    For the Nystrom approximation N of ``block - noise I`` from a Gaussian sketch, the ridge is the
    noise plus the smallest eigenvalue of N, and (N + ridge I) E E' = N. Cholesky factors take the
    place of the singular value decomposition in algorithm 2.1 of Frangella, Tropp and Udell (2023),
    because a device need not be waited for to know that they have succeeded.
    """
    sketch = torch.randn(len(block), rank, generator=generator, dtype=torch.float64)
    sketch, _ = torch.linalg.qr(sketch.to(block.device, non_blocking=True))
    Y = block @ sketch - noise * sketch
    # A shift stabilises the factor of the core.
    shift = torch.finfo(torch.float64).eps * len(block) ** 0.5 * Y.norm()
    Y += shift * sketch
    core = sketch.mT @ Y
    factor, _ = cholesky_at_once((core + core.mT) / 2)
    left = torch.linalg.solve_triangular(factor, Y.mT, upper=False).mT
    inner = left.mT @ left
    root, _ = cholesky_at_once(inner)
    smallest = 1 / largest_eigenvalue(
        lambda v: torch.cholesky_solve(v, root), rank, block.device, generator, 10
    )
    ridge = noise + (smallest - shift).clamp_min(0)
    inner.diagonal().add_(ridge)
    root, _ = cholesky_at_once(inner)
    return torch.linalg.solve_triangular(root, left.mT, upper=False).mT, ridge


def _reduced(V: Tensor, explained: Tensor, ridge: Tensor | None = None) -> Tensor:
    """(I - E E') V, divided by the ridge if there is one."""
    left = V - explained @ (explained.mT @ V)
    return left if ridge is None else left / ridge


def _largest_ratio(
    inverse: Callable[[Tensor], Tensor], block: Float[Tensor, "b b"], generator: Generator
) -> Float[Tensor, ""]:
    """The largest eigenvalue of ``inverse(block)`` by ten power iterations, at least 1."""
    size, device = len(block), block.device
    value = largest_eigenvalue(lambda v: inverse(block @ v), size, device, generator, 10)
    return value.clamp_min(1)
