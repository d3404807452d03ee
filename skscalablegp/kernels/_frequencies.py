"""Random frequencies of stationary kernels, drawn once and moved along with theta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ._slots import Slot


class NoSpectralDensity(ValueError):
    """A kernel of which no random features can be drawn; ``cause`` says why, without what to do."""

    cause: str = ""


def no_spectral_density(label: str, reason: str) -> NoSpectralDensity:
    """The error for a kernel, with what to do instead."""
    error = NoSpectralDensity(
        f"{label} {reason}, so its prior samples cannot be made of random features. "
        'Use gradient="standard", which needs no prior samples, or, for a small number of rows, '
        "exact prior samples from a Cholesky factor."
    )
    error.cause = f"{label} {reason}"
    return error


@dataclass(frozen=True, eq=False)
class Draws:
    """Where a kernel takes the randomness of its frequencies from.

    Numbers are drawn in float64 where the generator lives, so that they are the same for every
    dtype and device.

    Attributes
    ----------
    n_pairs, n_columns : int
        Number of frequencies, and of columns of X.
    generator : torch.Generator
        The source.
    dtype, device : torch.dtype, torch.device
        How frequencies are stored.
    """

    n_pairs: int
    n_columns: int
    generator: torch.Generator
    dtype: torch.dtype
    device: torch.device

    def normal(self, n_columns: int | None = None) -> Float64[Tensor, "pairs c"]:
        """Standard normal numbers; a row a frequency, by default a column for each of X."""
        shape = (self.n_pairs, self.n_columns if n_columns is None else n_columns)
        source = self.generator
        return torch.randn(shape, generator=source, dtype=torch.float64, device=source.device)

    def uniform(self) -> Float64[Tensor, " pairs"]:
        """One number between 0 and 1 a frequency, on the CPU."""
        source = self.generator
        u = torch.rand(self.n_pairs, generator=source, dtype=torch.float64, device=source.device)
        return u.cpu()

    def stored(self, numbers: Tensor) -> Tensor:
        """Numbers in the dtype and on the device of the features."""
        return numbers.to(dtype=self.dtype, device=self.device)


class Frequencies(ABC):
    """One stationary kernel's frozen randomness."""

    @abstractmethod
    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        """The frequencies at theta, differentiable in theta."""


@dataclass(frozen=True, eq=False)
class ScaledFrequencies(Frequencies):
    """Frequencies at unit length scale, divided by the length scale.

    Attributes
    ----------
    base : Tensor of shape (pairs, d)
        Draws at unit length scale.
    length_scale : Slot
        One value, or one per column.
    """

    base: Float[Tensor, "pairs d"]
    length_scale: Slot

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        return self.base / self.length_scale.value_like(theta, self.base)


@dataclass(frozen=True, eq=False)
class SpreadFrequencies(Frequencies):
    """Frequencies of a kernel on some columns, 0 in the others.

    Attributes
    ----------
    inner : Frequencies
        A column for each of `columns`.
    columns : tuple of int
    n_columns : int
        Number of columns in all.
    """

    inner: Frequencies
    columns: tuple[int, ...]
    n_columns: int

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        inner = self.inner.at(theta)
        columns = torch.tensor(self.columns, device=inner.device)
        whole = inner.new_zeros(len(inner), self.n_columns)
        return whole.index_add(1, columns, inner)
