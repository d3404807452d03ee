"""What every preconditioner and every configuration of one can do."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from torch import Tensor

from ..operators import LinearOperator


class Preconditioner(ABC):
    """A symmetric positive definite P close to H, built once and then frozen.

    Attributes
    ----------
    rank : int
        The rank of what P adds to a diagonal matrix.
    """

    rank: int

    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> Preconditioner:
        """Itself: a built one serves wherever settings do."""
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


class PreconditionerConfig(BaseEstimator, ABC):
    """The settings of a preconditioner; ``build`` makes one for an operator."""

    @abstractmethod
    def build(
        self, operator: LinearOperator, generator: torch.Generator | None = None
    ) -> Preconditioner:
        """Look at a few entries of the operator (counted there) and build P.

        Parameters
        ----------
        operator : LinearOperator
            The matrix to approximate.
        generator : torch.Generator, optional
            Randomness for the methods that need some; a ``random_state`` in the settings goes
            before it. With neither, the seed is 0: a solve is then still reproducible.
        """


class IdentityPreconditioner(Preconditioner):
    """P = I, which makes preconditioned methods the plain ones.

    Parameters
    ----------
    n : int
        Number of rows.
    dtype, device
        Of what ``sample`` draws.
    """

    rank = 0

    def __init__(
        self,
        n: int,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ):
        self.n = n
        self.dtype = dtype
        self.device = torch.device(device)

    def solve(self, R: Float[Tensor, "n s"]) -> Float[Tensor, "n s"]:
        return R.clone()

    def log_det(self) -> float:
        return 0.0

    def sample(self, s: int, generator: torch.Generator | None = None) -> Float[Tensor, "n s"]:
        return randn(self.n, s, generator, self.dtype, self.device)


def randn(
    n: int,
    s: int,
    generator: torch.Generator | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Float[Tensor, "n s"]:
    """Standard normal numbers drawn where the generator lives, then moved to the device."""
    source = device if generator is None else generator.device
    return torch.randn(n, s, generator=generator, dtype=dtype, device=source).to(device)


def pick_generator(random_state, generator: torch.Generator | None) -> torch.Generator:
    """The settings' own seed if there is one, else the caller's generator, else seed 0."""
    if random_state is None:
        return torch.Generator().manual_seed(0) if generator is None else generator
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator().manual_seed(seed)
