"""Errors as users see them: they name the estimator, and say what to do about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from types import TracebackType
from typing import Any, TypeVar, cast

import numpy as np
import torch

from .._calls import shareable
from ._warn import warn_once
from .posteriors import unfinished_solves

F = TypeVar("F", bound=Callable)

# Parameters of which a smaller value needs less memory.
_SIZES = ("n_inducing", "n_components", "min_components", "grid_size", "expert_size", "batch_size")


def with_name(estimator: Any, message: str) -> str:
    """The message, preceded by the estimator's name unless it has the name already."""
    name = type(estimator).__name__
    return message if name in message else f"{name}: {message}"


def more_noise(estimator: Any) -> str:
    """How to add noise to the diagonal of this estimator's covariance matrix."""
    params = estimator.get_params(deep=False)
    raised = [f"raise {name}" for name in ("alpha", "min_noise") if name in params]
    if raised:
        return " or ".join(raised)
    below = "raise the noise of the estimator inside"
    return "add a WhiteKernel to the kernel" if "kernel" in params else below


def ours(error: BaseException, estimator: Any) -> BaseException | None:
    """The error to raise in place of `error`; None if `error` can be raised as it is.

    Failed factorisations and allocations are translated. An error that this package raised keeps
    its type and gets the estimator's name in front of its message. All other errors pass unchanged:
    they come from users' code, such as callbacks, or from scikit-learn's validation.
    """
    params = estimator.get_params(deep=False)
    if isinstance(error, (torch.linalg.LinAlgError, np.linalg.LinAlgError)):
        remedy = more_noise(estimator)
        if "kernel" in params:
            remedy += ", or give a kernel that is positive definite"
        found = str(error).removesuffix(" Increase the noise.")
        if not found.startswith("No Cholesky factor"):
            found = "A matrix of covariances is not numerically positive definite."
        return ValueError(with_name(estimator, f"{found} {remedy[0].upper()}{remedy[1:]}."))
    if isinstance(error, FloatingPointError):
        return ValueError(with_name(estimator, str(error)))
    if is_allocation(error):
        remedy = ", ".join(
            ["fewer rows at a time", *(f"a smaller {k}" for k in _SIZES if k in params)]
        )
        return MemoryError(
            f"{type(estimator).__name__}: an allocation failed although memory_budget="
            f"{estimator.memory_budget!r} allowed it. Set memory_budget, in bytes, to less than "
            f"this process may take, or use {remedy}."
        )
    kinds = ValueError, TypeError, RuntimeError, MemoryError
    has_message = len(error.args) == 1 and isinstance(error.args[0], str)
    if isinstance(error, kinds) and has_message and _raised_here(error.__traceback__):
        error.args = (with_name(estimator, error.args[0]),)
    return None


def _raised_here(trace: TracebackType | None) -> bool:
    """Whether the innermost frame is a line of this package."""
    module = ""
    while trace is not None:
        module, trace = trace.tb_frame.f_globals.get("__name__", ""), trace.tb_next
    return module.startswith("skscalablegp.")


def is_allocation(error: BaseException) -> bool:
    """Whether an error says that a device or the process has no more memory."""
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    if isinstance(error, MemoryError):
        return "memory" not in text or "Unable to allocate" in text
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "bad_alloc" in text
    )


@contextmanager
def translated(estimator: Any) -> Iterator[None]:
    """Translate the errors of a block by `ours`."""
    try:
        yield
    except Exception as error:
        made = ours(error, estimator)
        if made is None:
            raise
        raise made from error


def answers(method: F) -> F:
    """Decorate a prediction: errors are translated, and unfinished solves give one warning."""

    @wraps(method)
    def answered(self: Any, *args: Any, **kwargs: Any) -> Any:
        with translated(self), unfinished_solves() as failed:
            answer = method(self, *args, **kwargs)
        if failed:
            warn_once(
                with_name(
                    self,
                    f"{len(failed)} linear solves for these variances did not reach their "
                    f"tolerance; the last ended at a relative residual of "
                    f"{failed[-1].residual:.1e}. The standard deviations may be too large. "
                    f"{failed[-1].remedy}",
                )
            )
        return answer

    return cast(F, shareable(answered))
