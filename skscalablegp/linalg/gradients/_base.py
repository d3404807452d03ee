"""The interface of a gradient estimator and what it returns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Any

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
        (An estimate of) the gradient of the log marginal likelihood, float64.
    value : float or None
        The log marginal likelihood where the method knows it.
    solution : Solution or None
        What the linear solver said; None for direct methods.
    jitter : float
        What had to be added to the diagonal of H.
    """

    grad: Float[Tensor, " p"]
    value: float | None
    solution: Solution | None = None
    jitter: float = 0.0


@dataclass(frozen=True)
class GradientState:
    """What an estimator carries from step to step.

    Attributes
    ----------
    generator : torch.Generator
        Where probes, truncation points and random pivots are drawn from; seed 0 if not given.
    probes : Any
        Frozen randomness; None before the first step.
    samples : PathwiseProbes or None
        The same, where the probes are prior samples that predictions may go on from.
    previous : Tensor of shape (n, t + s) or None
        The last solutions, from which the next solve starts when warm starting.
    targets : Tensor of shape (n, t + s) or None
        The last right-hand sides.
    preconditioner : tuple or None
        A built preconditioner and the hyperparameters that it was built at.
    extra : dict
        What else an estimator keeps.
    seconds_left : float or None
        Time that the next step's solve may take; None without a budget.
    """

    generator: Generator = field(default_factory=lambda: Generator().manual_seed(0))
    probes: Any = None
    samples: Any = None
    previous: Tensor | None = None
    targets: Tensor | None = None
    preconditioner: tuple[Any, Tensor] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    seconds_left: float | None = None


class GradientEstimator(BaseEstimator, ABC):
    """Configuration of a way to estimate the gradient of the log marginal likelihood.

    Objects are immutable in use; everything that changes is in the state.

    Attributes
    ----------
    exact : bool
        Whether values and gradients are exact.
    """

    exact = False

    @abstractmethod
    def estimate(
        self,
        problem: GPProblem,
        theta: Float[Tensor, " p"],
        state: GradientState,
    ) -> tuple[GradientEstimate, GradientState]:
        """The gradient at theta and the state for the next step."""

    def on_subset(self) -> GradientEstimator | None:
        """What trains exactly on a few of the rows; None is `ExactGradient` with its defaults."""
        return None
