"""From a model to a structure of JSON and tensors."""

from __future__ import annotations

from functools import cached_property
from inspect import getattr_static
from types import FunctionType
from typing import Any

import numpy as np

from .._compat import check_parameters
from ..core import GPModel
from ..storage import Encoder
from ._classes import is_registered, name_of
from ._scikit import dumps


class ModelEncoder(Encoder):
    """Encodes objects of the classes in the table of files, too.

    Parameters
    ----------
    compact : bool
        Whether estimators leave out what predictions do not need.
    """

    def __init__(self, compact: bool):
        super().__init__()
        self._compact = compact

    def _other(self, value: Any) -> Any:
        cls = type(value)
        name = name_of(cls)
        if isinstance(value, type | FunctionType):
            named = name_of(value)
            if named is None:
                what = f"the {_kind(value)} {value.__qualname__}"
                raise self._refusal(value, what, _to_register(value))
            return {"named": named}
        if name is None and cls.__module__.partition(".")[0] == "sklearn":
            return self._scikit(value)
        if name is None:
            what = f"a {cls.__module__}.{cls.__qualname__}"
            raise self._refusal(value, what, _to_register(cls))
        if isinstance(value, tuple):
            return {"fields": {"class": name, "values": self._all(value)}}
        if isinstance(value, dict):
            return {"entries": {"class": name, "values": self._attributes(dict(value))}}
        if "__reduce__" in vars(cls) and not is_registered(cls):
            return {"made": {"class": name, "arguments": self._all(value.__reduce__()[1])}}
        return {"object": {"class": name, "state": self._attributes(self._state(value))}}

    def _state(self, value: Any) -> dict[str, Any]:
        if isinstance(value, GPModel):
            check_parameters(value)
            return value._saved_state(self._compact)
        state, cls = vars(value), type(value)
        caches = {k for k in state if isinstance(getattr_static(cls, k, None), cached_property)}
        return {key: item for key, item in state.items() if key not in caches}

    def _scikit(self, value: Any) -> Any:
        """An object of scikit-learn, with the package's models inside as values of their own."""
        try:
            data, types, models = dumps(value)
        except TypeError as error:
            raise TypeError(f"{self._where()} cannot be saved: {error}") from None
        tensor = self._tensor(np.frombuffer(data, dtype=np.uint8))
        inner = [self._inside(type(model).__name__, model) for model in models]
        return {"scikit": {"tensor": tensor, "types": types, "models": inner}}


def _to_register(entry: type | FunctionType) -> str:
    return f": call skscalablegp.files.register({entry.__name__}) before save, and before load"


def _kind(value: Any) -> str:
    return "class" if isinstance(value, type) else "function"
