"""What the ranks compare before a shared call: parameters, data, columns and versions."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from typing import Any

import joblib
import numpy as np
import torch

from .._calls import Call
from ._life import RankError

# Packages whose versions decide results.
_PACKAGES = ("skscalablegp", "torch", "numpy", "scipy", "scikit-learn")
# Parameters in which ranks may differ: they concern rank 0 alone, or the machine.
_OWN = {"callbacks", "verbose", "device", "memory_budget", "n_jobs", "checkpoint"}
# Larger fitted attributes are those of the table, whose training they follow from.
_SMALL = 2**20
# Characters of a value, and differences, in messages.
_SHOWN, _LISTED = 40, 4


def versions() -> dict[str, str]:
    """Return the versions of packages and Python that decide results, as parts of a fingerprint."""
    found = {name: version(name) for name in _PACKAGES} | {"Python": platform.python_version()}
    return {f"version of {name}": value for name, value in found.items()}


def fingerprint(call: Call, own: bool = False) -> str:
    """What a call is about, as JSON: a short text for each part of it.

    With `own`, each rank has other rows, of which only the names of columns and the number of
    dimensions are compared.
    """
    found = call_parts(call, _OWN, own) | versions() | fitted_parts(call.estimator)
    return json.dumps(found)


def call_parts(call: Call, left_out: set[str], own: bool = False) -> dict[str, str]:
    """The method, the parameters but some, and the arguments, as parts of a fingerprint."""
    method, estimator, args, kwargs = call
    found = {"call": _described(f"{type(estimator).__name__}.{method.__name__}")}
    for name, value in estimator.get_params(deep=True).items():
        if not left_out & set(name.split("__")):
            found[f"parameter {name}"] = _described(value)
    bound = inspect.signature(method).bind(estimator, *args, **kwargs)
    for name, value in list(bound.arguments.items())[1:]:
        d = np.ndim(value) if own else 0
        found[name] = _described(f"{d}-dimensional" if d else value)
        columns = getattr(value, "columns", None)
        if columns is not None:
            found[f"columns of {name}"] = _described(np.asarray([str(c) for c in columns]))
    return found


def fitted_parts(estimator: Any) -> dict[str, str]:
    """The fitted attributes but those of the table, as parts of a fingerprint."""
    return {
        f"fitted attribute {name}": _described(value)
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and not name.startswith("_")
        if isinstance(value, np.ndarray | int | float | str)
        if getattr(value, "nbytes", 0) < _SMALL
    }


def differing(found: Mapping[str, Mapping[str, str]]) -> str:
    """Say how the parts at the first place differ from those at others; empty if they do not."""
    (here, first), *others = found.items()
    said = [
        f"{name} is {first.get(name, 'absent')} {here} and {other.get(name, 'absent')} {there}"
        for there, other in others
        for name in {**first, **other}
        if first.get(name) != other.get(name)
    ]
    more = f", and {len(said) - _LISTED} more" if len(said) > _LISTED else ""
    return "; ".join(said[:_LISTED]) + more


def check_same(found: list[str]) -> None:
    """Raise an error that names what differs between rank 0 and another one, and which rank."""
    if said := differing({f"at rank {k}": json.loads(text) for k, text in enumerate(found)}):
        raise RankError(
            f"the ranks do not make the same call: {said}. Inside distribute() every rank needs "
            "the same data, parameters and versions."
        )


def _described(value: Any) -> str:
    """A value in a few characters, with a hash where they are not all of it."""
    if isinstance(value, np.random.RandomState):
        return f"a RandomState with hash {_hash(value)}"
    if isinstance(value, torch.nn.Module):
        weights = [tensor.cpu().numpy() for tensor in value.state_dict().values()]
        return f"a network with hash {_hash([repr(value), *weights])}"
    if hasattr(value, "shape") or isinstance(value, list | tuple):
        # Lists of several lengths are no arrays.
        with suppress(ValueError):
            array = np.asarray(value)
            if hasattr(value, "shape") or array.dtype != object:
                # The hash of an array has its strides in it, which ranks need not share.
                digest = _hash([array.shape, array.ravel()])
                shape = " x ".join(map(str, array.shape))
                return f"an array of {shape} {array.dtype} with hash {digest}"
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... with hash {_hash(text)}"


def _hash(value: Any) -> str:
    """48 bits."""
    return str(joblib.hash(value)[:12])
