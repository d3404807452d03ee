"""Gradients of a feature map's marginal likelihood from a few rows: the interface, and BSGD."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Tensor

from ._objective import FeatureMoments, data_fit, log_det_direction

# How many times m rows fill the window of a running average of F.
AVERAGED = 10


@dataclass(frozen=True, eq=False)
class FeatureBatch:
    """What one step sees.

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
    n : int
        Rows of the whole table.
    other : Tensor of shape (b, m) or None
        Features of an independent batch, without a gradient, for rules that ask for one.
    """

    phi: Float[Tensor, "b m"]
    Y: Float[Tensor, "b t"]
    weights: Float[Tensor, "m t"]
    log_noise: Float[Tensor, ""]
    n: int
    other: Tensor | None = None


class BatchGradient(BaseEstimator, ABC):
    """A rule that turns a batch into a scalar whose gradient is the direction to descend.

    Objects are settings; what changes from step to step is in the state.

    Attributes
    ----------
    needs_independent_batch : bool
        Whether `FeatureBatch.other` has to be there.
    """

    needs_independent_batch = False

    @abstractmethod
    def start(self, moments: FeatureMoments, noise: float, batch_size: int, dtype: Any) -> Any:
        """A state that knows the exact moments at the current parameters."""

    @abstractmethod
    def estimate(self, batch: FeatureBatch, state: Any) -> tuple[Float[Tensor, ""], Any]:
        """-2 log p(y) / n up to constants and to the rule's error, and the next state."""

    @abstractmethod
    def inverse(self, state: Any) -> Tensor | None:
        """What stands for F^-1, to precondition the weights' own steps; None to leave them."""

    def slope(self, state: Any) -> Tensor | None:
        """What stands for F^-1 in the direction; None where nothing does."""
        return self.inverse(state)

    def bias(self, state: Any, moments: FeatureMoments, noise: float) -> float | None:
        """tr(slope F) / m - 1 for the exact F after some steps; None where nothing is known."""
        slope = self.slope(state)
        if slope is None or state.t == 0:
            return None
        trace = (slope.double() * moments.gram).sum() + noise * slope.double().trace()
        return float(trace) / len(slope) - 1

    def descend_weights(self, batch: FeatureBatch, state: Any, rate: float) -> None:
        """One implicit stochastic Newton step of the weights, in place, on the batch's part of g.

        With P = F^-1 and k = rate n / b, w - rate s2 P w - k P phi' (I + k phi P phi')^-1 (phi w -
        Y): the proximal form of a step along an unbiased direction to F^-1 Z'Y, stable also where
        features have moved to where P is large. Its noise is a fixed part of s2, whatever the
        features' scale; steps of a fixed length would drown a small s2. O(b m^2 + b^3).
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
    """A batch's loss: the data's fit, and a log determinant that is linear, of slope P."""
    direction = log_det_direction(batch.phi, P, trace, batch.log_noise, batch.n)
    fit = data_fit(batch.phi, batch.Y, batch.weights, batch.log_noise, batch.n)
    return fit + batch.Y.shape[1] * direction


def averaging_rate(given: Any, batch_size: int, m: int, window: int = AVERAGED) -> float:
    """What the user gave, or the automatic rate."""
    return automatic_rate(batch_size, m, window) if isinstance(given, str) else float(given)


def automatic_rate(batch_size: int, m: int, window: int = AVERAGED) -> float:
    """How far one step moves an average over batches: `window` times m rows fill it.

    An m x m matrix estimated from r rows has an inverse that is too large by about 1 / (1 - m / r)
    (the mean of an inverse Wishart): an average, whose memory is twice its window, over ten times m
    rows leaves a twentieth.
    """
    return min(0.9, batch_size / (window * m))


def steps_between(rate: float) -> int:
    """Steps from one factorisation to the next: a tenth of an average's window."""
    return max(1, int(0.1 / rate))


class MinibatchGradient(BatchGradient):
    """BSGD: the exact marginal likelihood of the batch alone, a biased gradient of the whole's.

    With the batch's own s2 I + sum phi phi' in the place of F, its determinant lacks the factor
    n / b (Chen et al. 2020; Shoham and Avron, section 4.2). O(b^2 m + b^3).
    """

    def start(self, moments: FeatureMoments, noise: float, batch_size: int, dtype: Any) -> None:
        return None

    def inverse(self, state: Any) -> None:
        return None

    def estimate(self, batch: FeatureBatch, state: Any) -> tuple[Float[Tensor, ""], Any]:
        phi, Y = batch.phi.double(), batch.Y.double()
        noise = torch.exp(batch.log_noise).double()
        H = phi @ phi.T + noise * torch.eye(len(phi), dtype=phi.dtype, device=phi.device)
        L = torch.linalg.cholesky(H)
        white = torch.linalg.solve_triangular(L, Y, upper=False)
        value = white.square().sum() + 2 * Y.shape[1] * L.diagonal().log().sum()
        return value / len(phi), state
