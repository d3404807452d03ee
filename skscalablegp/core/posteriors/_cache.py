"""Posteriors of fitted estimators: torch tensors, which must not be in __dict__ nor pickled."""

from __future__ import annotations

import weakref
from typing import Any

from ._base import Posterior

_POSTERIORS: weakref.WeakKeyDictionary[Any, Posterior] = weakref.WeakKeyDictionary()


def remember(estimator: Any, posterior: Posterior) -> None:
    """Keep a posterior for as long as its estimator lives."""
    _POSTERIORS[estimator] = posterior


def remembered(estimator: Any) -> Posterior | None:
    """The posterior that was kept, if there is one."""
    return _POSTERIORS.get(estimator)


def forget(estimator: Any) -> Posterior | None:
    """Give up a posterior; returns it."""
    return _POSTERIORS.pop(estimator, None)
