"""The state of what moves in training, as values without classes, and back.

A class says by `moving` which of its attributes steps change. Fields of dataclasses are all
taken, unless `moving` names some. Objects with ``state_dict`` and ``load_state_dict``, as the
optimisers of torch have them, are asked for it.
"""

from __future__ import annotations

from copy import copy, deepcopy
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor

from ...storage import ModelFileError

_NUMBERS = (bool, int, float, str, type(None), np.generic)


def captured(value: Any) -> Any:
    """A copy of the state that later steps do not change, without classes of this package."""
    if isinstance(value, _NUMBERS):
        return value
    if isinstance(value, Tensor):
        return value.detach().cpu().numpy().copy()
    if isinstance(value, Generator):
        return value.get_state().numpy().copy()
    if isinstance(value, np.ndarray | np.random.RandomState | np.random.Generator):
        return deepcopy(value)
    if isinstance(value, list | tuple):
        return type(value)(map(captured, value)) if type(value) in (list, tuple) else list(value)
    if isinstance(value, dict):
        return {key: captured(item) for key, item in value.items()}
    if (names := moving(value)) is not None:
        return {name: captured(getattr(value, name)) for name in names}
    return captured(value.state_dict())


def moving(value: Any) -> tuple[str, ...] | None:
    """The attributes of an object that steps change; None if it has a state of its own form."""
    names = getattr(value, "moving", None)
    if names is None and is_dataclass(value):
        return tuple(field.name for field in fields(value))
    return names


def restored(value: Any, state: Any, fresh: bool = False) -> Any:
    """The value with a captured state; changes it in place, unless `fresh` asks for a copy.

    The value says which types and numbers of axes there are. Numbers and None may have become
    tensors, and tensors may have another length.

    Raises
    ------
    ModelFileError
        For a state of another form.
    """
    if isinstance(value, Tensor | np.ndarray | Generator):
        return _restored_array(value, state, fresh)
    if isinstance(value, np.random.RandomState):
        value.set_state(_checked(state, np.random.RandomState).get_state())
        return value
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = _checked(state, np.random.Generator).bit_generator.state
        return value
    if isinstance(value, _NUMBERS):
        return tensors_of(state)
    if isinstance(value, list | tuple):
        if len(_checked(state, type(value))) != len(value):
            return tensors_of(state)
        return type(value)(restored(v, s, fresh) for v, s in zip(value, state, strict=True))
    if isinstance(value, dict):
        known = _checked(state, dict)
        return {key: restored(item, known[key], fresh) for key, item in value.items()}
    if (names := moving(value)) is None:
        value.load_state_dict(tensors_of(state))
        return value
    return _restored_object(value, names, _checked(state, dict), fresh)


def _restored_object(value: Any, names: tuple[str, ...], state: dict[str, Any], fresh: bool) -> Any:
    if set(state) != set(names):
        raise ModelFileError(f"the state of {type(value).__name__} has other parts")
    frozen = is_dataclass(value) and vars(type(value))["__dataclass_params__"].frozen
    parts = {name: restored(getattr(value, name), state[name], fresh or frozen) for name in names}
    if frozen:
        return replace(value, **parts)
    value = copy(value) if fresh else value
    for name, part in parts.items():
        setattr(value, name, part)
    return value


def _restored_array(value: Any, state: Any, fresh: bool) -> Any:
    array = _checked(state, np.ndarray)
    if isinstance(value, np.ndarray):
        if array.ndim != value.ndim or array.dtype != value.dtype:
            raise ModelFileError("an array of the state has another form")
        return array
    tensor = torch.from_numpy(np.array(array))
    if isinstance(value, Generator):
        value.set_state(tensor)
        return value
    exchanged = tensor.shape != value.shape and sorted(tensor.shape) == sorted(value.shape)
    if exchanged or tensor.ndim != value.ndim or tensor.dtype != value.dtype:
        raise ModelFileError("a tensor of the state has another form")
    if fresh or tensor.shape != value.shape:
        return tensor.to(value.device)
    with torch.no_grad():
        return value.copy_(tensor)


def tensors_of(state: Any) -> Any:
    """A captured state with tensors in place of arrays."""
    if isinstance(state, np.ndarray):
        return torch.from_numpy(np.array(state))
    if isinstance(state, list | tuple):
        return type(state)(map(tensors_of, state))
    if isinstance(state, dict):
        return {key: tensors_of(item) for key, item in state.items()}
    return state


def _checked(state: Any, kind: type) -> Any:
    if not isinstance(state, kind):
        found, wanted = type(state).__name__, kind.__name__
        raise ModelFileError(f"the state has a {found} in place of a {wanted}")
    return state
