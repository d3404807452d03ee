"""The table of optimiser names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._named import named
from ._natural import NaturalGradient
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer
from ._quasi_newton import QuasiNewton

# One row for each: the name, and how to make it with a learning rate if it has one.
OPTIMIZERS: dict[str, Callable[[float], Optimizer]] = {
    "adam": Adam,
    "lbfgs": lambda rate: LBFGS(),
    "fmin_l_bfgs_b": lambda rate: LBFGS(),
    "bfgs": lambda rate: QuasiNewton(),
    "natural": lambda rate: NaturalGradient(),
}


def resolve_optimizer(
    optimizer: Any,
    learning_rate: float = 0.1,
    more: tuple[str, ...] = (),
    *,
    informed: bool = False,
) -> Optimizer:
    """A string, an optimiser object or scikit-learn's callable as an Optimizer.

    Parameters
    ----------
    optimizer : str, object or callable
    learning_rate : float, default=0.1
        Of optimisers that have one.
    more : tuple of str
        Names that the caller resolves by itself, for the message.
    informed : bool, default=False
        Whether the problem can tell the Fisher information of random rows.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones. For an optimiser that needs the
        Fisher information where there is none.
    """
    others = "None, a callable with scikit-learn's signature, or an optimizer object"
    made = named("optimizer", optimizer, OPTIMIZERS, others, learning_rate, more=more)
    if callable(made):
        return CallableOptimizer(made)
    if made.redraws and not informed:
        raise ValueError(
            f"optimizer={optimizer!r} needs random rows of a kernel matrix, as "
            "IterativeGPRegressor and RRCGRegressor have them: use another optimizer."
        )
    return made
