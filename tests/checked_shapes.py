"""Checks the shapes and types that signatures state, in the first calls of each function.

The import hook of jaxtyping has every function of the package check every call, which doubles
the cost of a fit on few rows, or more. A wrong shape shows in the first calls, so the later
ones of a test go unchecked; each test begins to count anew, so that what is checked depends on the
test alone and not on those before it.
"""

import functools
import os
from collections import Counter
from types import FunctionType

import jaxtyping

# Calls of each function that are checked in each test; `make test-all` sets more, or "all".
_SETTING = os.environ.get("CHECKED_CALLS", "3")
CHECKED_CALLS = float("inf") if _SETTING == "all" else int(_SETTING)

# The decorator of jaxtyping's hook as it is.
in_every_call = jaxtyping.jaxtyped

_counts: Counter[str] = Counter()


def begin_test() -> None:
    """Counts the calls from here on."""
    _counts.clear()


def in_first_calls(target=None, *, typechecker):
    """The same for functions that stop checking after some calls."""
    if target is None:
        return functools.partial(in_first_calls, typechecker=typechecker)
    if not isinstance(target, FunctionType):  # a class
        return in_every_call(target, typechecker=typechecker)
    name = f"{target.__module__}.{target.__qualname__}"
    # A function inside another one is decorated in each call of that one, which is costly too.
    if _counts[name] >= CHECKED_CALLS:
        return target
    checked, counts, enough = in_every_call(target, typechecker=typechecker), _counts, CHECKED_CALLS

    def call(*args, **kwargs):
        if counts[name] >= enough:
            return target(*args, **kwargs)
        counts[name] += 1
        return checked(*args, **kwargs)

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
