"""The source of a hyperparameter's value: entries of theta, or fixed numbers."""

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
        Its entries of theta, which are logarithms; None if its bounds are "fixed".
    fixed : tuple of float
        Its values (not logarithms) if it is fixed; empty otherwise.
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
            # Those entries of theta belong to the next kernel.
            raise IndexError(f"entries {start} to {stop} of a slot with {self.size}")
        if self.index is None:
            return Slot(None, self.fixed[start:stop])
        return Slot(slice(self.index.start + start, self.index.start + stop))

    def value(self, theta: Float[Tensor, " p"]) -> Float64[Tensor, " size"]:
        """The positive values, float64 on theta's device, differentiable with respect to theta."""
        if self.index is None:
            fixed = torch.tensor(self.fixed, dtype=torch.float64)
            return fixed.to(theta.device, non_blocking=True)
        return theta[self.index].double().exp()

    def signed(self, theta: Float[Tensor, " p"]) -> Float64[Tensor, " size"]:
        """The entries of theta, for hyperparameters that enter theta without a logarithm."""
        if self.index is None:
            return self.value(theta)
        return theta[self.index].double()

    def value_like(self, theta: Float[Tensor, " p"], X: Tensor) -> Float[Tensor, " size"]:
        """The values in the dtype and on the device of ``X``."""
        # In two steps, because a device without double precision cannot send the gradient in one.
        return self.value(theta).to(X.dtype).to(X.device, non_blocking=True)
