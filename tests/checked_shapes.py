"""Checks the shapes and types that signatures state, in the first calls of each function.

The import hook of jaxtyping has every function of the package check every call, which doubles
the cost of a fit on few rows, or more. A wrong shape mostly shows in the first call: one call of
each function is checked in each process, which saves a tenth of the slow tests, too. With a number
of calls, each test begins to count anew, so that what is checked depends on the test alone and not
on those before it. The night checks every call.
"""

import dataclasses
import functools
import os
import sys
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
# What a function without further checks calls, and the one that checks in its place.
_let_go: list = []
# Methods that are as written again from the next test on: what holds one may be about to pickle it.
_as_written: list = []
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
    while _as_written:
        owner, target, stand_in = _as_written.pop()
        if vars(owner).get(target.__name__) is stand_in:
            setattr(owner, target.__name__, target)
    if EACH_TEST:
        count_anew()


def count_anew() -> None:
    """As if no function had been called; methods that were let go stay so."""
    _counts.clear()
    while _let_go:
        called, checking = _let_go.pop()
        called[0] = checking


def key_of(function, typechecker):
    """What has checks of its own: classes with the same fields have equal code in __init__."""
    return function.__code__, function.__module__, function.__qualname__, typechecker


def checks_of(function, typechecker):
    """A function with the signature of `function`: it checks a call and makes the innermost one.

    Checks cost milliseconds to make. A function inside another one is a new one in each call of
    that one, and all that come from the same lines share their checks.
    """
    known = key_of(function, typechecker)
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


def let_go(target, stand_in, called) -> None:
    """Makes what is not checked any more cheap: methods are as written again in the next test.

    Other names of a function, such as those of modules that import it, keep a stand-in that calls
    it and does no more.
    """
    if "<locals>" not in target.__qualname__:  # which is decorated anew as it is
        _let_go.append((called, called[0]))
    called[0] = target
    owner = sys.modules.get(target.__module__)
    *outer, name = target.__qualname__.split(".")
    for part in outer:
        owner = getattr(owner, part, None)
    if isinstance(owner, type) and vars(owner).get(name) is stand_in:
        _as_written.append((owner, target, stand_in))


def in_first_calls(target=None, *, typechecker):
    """The same for functions that stop checking after some calls."""
    if target is None:
        return functools.partial(in_first_calls, typechecker=typechecker)
    if isinstance(target, type):
        written = vars(target).get("__init__") if dataclasses.is_dataclass(target) else None
        if written is not None and not hasattr(written, "__wrapped__"):
            target.__init__ = in_first_calls(written, typechecker=typechecker)
        return target
    if not target.__annotations__:
        return target
    name = f"{target.__module__}.{target.__qualname__}"
    # One that is inside another function is decorated in each call of that one.
    if _counts[name] >= CHECKED_CALLS:
        return target
    counts, enough, innermost, checks, key = _counts, CHECKED_CALLS, _called, checks_of, key_of
    forked, made, once, ends = _forked, _checks, not EACH_TEST, let_go

    def checking(*args, **kwargs):
        unchecked = forked and key(target, typechecker) not in made
        if unchecked or counts[name] >= enough:
            if unchecked or once:
                ends(target, stand_in, called)
            return target(*args, **kwargs)
        counts[name] += 1
        checked = checks(target, typechecker)
        innermost.functions.append(target)
        try:
            return checked(*args, **kwargs)
        finally:
            innermost.functions.pop()

    def call(*args, **kwargs):
        return called[0](*args, **kwargs)

    # In frames of the function's own module: the package attributes its warnings to the first
    # frame of another one.
    home = {"__name__": target.__module__}
    called = [FunctionType(checking.__code__, home, closure=checking.__closure__)]
    inside = FunctionType(call.__code__, home, closure=call.__closure__)
    stand_in = functools.wraps(target)(inside)
    return stand_in


def install(package: str) -> None:
    """Before the package is imported for the first time."""
    if CHECKED_CALLS < float("inf"):
        jaxtyping.jaxtyped = in_first_calls
    # With the numeric tower an int passes for a float.
    jaxtyping.install_import_hook(
        package, "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )
