"""The table of optimiser names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..._named import named
from ._natural import NaturalGradient
from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer
from ._quasi_newton import QuasiNewton

# Functions that make an optimiser from its name, given the learning rate.
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
        Learning rate of optimisers that have one.
    more : tuple of str
        Further names for the message, which the caller resolves.
    informed : bool, default=False
        Whether the problem has the Fisher information of random rows.

    Raises
    ------
    ValueError
        For an unknown name, with a message that lists the known ones, and for an optimiser that
        needs the Fisher information if there is none.
    """
    others = "None, a callable with scikit-learn's signature, or an optimizer object"
    made = named("optimizer", optimizer, OPTIMIZERS, others, learning_rate, more=more)
    if callable(made):
        return CallableOptimizer(made)
    if made.redraws and not informed:
        raise ValueError(
            f"optimizer={optimizer!r} needs random rows of a kernel matrix, which only "
            "IterativeGPRegressor and RRCGRegressor have: use another optimizer."
        )
    return made


def check_noisy_optimizer(
    optimizer: Any, model: str, names: tuple[str, ...], *, informed: bool = False
) -> None:
    """Refuse optimisers that need exact values and gradients, before any work is done.

    Parameters
    ----------
    optimizer : str, object, callable or None
    model : str
        Name of the estimator, whose gradients are noisy.
    names : tuple of str
        Names of the optimisers that it takes, the default apart.
    informed : bool, default=False
        See `resolve_optimizer`.

    Raises
    ------
    ValueError
        As for `resolve_optimizer`, and for optimisers that need exact values.
    """
    named = isinstance(optimizer, str)
    if optimizer is None or (named and optimizer in ("auto", *names)):
        return
    made = resolve_optimizer(optimizer, more=("auto",), informed=informed)
    if named or made.exact_only:
        listed = ", ".join(f"optimizer={name!r}" for name in names)
        kind = "an object of this class" if len(names) == 1 else "an object of these classes"
        raise ValueError(
            f"optimizer={optimizer!r} needs exact values and gradients, but those of {model} are "
            f"noisy: use {listed}, {kind}, or None."
        )
