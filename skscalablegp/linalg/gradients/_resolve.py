"""The names of the gradient estimators, and the checks of their settings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..._named import named
from ..._validation import check_integer, check_number
from ._base import GradientEstimator
from ._iterative import PathwiseGradient, StandardGradient
from ._marginal_likelihood import ExactGradient

GRADIENTS: dict[str, type[GradientEstimator]] = {
    "exact": ExactGradient,
    "standard": StandardGradient,
    "pathwise": PathwiseGradient,
}


def _check_truncation(name: str, value: Any) -> None:
    if not (isinstance(value, str) or callable(getattr(value, "on", None))):
        raise ValueError(
            f"{name} must be a name such as 'exponential', or an object such as "
            f"ExponentialTruncation(); got {value!r}."
        )


def _check_prior(name: str, value: Any) -> None:
    if value not in ("fourier", "exact"):
        raise ValueError(f"{name} must be 'fourier' or 'exact'; got {value!r}.")


# The checks of settings, by name.
_RULES: dict[str, Callable[[str, Any], Any]] = {
    "n_probes": partial(check_integer, least=0),
    "n_draws": check_integer,
    "n_pairs": check_integer,
    "solver_tol": check_number,
    "solver_max_epochs": check_number,
    "refresh": check_number,
    "truncation": _check_truncation,
    "prior": _check_prior,
}


def resolve_gradient(gradient: Any, **settings: Any) -> GradientEstimator:
    """Return the estimator that a name stands for; objects are returned unchanged.

    Parameters
    ----------
    gradient : str or GradientEstimator
    **settings
        Parameters for an estimator that is given by name, such as ``n_probes=32``.

    Raises
    ------
    ValueError
        For an unknown name, in which case the message lists the known ones, and for settings with
        wrong values.
    """
    others = "an object such as PathwiseGradient(n_probes=32), or, in an estimator, 'auto'"
    made = named("gradient", gradient, GRADIENTS, others, **settings)
    for name, value in vars(made).items():
        if name in _RULES:
            _RULES[name](name, value)
    return made
