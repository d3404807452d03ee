"""What the ranks compare before a shared call: parameters, data, columns and versions."""

from __future__ import annotations

import inspect
import json
import platform
import re
from collections.abc import Callable, Iterator
from hashlib import blake2b
from importlib.metadata import version
from typing import Any

import numpy as np
import torch

from ._life import RankError

# Packages whose versions decide results.
_PACKAGES = ("skscalablegp", "torch", "numpy", "scipy", "scikit-learn")
# Parameters in which ranks may differ: they concern rank 0 alone, or the machine.
_OWN = {"callbacks", "verbose", "device", "memory_budget", "n_jobs", "checkpoint"}
# Larger fitted attributes are those of the table, whose training they follow from.
_SMALL = 2**20
# Characters of a value in messages.
_SHOWN = 40


def versions() -> dict[str, str]:
    """The versions that decide results, of packages and of Python."""
    return {name: version(name) for name in _PACKAGES} | {"Python": platform.python_version()}


def fingerprint(
    method: Callable, estimator: Any, args: tuple, kwargs: dict[str, Any], own: bool = False
) -> str:
    """What a call is about, as JSON: a hash and a short text for each part of it.

    With `own`, each rank has other rows, of which only the names of columns and the number of
    dimensions are compared.
    """
    found = call_parts(method, estimator, args, kwargs, _OWN)
    if own:
        for name, value in _arguments(method, estimator, args, kwargs):
            if np.ndim(value):
                found[name] = _described(f"{np.ndim(value)}-dimensional")
    found |= {f"version of {name}": _described(value) for name, value in versions().items()}
    return json.dumps(found | fitted_parts(estimator))


def call_parts(
    method: Callable, estimator: Any, args: tuple, kwargs: dict[str, Any], left_out: set[str]
) -> dict[str, list[str]]:
    """The method, the parameters but some, and the arguments, as parts of a fingerprint."""
    call = f"{type(estimator).__name__}.{method.__name__}"
    found = {"call": _described(call)}
    for name, value in estimator.get_params(deep=True).items():
        if not left_out & set(name.split("__")):
            found[f"parameter {name}"] = _described(value)
    for name, value in _arguments(method, estimator, args, kwargs):
        found[name] = _described(value)
        columns = getattr(value, "columns", None)
        if columns is not None:
            found[f"columns of {name}"] = _described(np.asarray([str(c) for c in columns]))
    return found


def fitted_parts(estimator: Any) -> dict[str, list[str]]:
    """The fitted attributes but those of the table, as parts of a fingerprint."""
    return {
        f"fitted attribute {name}": _described(value)
        for name, value in sorted(vars(estimator).items())
        if name.endswith("_") and not name.startswith("_") and _size(value) < _SMALL
        if isinstance(value, np.ndarray | int | float | str)
    }


def check_same(found: list[str]) -> None:
    """Raise an error that names what differs between rank 0 and another one, and which rank."""
    first, absent = json.loads(found[0]), ("", "absent")
    differences = []
    for rank, text in enumerate(found):
        other = json.loads(text)
        for name in first | other:
            (a, here), (b, there) = first.get(name, absent), other.get(name, absent)
            if a != b:
                differences.append(f"{name} is {here} at rank 0 and {there} at rank {rank}")
    if differences:
        more = f", and {len(differences) - 4} more" if len(differences) > 4 else ""
        raise RankError(
            f"the ranks do not make the same call: {'; '.join(differences[:4])}{more}. Inside "
            "distribute() every rank needs the same data, parameters and versions."
        )


def _arguments(
    method: Callable, estimator: Any, args: tuple, kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    bound = inspect.signature(method).bind(estimator, *args, **kwargs)
    yield from list(bound.arguments.items())[1:]


def _size(value: Any) -> int:
    return int(getattr(value, "nbytes", 0))


def _described(value: Any) -> list[str]:
    """A hash of a value, and the value in a few characters."""
    if isinstance(value, np.random.RandomState):
        state: Any = value.get_state()
        return [_digest(repr(state).encode() + np.asarray(state[1]).tobytes()), "a RandomState"]
    if isinstance(value, torch.nn.Module):
        weights = [_described(tensor.cpu().numpy())[0] for tensor in value.state_dict().values()]
        return [_digest("".join([repr(value), *weights]).encode()), "a network"]
    if hasattr(value, "shape") or isinstance(value, list | tuple) and _numbers(value):
        return _described_array(np.asarray(value))
    text = re.sub(r" at 0x[0-9a-f]+", "", repr(value))
    return [_digest(text.encode()), text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."]


def _numbers(value: Any) -> bool:
    try:
        return np.asarray(value).dtype != object
    except ValueError:
        return False


def _described_array(array: np.ndarray) -> list[str]:
    hashed = blake2b(f"{array.shape} {array.dtype.str} ".encode(), digest_size=16)
    if array.dtype == object:
        hashed.update("\x1f".join(map(repr, array.ravel().tolist())).encode())
    elif array.size:
        hashed.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    digest, shape = hashed.hexdigest(), " x ".join(map(str, array.shape))
    return [digest, f"an array of {shape} {array.dtype} with hash {digest[:8]}"]


def _digest(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()
