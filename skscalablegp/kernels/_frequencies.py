"""Random frequencies of stationary kernels: drawn once, then functions of theta."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ._slots import Slot


class NoSpectralDensity(ValueError):
    """The kernel has no random features; ``cause`` is the reason, without the advice."""

    cause: str = ""


def no_spectral_density(label: str, reason: str) -> NoSpectralDensity:
    """The error for a kernel, with advice."""
    error = NoSpectralDensity(
        f"{label} {reason}, so its prior samples cannot be made of random features. "
        'Use gradient="standard", which needs no prior samples, or, for a small number of rows, '
        "exact prior samples from a Cholesky factor."
    )
    error.cause = f"{label} {reason}"
    return error


@dataclass(frozen=True, eq=False)
class Draws:
    """The random numbers from which a kernel makes its frequencies.

    They are drawn in float64 on the generator's device, so that they do not depend on the dtype and
    device of the features.

    Attributes
    ----------
    n_pairs, n_columns : int
        Number of frequencies, and of columns of X.
    generator : torch.Generator
        The source.
    dtype, device : torch.dtype, torch.device
        Dtype and device of the frequencies.
    tails : bool
        Whether half of the frequencies come from a density with heavier tails, with weights.
    """

    n_pairs: int
    n_columns: int
    generator: torch.Generator
    dtype: torch.dtype
    device: torch.device
    tails: bool = False

    def normal(self, n_columns: int | None = None) -> Float64[Tensor, "pairs c"]:
        """Standard normal numbers, one row for each frequency; by default, as many columns as X."""
        shape = (self.n_pairs, self.n_columns if n_columns is None else n_columns)
        source = self.generator
        return torch.randn(shape, generator=source, dtype=torch.float64, device=source.device)

    def uniform(self) -> Float64[Tensor, " pairs"]:
        """One uniform number in [0, 1) for each frequency, on the CPU."""
        source = self.generator
        u = torch.rand(self.n_pairs, generator=source, dtype=torch.float64, device=source.device)
        return u.cpu()

    def stored(self, numbers: Tensor) -> Tensor:
        """Numbers in the dtype and on the device of the features."""
        return numbers.to(dtype=self.dtype, device=self.device)


class Frequencies(ABC):
    """The random numbers of one stationary kernel, fixed while theta changes."""

    @abstractmethod
    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        """The frequencies at theta, differentiable with respect to theta."""

    def importance(self) -> Float[Tensor, " pairs"] | None:
        """Spectral densities at the frequencies, over those of which these were drawn.

        None means one.
        """
        return None


@dataclass(frozen=True, eq=False)
class ScaledFrequencies(Frequencies):
    """Frequencies at unit length scale, divided by the length scale.

    Attributes
    ----------
    base : Tensor of shape (pairs, d)
        Draws at unit length scale.
    length_scale : Slot
        One value, or one per column.
    weights : Tensor of shape (pairs,) or None
        Those of `importance`.
    """

    base: Float[Tensor, "pairs d"]
    length_scale: Slot
    weights: Float[Tensor, " pairs"] | None = None

    def at(self, theta: Float[Tensor, " p"]) -> Float[Tensor, "pairs d"]:
        return self.base / self.length_scale.value_like(theta, self.base)

    def importance(self) -> Float[Tensor, " pairs"] | None:
        return self.weights


@dataclass(frozen=True, eq=False)
class SpreadFrequencies(Frequencies):
    """Frequencies of a kernel on some columns; zero in the others.

    Attributes
    ----------
    inner : Frequencies
        Frequencies with one column for each of `columns`.
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

    def importance(self) -> Float[Tensor, " pairs"] | None:
        return self.inner.importance()
