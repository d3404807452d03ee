"""Stopping rules of a solve: small frozen objects that compose with ``|`` and ``&``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real

import torch
from jaxtyping import Float
from torch import Tensor

from ..._end import End


@dataclass(frozen=True, eq=False)
class Progress:
    """The numbers that a stopping rule may use.

    Attributes
    ----------
    residual_norms : Tensor of shape (s,)
        Relative residual of every column, float64, on the CPU.
    iteration : int
        Number of steps taken.
    epochs : float
        Entries of H evaluated since the solve began, divided by n^2.
    seconds : float
        Time since the solve began.
    step_seconds : float
        Time of the last step, 0 before the first one.
    """

    residual_norms: Float[Tensor, " s"]
    iteration: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    step_seconds: float = 0.0


class StoppingRule(ABC):
    """A rule whose answer is None to go on, or the status of the solve if it should end."""

    @abstractmethod
    def check(self, progress: Progress) -> End | None:
        """The answer at this point; CONVERGED means success, any other status a spent budget."""

    def __or__(self, other: StoppingRule) -> AnyOf:
        return AnyOf(self, other)

    def __and__(self, other: StoppingRule) -> AllOf:
        return AllOf(self, other)


@dataclass(frozen=True)
class RelativeResidual(StoppingRule):
    """Success when ``|b - H x| / |b|`` is small in the chosen columns.

    Parameters
    ----------
    tol : float or Tensor
        The largest relative residual that counts as success, also one for each of the columns.
    columns : slice, int or sequence of int, default=slice(None)
        The right-hand sides that count. If there are none, the rule always holds.
    reduce : {"max", "mean"}, default="max"
        Whether the largest or the mean residual of the columns is compared with `tol`.
    """

    tol: float | Tensor
    columns: slice | int | Sequence[int] = field(default_factory=lambda: slice(None))
    reduce: str = "max"

    def __post_init__(self):
        if not (isinstance(self.tol, Real | Tensor) and bool(torch.as_tensor(self.tol >= 0).all())):
            raise ValueError(f"tol must be at least 0, for example 0.01; got {self.tol!r}.")
        if self.reduce not in ("max", "mean"):
            raise ValueError(f"reduce must be 'max' or 'mean'; got {self.reduce!r}.")

    def check(self, progress: Progress) -> End | None:
        columns = self.columns if isinstance(self.columns, slice | int) else list(self.columns)
        chosen = progress.residual_norms[columns].reshape(-1)
        if self.reduce == "mean" and len(chosen) > 0:
            chosen = chosen.mean()
        return End.CONVERGED if bool((chosen <= self.tol).all()) else None


@dataclass(frozen=True)
class _Budget(StoppingRule):
    limit: float

    def __post_init__(self):
        name = type(self).__name__
        if not (isinstance(self.limit, Real) and self.limit >= 0):
            raise ValueError(
                f"{name} needs a limit, a number of at least 0, for example {name}(50); got "
                f"{self.limit!r}."
            )


class MaxEpochs(_Budget):
    """A budget of ``limit`` epochs; the step in which it runs out is finished."""

    def check(self, progress: Progress) -> End | None:
        # Sums of b / n epochs may fall short of the limit by their rounding.
        return End.MAX_EPOCHS if progress.epochs >= self.limit * (1 - 1e-12) else None


class MaxIterations(_Budget):
    """A budget of ``limit`` steps."""

    def check(self, progress: Progress) -> End | None:
        return End.MAX_ITER if progress.iteration >= self.limit else None


class MaxSeconds(_Budget):
    """A budget of ``limit`` seconds; a step that is as long as the last one must end in it."""

    def check(self, progress: Progress) -> End | None:
        spent = progress.seconds >= self.limit
        late = progress.seconds + progress.step_seconds > self.limit
        return End.MAX_SECONDS if spent or late else None


@dataclass(frozen=True)
class AnyOf(StoppingRule):
    """Stop when either rule does; success takes precedence over a spent budget."""

    left: StoppingRule
    right: StoppingRule

    def check(self, progress: Progress) -> End | None:
        return _prefer_success(self.left.check(progress), self.right.check(progress))


@dataclass(frozen=True)
class AllOf(StoppingRule):
    """Stop when both rules do, with success if either of them means success."""

    left: StoppingRule
    right: StoppingRule

    def check(self, progress: Progress) -> End | None:
        left, right = self.left.check(progress), self.right.check(progress)
        return None if left is None or right is None else _prefer_success(left, right)


def _prefer_success(left: End | None, right: End | None) -> End | None:
    if End.CONVERGED in (left, right):
        return End.CONVERGED
    return right if left is None else left
