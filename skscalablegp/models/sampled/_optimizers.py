"""Optimisers that touch only the parameters that a step has drawn."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import TorchKernel


@dataclass(eq=False)
class SparseSGD:
    """Turns a gradient of the drawn entries into a change of the same entries.

    Parameters
    ----------
    learning_rate : float
        Rate of the first step.
    decay : float
        Factor of the rate after `n_steps`. In between it falls exponentially.
    n_steps : int
        Number of planned steps.
    spent : callable, optional
        Returns the share of the time budget that is spent. The rate follows this share if it
        exceeds the share of the planned steps.
    """

    learning_rate: float
    decay: float = 1.0
    n_steps: int = 1
    spent: Callable[[], float] = lambda: 0.0
    done = 0
    moving = ("learning_rate", "done")

    def rate(self) -> float:
        """The current learning rate."""
        progress = max(self.done / self.n_steps, self.spent())
        return self.learning_rate * self.decay ** min(progress, 1.0)

    def advance(self) -> None:
        """Count a step."""
        self.done += 1

    def change(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], n_units: int
    ) -> Float[Tensor, "q u k"]:
        """The change of the drawn entries, which belong to u units of n_units."""
        return -self.rate() * gradient


class SparseAdaGrad(SparseSGD):
    """AdaGrad (Duchi et al. 2011) on the drawn entries."""

    squares: Tensor | None = None
    moving = ("learning_rate", "done", "squares")

    def change(self, index, gradient, n_units):
        if self.squares is None:
            self.squares = gradient.new_zeros(len(gradient), n_units, gradient.shape[2])
        self.squares = self.squares.to(gradient.device)  # which a checkpoint left on the CPU
        seen = self.squares[:, index] + gradient.square()
        self.squares[:, index] = seen
        return super().change(index, gradient, n_units) / (seen.sqrt() + 1e-10)


class SampledAdam:
    """Adam for hyperparameters, after some frozen steps, with an exponentially decaying rate.

    Parameters
    ----------
    learning_rate : float
        Rate of its first step.
    decay : float
        Factor of the rate over all steps.
    n_steps : int
        Number of all steps.
    freeze : int, default=0
        Number of steps before the first change.
    """

    moving = ("_first", "_second", "_count")

    def __init__(self, learning_rate: float, decay: float, n_steps: int, freeze: int = 0):
        self.learning_rate, self.freeze = learning_rate, freeze
        self.decay = decay ** (1 / max(1, n_steps - freeze))
        self._first, self._second, self._count = 0.0, 0.0, 0

    def due(self, step: int) -> bool:
        """Whether theta changes after this step."""
        return step >= self.freeze

    def moved(self, theta: Tensor, gradient: Tensor, kernel: TorchKernel) -> Tensor:
        """The next theta, within its bounds; unchanged for a gradient that is not finite."""
        if not bool(torch.isfinite(gradient).all()):
            return theta
        self._count += 1
        first, second = (torch.as_tensor(m).to(gradient) for m in (self._first, self._second))
        self._first = 0.9 * first + 0.1 * gradient
        self._second = 0.999 * second + 0.001 * gradient.square()
        mean = self._first / (1 - 0.9**self._count)
        root = (self._second / (1 - 0.999**self._count)).sqrt()
        new = theta - self.learning_rate * self.decay**self._count * mean / (root + 1e-12)
        low, high = kernel.bounds.to(theta).T
        return torch.minimum(torch.maximum(new, low), high)
