"""The table of optimiser names."""

from __future__ import annotations

from typing import Any

from ._optimizers import LBFGS, Adam, CallableOptimizer, Optimizer
from ._quasi_newton import QuasiNewton

OPTIMIZERS = {"adam": Adam, "lbfgs": LBFGS, "fmin_l_bfgs_b": LBFGS, "bfgs": QuasiNewton}


def resolve_optimizer(
    optimizer: Any, learning_rate: float | None = None, more: tuple[str, ...] = ()
) -> Optimizer:
    """A string, an optimiser object or scikit-learn's callable as an Optimizer.

    Parameters
    ----------
    optimizer : str, object or callable
    learning_rate : float, optional
        Of optimisers that have one.
    more : tuple of str
        Names that the caller resolves by itself, for the message.

    Raises
    ------
    ValueError
        For an unknown name; the message lists the known ones.
    """
    if isinstance(optimizer, str):
        if optimizer not in OPTIMIZERS:
            names = [*more, *sorted(OPTIMIZERS)]
            raise ValueError(
                f"Unknown optimizer {optimizer!r}: use one of {names}, None, a "
                "callable with scikit-learn's signature, or an optimizer object."
            )
        made = OPTIMIZERS[optimizer]()
        if learning_rate is not None and hasattr(made, "learning_rate"):
            made.learning_rate = learning_rate
        return made
    if hasattr(optimizer, "maximize"):
        return optimizer
    return CallableOptimizer(optimizer)
