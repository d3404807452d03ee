"""A very large number of weights, of which a step changes a few, and how it changes them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ...kernels import TorchKernel


@dataclass(eq=False)
class SampledWeights:
    """w = u + Phi_p' b: m numbers u for each column, of which steps change a few, and s numbers b.

    The columns are the t means and the c dense columns of C. b acts on all units but the first
    `head`, which hold the triangle of the dense columns.

    Attributes
    ----------
    coef : Tensor of shape (q, m / q, k)
        u.
    shared : Tensor of shape (s, k)
        b, in double precision.
    a : Tensor of shape (s + v, k)
        Phi w at the support rows and at the scores' rows. A step updates it in O((s + v) u).
    """

    coef: Float[Tensor, "q units k"]
    shared: Float64[Tensor, "s k"]
    a: Float64[Tensor, "sv k"]
    head: int

    def copy(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.coef.clone(), self.shared.clone(), self.a.clone()

    def assign(self, copy: tuple[Tensor, Tensor, Tensor]) -> None:
        for mine, kept in zip((self.coef, self.shared, self.a), copy, strict=True):
            mine.copy_(kept)


class RunningMean:
    """The mean of the weights over the last steps (Polyak and Juditsky 1992).

    The mean averages out the noise that steps of a constant size leave in the weights. Entries that
    a step does not change are added when they are next drawn, so that a step costs O(u + s). The
    window begins again at every power of two of checks, so that it covers at least the last half of
    the steps.

    Parameters
    ----------
    weights : SampledWeights
    t : int
        Number of columns that are averaged, from the first. The others are copied.
    """

    moving = ("_checks", "_from", "_coef", "_last", "_shared", "_a")

    def __init__(self, weights: SampledWeights, t: int):
        self.weights, self.t = weights, t
        self._checks = 0
        self.begin(0)

    def begin(self, now: int) -> None:
        """Begin a new window at step `now`."""
        w, t = self.weights, self.t
        self._from = now
        self._coef = torch.zeros_like(w.coef[:, :, :t])
        self._last = torch.full((w.coef.shape[1],), float(now)).to(w.coef)
        self._shared = torch.zeros_like(w.shared[:, :t])
        self._a = torch.zeros_like(w.a[:, :t])

    def before(self, index: Tensor, now: int) -> None:
        """Add entries that are about to change in step `now`."""
        span = (now - self._last[index])[None, :, None]
        self._coef[:, index] += span * self.weights.coef[:, index, : self.t]
        self._last[index] = float(now)

    def after(self) -> None:
        """Add the shared weights after a step."""
        self._shared += self.weights.shared[:, : self.t]
        self._a += self.weights.a[:, : self.t]

    def mean(self, now: int) -> SampledWeights | None:
        """The mean over the window, or None if it is empty; O(m)."""
        self._checks += 1
        count = now - self._from
        if count == 0:
            return None
        self.before(torch.arange(len(self._last), device=self._last.device), now)
        w, t = self.weights, self.t
        coef, shared, a = w.copy()
        coef[:, :, :t], shared[:, :t] = self._coef / count, self._shared / count
        a[:, :t] = self._a / count
        out = SampledWeights(coef, shared, a, w.head)
        if self._checks & (self._checks - 1) == 0:
            self.begin(now)
        return out


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
