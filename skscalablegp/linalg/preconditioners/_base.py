"""The interfaces of a preconditioner and of its settings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from ..operators import LinearOperator


class Preconditioner(ABC):
    """A symmetric positive definite matrix P close to H, which does not change once it is built.

    Attributes
    ----------
    rank : int
        The rank of P minus its diagonal part.
    lower : float or None
        A lower bound on the eigenvalues of P^-1/2 H P^-1/2 for the operator H that P was built
        from, up to rounding; None if there is no known bound above 0.
    """

    rank: int
    lower: float | None = None

    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> Preconditioner:
        """Return itself, so that a built preconditioner can stand in the place of settings."""
        return self

    @abstractmethod
    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        """P^-1 R as a new tensor."""

    @abstractmethod
    def log_det(self) -> float:
        """log|P|."""

    @abstractmethod
    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        """Draw s independent columns from N(0, P)."""

    def with_diagonal_of(self, operator: LinearOperator) -> Preconditioner:
        """P with the diagonal of H if that is cheap, otherwise P itself."""
        return self


class PreconditionerConfig(BaseEstimator, ABC):
    """The settings of a preconditioner; ``build`` makes the preconditioner of an operator."""

    @abstractmethod
    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> Preconditioner:
        """Build P from some entries of the operator, which the operator counts.

        Parameters
        ----------
        operator : LinearOperator
            The matrix to approximate.
        generator : torch.Generator, optional
            Randomness for the methods that need it. A ``random_state`` in the settings takes
            precedence. With neither, the seed is 0, so that solves are reproducible.
        """


@dataclass(frozen=True, eq=False)
class IdentityPreconditioner(Preconditioner):
    """P = I, with which a preconditioned method is the plain method.

    Parameters
    ----------
    n : int
        Number of rows.
    dtype : torch.dtype, default=torch.float64
        Precision of the draws of ``sample``.
    device : torch.device, default=the CPU
        Device of the draws of ``sample``.
    """

    n: int
    dtype: torch.dtype = torch.float64
    device: torch.device = torch.device("cpu")
    rank = 0

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return R.clone()

    def log_det(self) -> float:
        return 0.0

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        return randn(self.n, s, generator, self.dtype, self.device)


def randn(
    n: int, s: int, generator: torch.Generator | None, dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n s"]:
    """Standard normal numbers, drawn on the generator's device and moved to the given one."""
    source = device if generator is None else generator.device
    return torch.randn(n, s, generator=generator, dtype=dtype, device=source).to(device)


def pick_generator(random_state: Any, generator: torch.Generator | None = None) -> torch.Generator:
    """A generator with the settings' own seed, else the caller's generator, else one of seed 0."""
    if random_state is None:
        return torch.Generator().manual_seed(0) if generator is None else generator
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator().manual_seed(seed)
