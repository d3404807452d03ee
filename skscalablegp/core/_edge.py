"""Failures of the libraries below, turned into errors of ours at the estimator's edge."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import numpy as np
import torch

F = TypeVar("F", bound=Callable)

# Parameters that make a diagonal larger, and those whose smaller values take less memory.
_NOISE = {"alpha": "raise alpha", "min_noise": "raise min_noise"}
_SIZES = ("n_inducing", "n_components", "min_components", "grid_size", "expert_size", "batch_size")


def ours(error: BaseException, estimator: Any) -> BaseException | None:
    """The error of ours that says the same and what to do; None where `error` may pass.

    Only failures of arithmetic and of allocations are translated: anything else is a mistake in
    somebody's code, and its own words say more.
    """
    name, params = type(estimator).__name__, estimator.get_params(deep=False)
    if isinstance(error, (torch.linalg.LinAlgError, np.linalg.LinAlgError)):
        remedies = [text for key, text in _NOISE.items() if key in params]
        if "kernel" in params:
            remedies.append(
                "give a kernel that is positive definite (ExpSineSquared is so for one column only)"
                if remedies
                else "add a WhiteKernel to the kernel, or give one that is positive definite "
                "(ExpSineSquared is so for one column only)"
            )
        remedy = ", or ".join(remedies) or "raise the noise of the estimator inside"
        found = str(error).removesuffix(" Increase the noise.")
        if not found.startswith("No Cholesky factor"):
            found = "A matrix of covariances is not numerically positive definite."
        return ValueError(f"{name}: {found} {remedy[0].upper()}{remedy[1:]}.")
    if isinstance(error, FloatingPointError):
        return ValueError(f"{name}: {error}")
    if _is_allocation(error):
        sizes = [f"a smaller {key}" for key in _SIZES if key in params]
        remedy = ", ".join(["fewer rows at a time", *sizes])
        return MemoryError(
            f"{name}: an allocation failed that memory_budget={estimator.memory_budget!r} allowed. "
            f"Set memory_budget, in bytes, below what this process may take, or use {remedy}."
        )
    return None


def _is_allocation(error: BaseException) -> bool:
    if isinstance(error, torch.OutOfMemoryError):
        return True
    text = str(error)
    if isinstance(error, MemoryError):
        return "memory" not in text or "Unable to allocate" in text
    return isinstance(error, RuntimeError) and (
        "can't allocate memory" in text or "bad_alloc" in text
    )


def answers(method: F) -> F:
    """A method whose failures below become errors of ours."""

    @wraps(method)
    def answered(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return method(self, *args, **kwargs)
        except Exception as error:
            made = ours(error, self)
            if made is None:
                raise
            raise made from error

    return answered
