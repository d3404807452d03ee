"""Optimisers that touch only the parameters that a step has drawn."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from ...kernels import TorchKernel


class SparseOptimizer(ABC):
    """Turns a sparse gradient into a change of the same entries; state is as large as what it saw.

    Parameters
    ----------
    learning_rate : float
        At the first step.
    decay : float
        Factor of the learning rate after `n_steps`, in between exponential.
    n_steps : int
        Steps that are planned.
    spent : callable, optional
        The share of a time budget that is gone: steps that it will not allow do not count.
    """

    def __init__(
        self,
        learning_rate: float,
        decay: float = 1.0,
        n_steps: int = 1,
        spent: Callable[[], float] | None = None,
    ):
        self.learning_rate, self.decay, self.n_steps = learning_rate, decay, n_steps
        self.spent = spent
        self.done = 0

    def rate(self) -> float:
        """The learning rate now."""
        progress = self.done / self.n_steps
        if self.spent is not None:
            progress = max(progress, self.spent())
        return self.learning_rate * self.decay ** min(progress, 1.0)

    def advance(self) -> None:
        """A step is over."""
        self.done += 1

    @abstractmethod
    def change(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], n_units: int
    ) -> Float[Tensor, "q u k"]:
        """What to add to the drawn entries; u units of n_units."""


class SparseSGD(SparseOptimizer):
    """Minus the learning rate times the gradient."""

    def change(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], n_units: int
    ) -> Float[Tensor, "q u k"]:
        return -self.rate() * gradient


def _grown(state: Tensor | None, gradient: Tensor, n_units: int) -> Tensor:
    """State for as many columns as were ever seen."""
    q, _, k = gradient.shape
    if state is None:
        return gradient.new_zeros(q, n_units, k)
    if state.shape[2] < k:
        return torch.cat([state, state.new_zeros(q, n_units, k - state.shape[2])], 2)
    return state


class SparseAdaGrad(SparseOptimizer):
    """AdaGrad (Duchi et al. 2011) on the drawn entries."""

    squares: Tensor | None = None

    def change(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], n_units: int
    ) -> Float[Tensor, "q u k"]:
        self.squares = _grown(self.squares, gradient, n_units)
        k = gradient.shape[2]
        seen = self.squares[:, index, :k] + gradient.square()
        self.squares[:, index, :k] = seen
        return -self.rate() * gradient / (seen.sqrt() + 1e-10)


class SparseAdam(SparseOptimizer):
    """Adam (Kingma and Ba 2015) whose moments move only when their entry is drawn."""

    betas = (0.9, 0.999)
    first: Tensor | None = None
    second: Tensor | None = None
    seen: Tensor | None = None

    def change(
        self, index: Tensor, gradient: Float[Tensor, "q u k"], n_units: int
    ) -> Float[Tensor, "q u k"]:
        self.first = _grown(self.first, gradient, n_units)
        self.second = _grown(self.second, gradient, n_units)
        self.seen = _grown(self.seen, gradient[:1], n_units)
        (b1, b2), k = self.betas, gradient.shape[2]
        count = self.seen[:, index, :k] + 1
        first = b1 * self.first[:, index, :k] + (1 - b1) * gradient
        second = b2 * self.second[:, index, :k] + (1 - b2) * gradient.square()
        self.first[:, index, :k], self.second[:, index, :k] = first, second
        self.seen[:, index, :k] = count
        mean = first / (1 - b1**count)
        return -self.rate() * mean / ((second / (1 - b2**count)).sqrt() + 1e-10)


class SampledAdam:
    """Adam for hyperparameters: frozen at first, then with a rate that decays exponentially.

    Parameters
    ----------
    learning_rate : float
        At its first step.
    decay : float
        Of the learning rate over all steps.
    n_steps : int
        Steps in all.
    freeze : int, default=0
        Steps before the first change.
    """

    def __init__(self, learning_rate: float, decay: float, n_steps: int, freeze: int = 0):
        self.learning_rate, self.freeze = learning_rate, freeze
        self.decay = decay ** (1 / max(1, n_steps - freeze))
        self._first, self._second, self._count = 0.0, 0.0, 0

    def due(self, step: int) -> bool:
        """Whether theta changes after this step."""
        return step >= self.freeze

    def moved(self, theta: Tensor, gradient: Tensor, kernel: TorchKernel) -> Tensor:
        """The next theta, within its bounds; the same after a gradient that is not finite."""
        if not bool(torch.isfinite(gradient).all()):
            return theta
        self._count += 1
        self._first = 0.9 * self._first + 0.1 * gradient
        self._second = 0.999 * self._second + 0.001 * gradient.square()
        mean = self._first / (1 - 0.9**self._count)
        root = (self._second / (1 - 0.999**self._count)).sqrt()
        new = theta - self.learning_rate * self.decay**self._count * mean / (root + 1e-12)
        low, high = kernel.bounds.to(theta).T
        return torch.minimum(torch.maximum(new, low), high)


SPARSE_OPTIMIZERS: dict[str, type[SparseOptimizer]] = {
    "adagrad": SparseAdaGrad,
    "adam": SparseAdam,
    "preconditioned": SparseSGD,
}
