"""Warnings that point to the user's code."""

from __future__ import annotations

import sys
import warnings

from sklearn.exceptions import ConvergenceWarning

# A warning is attributed to the innermost line of code outside these packages.
_INNER = ("skscalablegp", "sklearn", "joblib", "jaxtyping")


def warn_once(message: str, category: type[Warning] = ConvergenceWarning) -> None:
    """Warn, and attribute the warning to the line of the user's code that led to it."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in _INNER:
        frame = frame.f_back
    warnings.warn_explicit(
        message,
        category,
        frame.f_code.co_filename,
        frame.f_lineno,
        module=frame.f_globals.get("__name__", "unknown"),
        registry=frame.f_globals.setdefault("__warningregistry__", {}),
    )
