"""Minimax gradients: log|F| through a substitute A, a constraint A = F and its multiplier B."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ...linalg.solvers import cholesky_with_jitter
from ._batch import BatchGradient, FeatureBatch, averaging_rate, steps_between, weight_space_loss
from ._objective import FeatureMoments

# Curvature of the proximal term's smoothed penalty. The saddle is stable above 1, the curvature of
# log|A| relative to F.
_STIFFNESS = 2.0
# Step of A relative to that of B, which must be the faster one.
_PRIMAL_RATE = 0.5
# Smallest eigenvalue of A relative to the last exact F.
_SMALLEST = 0.1
# Length of the multiplier's window, in multiples of m rows. At 10 the noise of batches drove A to a
# tenth of F and tr(slope F) to 1.9 m within 200 steps; at 400 the trace stays within 5% of m.
WINDOW = 400
# Rate at which the centre of the proximal term follows B.
_CENTRE_RATE = 0.1


@dataclass(frozen=True, eq=False)
class Saddle:
    """A and B relative to a reference R R' near F: A = R a R', and q = mu sqrt(m) B.

    Attributes
    ----------
    a, q, centre : Tensor of shape (m, m)
        The substitute for F, the scaled multiplier, and the centre of its proximal term.
    whiten : Tensor of shape (m, m)
        R^-1.
    slope : Tensor of shape (m, m)
        -R^-T q R^-1, which takes the place of F^-1 in the direction of descent.
    trace : Tensor, scalar
        Trace of the slope.
    inverse : Tensor of shape (m, m)
        F^-1 at the last exact pass.
    pending : tuple of Tensor
        Features of the ascent batches since A and B last moved.
    t : int
        Steps so far.
    rate : float
        Step size of B.
    """

    a: Float[Tensor, "m m"]
    q: Float[Tensor, "m m"]
    centre: Float[Tensor, "m m"]
    whiten: Float[Tensor, "m m"]
    slope: Float[Tensor, "m m"]
    trace: Float[Tensor, ""]
    inverse: Float[Tensor, "m m"]
    pending: tuple[Tensor, ...]
    t: int
    rate: float


@dataclass(frozen=True)
class MinimaxGradient(BatchGradient):
    """Descend Psi = g + log|A| + mu <B, A - F> in (w, alpha, s2, A), ascend it in |B| <= 1.

    Psi is a sum over rows, so that batches give unbiased gradients of it. A and F are measured
    relative to R R', the exact F of the last pass over the data, which gives mu sqrt(m) <B, R^-1 (A
    - F) R^-T>. The constraint is exact if the multiplier that balances log|A| lies within the ball.
    On this scale it does so for mu >= 1 and any features; on the paper's scale (its equation 3.2)
    mu must grow with the condition number of F. Descent and ascent use independent batches. A is
    projected onto A >= s2 I, and B onto its ball.

    Parameters
    ----------
    penalty : float or callable, default=2.0
        mu, or a function of the step number that gives it.
    rate : float or "auto", default="auto"
        Step size of B, in (0, 1]; "auto" is b / (400 m). The saddle amplifies the noise of batches,
        and log|A| turns it into a bias, so that B has to move more slowly than SCGD's average.
    scale : {"relative", "published"}, default="relative"
        Unit of A - F. "published" is the paper's mu <B, A - F> / |A|, where the slope of the
        constraint is at most mu / |A|, which is less than F^-1 unless mu is about the condition
        number of F.

    Notes
    -----
    Given B, log|A| + mu <B, A> is concave in A, so that plain alternating steps spiral away from
    the saddle. The ascent therefore has a proximal term |B - B0|^2 whose centre B0 follows B slowly
    (smoothed gradient descent ascent, Zhang et al. 2020). The term keeps the fixed point and damps
    the spiral. Exact passes move A, B and B0 to the saddle of the current features.

    O(b m^2) a step and O(m^3) every tenth of the window. Shoham and Avron, section 3.1.
    """

    needs_independent_batch: ClassVar[bool] = True
    state_class: ClassVar[Any] = Saddle

    penalty: float | Callable[[int], float] = 2.0
    rate: float | str = "auto"
    scale: str = "relative"

    def start(self, moments: FeatureMoments, noise: float, batch_size: int, dtype: Any) -> Saddle:
        rate = averaging_rate(self.rate, batch_size, len(moments.gram), WINDOW)
        F = moments.gram.clone()
        F.diagonal().add_(noise)
        L, _ = cholesky_with_jitter(F)
        eye = torch.eye(len(F), dtype=F.dtype, device=F.device)
        inverse = torch.cholesky_inverse(L)
        if self.scale == "published":
            size = torch.linalg.norm(F)
            whiten, a = eye / size.sqrt(), F / size
            q = self._within(-inverse * size, a, 0)
        else:
            whiten, a, q = torch.linalg.solve_triangular(L, eye, upper=False), eye, -eye
        slope = -(whiten.T @ q @ whiten)
        a, q, whiten, slope, inverse = (part.to(dtype) for part in (a, q, whiten, slope, inverse))
        return Saddle(a, q, q, whiten, slope, slope.diagonal().sum(), inverse, (), 0, rate)

    def _within(self, q: Float[Tensor, "m m"], a: Float[Tensor, "m m"], t: int) -> Tensor:
        """q projected onto its ball."""
        unit = 1 / torch.linalg.norm(a) if self.scale == "published" else len(q) ** 0.5
        radius = self.mu(t) * unit
        return q * (radius / torch.maximum(torch.linalg.norm(q), torch.as_tensor(radius).to(q)))

    def slope(self, state: Saddle) -> Tensor:
        return state.slope

    def estimate(self, batch: FeatureBatch, state: Saddle) -> tuple[Float[Tensor, ""], Saddle]:
        return weight_space_loss(batch, state.slope, state.trace), self._follow(batch, state)

    def mu(self, t: int) -> float:
        """The penalty at a step."""
        return float(self.penalty(t) if callable(self.penalty) else self.penalty)

    def _follow(self, batch: FeatureBatch, state: Saddle) -> Saddle:
        """One projected step of A and of B from the batches of a tenth of the window."""
        pending, t = (*state.pending, batch.other), state.t + 1
        if len(pending) < steps_between(state.rate):
            return replace(state, pending=pending, t=t)
        noise = batch.log_noise.detach().exp().to(state.whiten)
        floor = noise * (state.whiten @ state.whiten.T)
        rows = torch.cat(pending) @ state.whiten.T
        F = rows.T @ rows * (batch.n / len(rows)) + floor
        step = min(state.rate * len(pending), 0.5)
        if self.scale == "published":
            # A step in the metric of log|A|, since the eigenvalues of A have any size here.
            change = state.a + state.a @ state.q @ state.a
        else:
            change = torch.linalg.inv(state.a) + state.q
        a = state.a - _PRIMAL_RATE * step * change
        # The gradient of the logarithm is unbounded near 0. Batches that underestimate F for a
        # while must not move A there, because only an exact pass would undo that.
        a = _at_least(floor, (a + a.T) / 2)
        if self.scale == "relative":
            a = _at_least(_SMALLEST * torch.eye(len(a)).to(a), a)
        q = state.q + step * (_STIFFNESS * (a - F) - (state.q - state.centre))
        q = self._within(q, a, t)
        slope = -(state.whiten.T @ q @ state.whiten)
        centre = state.centre + _CENTRE_RATE * step * (q - state.centre)
        return replace(
            state,
            a=a,
            q=q,
            centre=centre,
            slope=slope,
            trace=slope.diagonal().sum(),
            pending=(),
            t=t,
        )


def _at_least(floor: Float[Tensor, "m m"], a: Float[Tensor, "m m"]) -> Float[Tensor, "m m"]:
    """The nearest matrix to `a` that is `floor` plus a positive semidefinite matrix.

    Rounding leaves `a` slightly below `floor` where the two should be equal. A hundredth is
    tolerated, so that eigenvalues are computed only for larger corrections.
    """
    if int(torch.linalg.cholesky_ex(a - 0.99 * floor)[1]) == 0:
        return a
    values, basis = torch.linalg.eigh(a - floor)
    return floor + (basis * values.clamp_min(0)) @ basis.T
