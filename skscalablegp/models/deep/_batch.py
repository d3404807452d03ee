"""Gradients of a feature map's marginal likelihood from a batch: the interface, and BSGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from ._objective import FeatureMoments, data_fit, log_det_direction

# Length of the window of a running average of F, in multiples of m rows.
AVERAGED = 10


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """The data of one step.

    Attributes
    ----------
    phi : Tensor of shape (b, m)
        Features of the batch, differentiable.
    Y : Tensor of shape (b, t)
        Its targets.
    weights : Tensor of shape (m, t)
        The current weights.
    log_noise : scalar Tensor
        log s2, differentiable.
    n : int or float
        Rows of the whole table.
    other : Tensor of shape (b, m) or None
        Features of an independent batch, without a gradient, for rules that need one.
    """

    phi: Float[Tensor, "b m"]
    Y: Float[Tensor, "b t"]
    weights: Float[Tensor, "m t"]
    log_noise: Float[Tensor, ""]
    n: int | float
    other: Tensor | None = None


class BatchGradient(ABC):
    """A rule that turns a batch into a scalar whose gradient is the direction of descent.

    Objects hold settings. A state holds whatever changes from step to step.

    Attributes
    ----------
    needs_independent_batch : bool
        Whether the rule reads `FeatureBatch.other`.
    state_class : type or None
        The dataclass of its state; None for rules without one.
    """

    needs_independent_batch: ClassVar[bool] = False
    state_class: ClassVar[Any] = None

    def start(self, moments: FeatureMoments, noise: float, batch_size: int, dtype: Any) -> Any:
        """The first state, from the exact moments at the current parameters; None without one."""
        return None

    def restored(self, state: dict[str, Any], device: torch.device) -> Any:
        """A state from its fields, as a checkpoint has them."""
        assert self.state_class is not None

        def moved(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(moved, value))
            return value.to(device) if isinstance(value, Tensor) else value

        return self.state_class(**{name: moved(value) for name, value in state.items()})

    @abstractmethod
    def estimate(self, batch: FeatureBatch, state: Any) -> tuple[Float[Tensor, ""], Any]:
        """An estimate of -2 log p(y) / n, up to constants, and the next state."""

    def inverse(self, state: Any) -> Tensor | None:
        """An approximate F^-1 that preconditions the weights' own steps; None for no such steps."""
        return None if state is None else state.inverse

    def slope(self, state: Any) -> Tensor | None:
        """An approximate F^-1 in the direction of descent; None if the rule has none."""
        return self.inverse(state)

    def bias(self, state: Any, moments: FeatureMoments, noise: float) -> float | None:
        """tr(slope F) / m - 1 for the exact F; None before the first step and without a slope."""
        slope = self.slope(state)
        if slope is None or state.t == 0:
            return None
        trace = (slope.double() * moments.gram).sum() + noise * slope.double().trace()
        return float(trace) / len(slope) - 1

    def descend_weights(self, batch: FeatureBatch, state: Any, rate: float) -> None:
        """One implicit stochastic Newton step of the weights, in place, on the batch's part of g.

        With P = F^-1 and k = rate n / b the new weights are w - rate s2 P w - k P phi' (I + k phi P
        phi')^-1 (phi w - Y). This is the proximal form of a step along an unbiased direction to
        F^-1 Z'Y. It remains stable when features move into directions in which P is large. Its
        noise is a fixed part of s2 for any scale of the features; the noise of steps of a fixed
        length would exceed a small s2. O(b m^2 + b^3).
        """
        P = self.inverse(state)
        if P is None:
            return
        phi, w, noise = batch.phi.detach(), batch.weights, batch.log_noise.detach().exp()
        k = rate * batch.n / len(phi)
        PZ = P @ phi.T
        inner = k * (phi @ PZ)
        inner.diagonal().add_(1)
        residual = torch.linalg.solve(inner, phi @ w - batch.Y.detach())
        w.sub_(rate * noise * (P @ w)).sub_(PZ @ residual, alpha=k)


def weight_space_loss(
    batch: FeatureBatch, P: Float[Tensor, "m m"], trace: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """The loss of a batch: its data fit, and a log determinant that is linear with slope P."""
    direction = log_det_direction(batch.phi, P, trace, batch.log_noise, batch.n)
    fit = data_fit(batch.phi, batch.Y, batch.weights, batch.log_noise, batch.n)
    return fit + batch.Y.shape[1] * direction


def averaging_rate(given: Any, batch_size: int, m: int, window: int = AVERAGED) -> float:
    """The user's rate, or the automatic one."""
    return automatic_rate(batch_size, m, window) if isinstance(given, str) else float(given)


def automatic_rate(batch_size: int, m: int, window: int = AVERAGED) -> float:
    """Weight of a batch in a running average whose window is `window` times m rows.

    An m x m matrix estimated from r rows has an inverse that is too large by a factor of about 1 /
    (1 - m / r), the mean of an inverse Wishart. A running average has the noise of an average over
    twice its window, so that a window of ten times m rows leaves an excess of a twentieth.
    """
    return min(0.9, batch_size / (window * m))


def steps_between(rate: float) -> int:
    """Steps from one factorisation to the next, a tenth of an average's window."""
    return max(1, int(0.1 / rate))


@dataclass(frozen=True)
class MinibatchGradient(BatchGradient):
    """BSGD: the marginal likelihood of the batch alone, whose gradient is biased for the table.

    The batch's own s2 I + sum phi phi' takes the place of F, without the factor n / b (Chen et al.
    2020; Shoham and Avron, section 4.2). O(b^2 m + b^3).
    """

    def estimate(self, batch: FeatureBatch, state: Any) -> tuple[Float[Tensor, ""], Any]:
        phi, Y = batch.phi.double(), batch.Y.double()
        noise = torch.exp(batch.log_noise).double()
        H = phi @ phi.T + noise * torch.eye(len(phi), dtype=phi.dtype, device=phi.device)
        L = torch.linalg.cholesky(H)
        white = torch.linalg.solve_triangular(L, Y, upper=False)
        value = white.square().sum() + 2 * Y.shape[1] * L.diagonal().log().sum()
        return value / len(phi), state
