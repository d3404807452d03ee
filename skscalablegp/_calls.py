"""How public methods of estimators run: in this process alone, or together with other processes.

``skscalablegp.workers`` replaces the way; estimators only mark the methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import signature
from typing import Any, NamedTuple, TypeVar, cast

F = TypeVar("F", bound=Callable)

# Why some methods take no weights of rows, and what to do instead.
_WITHOUT_WEIGHTS = {
    "fit": "divides the rows into folds, which may separate the equal rows that a weight stands "
    "for: repeat the rows with np.repeat(X, sample_weight, axis=0), or use an estimator whose fit "
    "takes weights, such as IterativeGPRegressor or SVGPClassifier",
    "partial_fit": "keeps a uniform sample of all rows so far: call fit with all rows, or repeat "
    "the rows with np.repeat(X, sample_weight, axis=0)",
}

# Calls a method with its estimator and arguments; None calls it directly.
Way = Callable[[Callable, Any, tuple, dict[str, Any]], Any]

_WAY: ContextVar[Way | None] = ContextVar("way of calls", default=None)


@contextmanager
def called(way: Way | None) -> Iterator[None]:
    """Marked methods run in this way inside the context."""
    token = _WAY.set(way)
    try:
        yield
    finally:
        _WAY.reset(token)


class Call(NamedTuple):
    """A call of a public method."""

    method: Callable
    estimator: Any
    args: tuple
    kwargs: dict[str, Any]


_PRESENT: ContextVar[Call | None] = ContextVar("present call", default=None)


def present_call() -> Call | None:
    """The innermost call of a `remembered` method under way."""
    return _PRESENT.get()


def remembered(method: F) -> F:
    """Mark a method whose arguments are looked up while it runs."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        token = _PRESENT.set(Call(method, self, args, kwargs))
        try:
            return method(self, *args, **kwargs)
        finally:
            _PRESENT.reset(token)

    return cast(F, call)


def refusing_weights(method: F) -> F:
    """A fit that says what to do if it is given weights and has no argument for them.

    Its signature has no `sample_weight`, by which scikit-learn recognises fits that take weights.
    """
    if "sample_weight" in signature(method).parameters:
        return method

    @wraps(method)
    def call(self: Any, *args: Any, sample_weight: Any = None, **kwargs: Any) -> Any:
        if sample_weight is None:
            return method(self, *args, **kwargs)
        raise TypeError(
            f"{type(self).__name__}.{method.__name__} takes no sample_weight, because it "
            f"{_WITHOUT_WEIGHTS[method.__name__]}."
        )

    return cast(F, call)


def shareable(method: F) -> F:
    """Mark a method of an estimator, which may run together with other processes."""

    @wraps(method)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        way = _WAY.get()
        if way is None:
            return method(self, *args, **kwargs)
        return way(method, self, args, kwargs)

    return cast(F, call)
