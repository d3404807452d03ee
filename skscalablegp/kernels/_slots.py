"""Where a hyperparameter's value comes from: a stretch of theta, or a fixed number."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor


@dataclass(frozen=True)
class Slot:
    """One hyperparameter of one leaf.

    Attributes
    ----------
    index : slice or None
        Its entries of theta (logarithms); None when its bounds are "fixed".
    fixed : tuple of float
        Its values when it is fixed, not logarithms; empty otherwise.
    """

    index: slice | None
    fixed: tuple[float, ...] = ()

    @property
    def size(self) -> int:
        """Number of values: 1, or one per column."""
        return len(self.fixed) if self.index is None else self.index.stop - self.index.start

    def part(self, start: int, stop: int) -> Slot:
        """Some of the values, as a slot of their own."""
        if stop > self.size:
            # Beyond it lie the parameters of the next kernel.
            raise IndexError(f"entries {start} to {stop} of a slot with {self.size}")
        if self.index is None:
            return Slot(None, self.fixed[start:stop])
        return Slot(slice(self.index.start + start, self.index.start + stop))

    def value(self, theta: Float[Tensor, " p"]) -> Float64[Tensor, " size"]:
        """The positive value(s), float64 on theta's device, differentiable in theta."""
        if self.index is None:
            return torch.tensor(self.fixed, dtype=torch.float64, device=theta.device)
        return theta[self.index].double().exp()

    def signed(self, theta: Float[Tensor, " p"]) -> Float64[Tensor, " size"]:
        """The entries of theta themselves, of hyperparameters that have no logarithm."""
        if self.index is None:
            return self.value(theta)
        return theta[self.index].double()

    def value_like(self, theta: Float[Tensor, " p"], X: Tensor) -> Float[Tensor, " size"]:
        """The value(s) in the dtype and on the device of ``X``."""
        return self.value(theta).to(X)
