"""Stochastic compositional gradients: log|F| through a running average of F."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...linalg.solvers import cholesky_with_jitter
from ._batch import BatchGradient, FeatureBatch, averaging_rate, steps_between, weight_space_loss


@dataclass(frozen=True, eq=False)
class RunningGram:
    """The state between two steps.

    Attributes
    ----------
    gram : Tensor of shape (m, m)
        The running average of phi phi' over rows, which approximates Z'Z / n.
    inverse : Tensor of shape (m, m)
        (n gram + s2 I)^-1 at the last factorisation.
    trace : Tensor, scalar
        Trace of the inverse.
    pending : tuple of Tensor
        Features of the batches since then.
    t : int
        Steps so far.
    rate : float
        b_t of the next step, before its decay.
    """

    gram: Float64[Tensor, "m m"]
    inverse: Float[Tensor, "m m"]
    trace: Float[Tensor, ""]
    pending: tuple[Tensor, ...]
    t: int
    rate: float


@dataclass(frozen=True)
class CompositionalGradient(BatchGradient):
    """SCGD: descend g_S + <Ft^-1, F_S>, where Ft is an exponential average of the batches' F_S.

    F_S = (n / b) sum phi phi' + s2 I is unbiased for F; Ft <- (1 - b_t) Ft + b_t F_S, with s2 I
    taken at its current value. As b_t -> 0 the expected direction is the exact gradient.

    Parameters
    ----------
    averaging : float or "auto", default="auto"
        b_t in (0, 1]. The paper uses 0.9; "auto" is b / (10 m), which averages over a window of 10
        m rows. With smaller values the average is less noisy, but lags further behind the features.
    decay : float, default=0
        b_t = averaging / (1 + t)^decay, t the steps since the last exact pass; Wang et al. (2017)
        prove convergence for 1/2.

    Notes
    -----
    O(b m^2) a step and O(m^3) every tenth of the average's window. Shoham and Avron, section 3.2.
    """

    state_class: ClassVar[Any] = RunningGram

    averaging: float | str = "auto"
    decay: float = 0.0

    def start(self, moments, noise, batch_size, dtype):
        rate = averaging_rate(self.averaging, batch_size, len(moments.gram))
        gram = moments.gram / moments.n
        P = _inverse(gram, moments.n, noise).to(dtype)
        return RunningGram(gram, P, P.diagonal().sum(), (), 0, rate)

    def estimate(self, batch, state):
        loss = weight_space_loss(batch, state.inverse, state.trace)
        return loss, self._follow(batch, state)

    def _follow(self, batch: FeatureBatch, state: RunningGram) -> RunningGram:
        """Add the batch to the average; factorise again after a tenth of the window."""
        rate = state.rate * (1 + state.t) ** -self.decay
        pending, t = (*state.pending, batch.phi.detach()), state.t + 1
        if len(pending) < steps_between(rate):
            return replace(state, pending=pending, t=t)
        rows = torch.cat(pending)
        kept = (1 - rate) ** len(pending)
        gram = kept * state.gram + (1 - kept) / len(rows) * (rows.T @ rows).double()
        P = _inverse(gram, batch.n, float(batch.log_noise.detach().exp())).to(rows.dtype)
        return replace(state, gram=gram, inverse=P, trace=P.diagonal().sum(), pending=(), t=t)


def _inverse(gram: Float64[Tensor, "m m"], n: int | float, noise: float) -> Float64[Tensor, "m m"]:
    F = gram * n
    F.diagonal().add_(noise)
    return torch.cholesky_inverse(cholesky_with_jitter(F)[0])
