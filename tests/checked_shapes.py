"""Checks the shapes and types that signatures state, in the first calls of each function.

The import hook of jaxtyping has every function of the package check every call, which doubles
the cost of a fit on few rows, or more. A wrong shape mostly shows in the first call: `make test`
checks one call of each function in each process. With a number of calls, each test begins to count
anew, so that what is checked depends on the test alone and not on those before it; so does
`make test-all`. The night checks every call.
"""

import functools
import os
import threading
from collections import Counter
from types import FunctionType

import jaxtyping

# Calls of each function that are checked in each test, "all", or "once": one in each process.
_SETTING = os.environ.get("CHECKED_CALLS", "once")
EACH_TEST = _SETTING != "once"
CHECKED_CALLS = {"all": float("inf"), "once": 1}.get(_SETTING) or int(_SETTING)

# The decorator of jaxtyping's hook as it is.
in_every_call = jaxtyping.jaxtyped

_counts: Counter[str] = Counter()
_checks: dict = {}
# In a forked process no checks are made anew, which would take each rank a second. What only ranks
# compute is compared with one process.
_forked: list = []
os.register_at_fork(after_in_child=lambda: _forked.append(True))


class _Called(threading.local):
    """The functions of a thread whose calls are being checked, the innermost last."""

    def __init__(self):
        self.functions = []


_called = _Called()


def begin_test() -> None:
    """Counts the calls from here on, unless one in the process is enough."""
    if EACH_TEST:
        count_anew()


def count_anew() -> None:
    """As if no function had been called."""
    _counts.clear()


def checks_of(function, typechecker):
    """A function with the signature of `function`: it checks a call and makes the innermost one.

    Checks cost milliseconds to make. A function inside another one is a new one in each call of
    that one, and all that come from the same lines share their checks.
    """
    known = function.__code__, typechecker
    if known not in _checks:
        called = _called

        def innermost(*args, **kwargs):
            return called.functions[-1](*args, **kwargs)

        home, closure = function.__globals__, innermost.__closure__
        stands_for = functools.wraps(function)(
            FunctionType(innermost.__code__, home, closure=closure)
        )
        _checks[known] = in_every_call(stands_for, typechecker=typechecker)
    return _checks[known]


def in_first_calls(target=None, *, typechecker):
    """The same for functions that stop checking after some calls."""
    if target is None:
        return functools.partial(in_first_calls, typechecker=typechecker)
    if not isinstance(target, FunctionType):  # a class
        return in_every_call(target, typechecker=typechecker)
    name = f"{target.__module__}.{target.__qualname__}"
    # One that is inside another function is decorated in each call of that one.
    if _counts[name] >= CHECKED_CALLS:
        return target
    counts, enough, called, checks = _counts, CHECKED_CALLS, _called, checks_of
    forked, made = _forked, _checks

    def call(*args, **kwargs):
        unchecked = forked and (target.__code__, typechecker) not in made
        if unchecked or counts[name] >= enough:
            return target(*args, **kwargs)
        counts[name] += 1
        checked = checks(target, typechecker)
        called.functions.append(target)
        try:
            return checked(*args, **kwargs)
        finally:
            called.functions.pop()

    # In the frame of the function's own module: the package attributes its warnings to the first
    # frame of another one.
    home = {"__name__": target.__module__}
    inside = FunctionType(call.__code__, home, closure=call.__closure__)
    return functools.wraps(target)(inside)


def install(package: str) -> None:
    """Before the package is imported for the first time."""
    if CHECKED_CALLS < float("inf"):
        jaxtyping.jaxtyped = in_first_calls
    # With the numeric tower an int passes for a float.
    jaxtyping.install_import_hook(
        package, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )
