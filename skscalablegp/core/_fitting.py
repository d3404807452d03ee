"""What every fit of the package begins and ends with."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.utils import check_random_state

from .._compat import HasMethods, Interval, StrOptions
from .training import STOPPED, Monitor

_POSITIVE = Interval(Real, 0, None, closed="neither")
_COUNT = Interval(Integral, 1, None, closed="left")

# What scikit-learn may check of a parameter that several estimators have, by its name.
PARAMETERS: dict[str, list[Any]] = {
    "kernel": [None, HasMethods(["get_params", "clone_with_theta"])],
    "alpha": [Interval(Real, 0, None, closed="left"), "array-like"],
    "optimizer": [str, callable, HasMethods(["maximize"]), None],
    "n_restarts_optimizer": [Interval(Integral, 0, None, closed="left")],
    "normalize_y": ["boolean"],
    "copy_X_train": ["boolean"],
    "n_targets": [_COUNT, None],
    "random_state": ["random_state"],
    "preconditioner": [str, None, HasMethods(["build"]), HasMethods(["solve"])],
    "n_probes": [_COUNT, StrOptions({"auto"})],
    "tol": [_POSITIVE],
    "max_epochs": [_POSITIVE],
    "learning_rate": [_POSITIVE, StrOptions({"auto"})],
    "max_iter": [_COUNT, StrOptions({"auto"})],
    "n_iter_no_change": [Interval(Integral, 2, None, closed="left"), None],
    "subset_size": [_COUNT, StrOptions({"auto"}), None],
    "posterior": [StrOptions({"auto", "exact", "pathwise", "solve"})],
    "batch_size": [_COUNT, StrOptions({"auto"})],
    "memory_budget": [_POSITIVE, StrOptions({"auto"})],
    "device": [str],
    "dtype": [StrOptions({"auto", "float32", "float64"})],
    "callbacks": ["array-like", callable, None],
    "max_seconds": [_POSITIVE, None],
    "verbose": ["verbose"],
}


def shared_parameters(*names: str) -> dict[str, list[Any]]:
    """The constraints of some of the shared parameters."""
    return {name: PARAMETERS[name] for name in names}


def make_monitor(estimator: Any) -> Monitor:
    """The monitor that an estimator's `callbacks`, `max_seconds` and `verbose` ask for.

    Raises
    ------
    TypeError
        If a callback cannot be called.
    """
    callbacks = estimator.callbacks if estimator.callbacks is not None else []
    callbacks = [callbacks] if callable(callbacks) else list(callbacks)
    for callback in callbacks:
        if not callable(callback):
            raise TypeError(f"callbacks must be callable, got {callback!r}.")
    return Monitor(callbacks, estimator.max_seconds, int(estimator.verbose))


def seeded(random_state: Any) -> tuple[np.random.RandomState, torch.Generator]:
    """Both kinds of generator from one `random_state`."""
    random_state = check_random_state(random_state)
    return random_state, torch.Generator().manual_seed(int(random_state.randint(2**31 - 1)))


def stop_after(reason: str) -> str | None:
    """The end of a stage if no other stage may follow it, else None."""
    return reason if reason in STOPPED else None


def unfinished(reason: str, estimator: Any, steps: str, breakdown: bool = False) -> list[str]:
    """What to tell users about a training that did not end by itself; empty if it did.

    Parameters
    ----------
    reason : str
        Why training stopped.
    estimator : estimator
        For its settings.
    steps : str
        How far it came, such as "12 gradient evaluations".
    breakdown : bool, default=False
        Whether a linear solve broke down, which smaller steps do not mend.
    """
    text = {
        "max_seconds": f"The time budget max_seconds={estimator.max_seconds} ended training",
        "interrupted": "Training was interrupted",
        "diverged": "Training stopped at a linear solve that broke down"
        if breakdown
        else "Training stopped on values that are not finite",
    }.get(reason)
    if text is None:
        return []
    rate = getattr(estimator, "learning_rate", "auto")
    if reason == "diverged" and rate != "auto" and not breakdown:
        text += f" (try a learning_rate below {rate!r})"
    return [f"{text} after {steps}; what it had reached is kept."]
