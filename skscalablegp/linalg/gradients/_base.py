"""The interface of a gradient estimator, its result and its state."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jaxtyping import Float
from sklearn.base import BaseEstimator
from torch import Generator, Tensor

from ..solvers import Solution
from ._problem import GPProblem


@dataclass(frozen=True)
class GradientEstimate:
    """One evaluation of the training objective.

    Attributes
    ----------
    grad : Tensor of shape (p,)
        (An estimate of) the gradient of the log marginal likelihood, float64; NaN if time has ended
        the linear solve.
    value : float or None
        The log marginal likelihood; None if the method does not compute it.
    solution : Solution or None
        The result of the linear solver; None for direct methods.
    jitter : float
        The number that was added to the diagonal of H.
    """

    grad: Float[Tensor, " p"]
    value: float | None
    solution: Solution | None = None
    jitter: float = 0.0


class BuiltPreconditioner(NamedTuple):
    """A preconditioner, and what it was built from.

    Attributes
    ----------
    value : Preconditioner
    theta : Tensor of shape (p,)
        The hyperparameters.
    draws : Tensor
        The state of the generator.
    """

    value: Any
    theta: Float[Tensor, " p"]
    draws: Tensor


@dataclass(frozen=True)
class GradientState:
    """The state that an estimator passes from one step to the next.

    Attributes
    ----------
    generator : torch.Generator
        Draws probes, truncation points and random pivots; seed 0 by default.
    probes : Any
        Frozen random numbers; None before the first step.
    draws : Tensor or None
        The state of the generator before the probes were drawn.
    samples : PathwiseProbes or None
        The probes, if they are prior samples that predictions can use.
    previous : Tensor of shape (n, t + s) or None
        The last solutions, from which the next solve starts if warm starts are on.
    preconditioner : BuiltPreconditioner or None
    extra : dict
        Further items of a particular estimator.
    seconds_left : float or None
        Time limit of the next solve; None without a limit. A series that is truncated at random has
        no time limit, which would make it biased.
    """

    generator: Generator = field(default_factory=lambda: Generator().manual_seed(0))
    probes: Any = None
    draws: Tensor | None = None
    samples: Any = None
    previous: Tensor | None = None
    preconditioner: BuiltPreconditioner | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    seconds_left: float | None = None


class GradientEstimator(BaseEstimator, ABC):
    """Settings of a method that estimates the gradient of the log marginal likelihood.

    The settings do not change during training; everything that changes is part of the state.

    Attributes
    ----------
    exact : bool
        Whether values and gradients are exact.
    """

    exact = False

    @abstractmethod
    def estimate(
        self, problem: GPProblem, theta: Float[Tensor, " p"], state: GradientState
    ) -> tuple[GradientEstimate, GradientState]:
        """The estimate at theta, and the state for the next step."""

    def kept(self, state: GradientState) -> dict:
        """What a checkpoint keeps of a state, in addition to its generator."""
        return {}

    def resumed(self, problem: GPProblem, state: GradientState, kept: dict) -> GradientState:
        """The state of which `kept` was made, from a new one with the same generator."""
        return state

    def suited(self, problem: GPProblem, theta: Float[Tensor, " p"]) -> Float[Tensor, " p"]:
        """A start of training that suits this method, from one that suits an exact process.

        The latter has been chosen by exact likelihoods of a few rows. Work between blocks of rows
        ends if no time is left.
        """
        return theta

    def on_subset(self) -> GradientEstimator | None:
        """The estimator for training on a subset of rows; None means a default `ExactGradient`."""
        return None
