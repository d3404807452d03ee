"""From a model to a structure of JSON and tensors, and back."""

from __future__ import annotations

from functools import cached_property
from inspect import getattr_static
from types import FunctionType
from typing import Any

import numpy as np

from .._compat import check_parameters
from ..core import GPModel, Record
from ..storage import Decoder, Encoder
from ._checks import check, check_record, complete
from ._classes import entry_of, is_registered, name_of
from ._scikit import dumps, loads, restored


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
        named = isinstance(value, type | FunctionType)
        cls = type(value)
        name = name_of(value if named else cls)
        if name is None and not named and cls.__module__.partition(".")[0] == "sklearn":
            return self._scikit(value)
        if name is None:
            what = f"a {cls.__module__}.{cls.__qualname__}"
            if named:
                kind = "class" if isinstance(value, type) else "function"
                what = f"the {kind} {value.__qualname__}"
            own = (value if named else cls).__name__
            remedy = f": call skscalablegp.files.register({own}) before save, and before load"
            raise self._refusal(what, remedy)
        if named:
            return {"named": name}
        if isinstance(value, tuple):
            return {"fields": {"class": name, "values": self._all(value)}}
        if isinstance(value, dict):
            return {"entries": {"class": name, "values": self._attributes(dict(value))}}
        if _by_call(cls):
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
        # The types are for readers of the file: `loads` looks at the archive itself.
        # `loads` looks for the types itself. Other readers need not open the archive for them.
        return {"scikit": {"tensor": tensor, "types": types, "models": inner}}


def _by_call(cls: type) -> bool:
    """Whether a class of the package says how its objects are made anew."""
    return "__reduce__" in vars(cls) and not is_registered(cls)


class ModelDecoder(Decoder):
    """The inverse of `ModelEncoder`."""

    def _named(self, name: Any) -> Any:
        entry = entry_of(name) if isinstance(name, str) else None
        if entry is None:
            raise self._error(
                f"is {name!r:.200}, which is unknown to this version and this process. If it is "
                "code of your own, call skscalablegp.files.register with it before load"
            )
        return entry

    def _class(self, name: Any, base: type) -> Any:
        entry = self._named(name)
        if not isinstance(entry, type) or not issubclass(entry, base):
            raise self._error(f"cannot be a {name!r:.200}")
        return entry

    def _object(self, content: Any) -> Any:
        cls = self._class(content["class"], object)
        if issubclass(cls, dict | tuple) or _by_call(cls):
            raise self._error(f"is not a {cls.__name__} made of attributes")
        value = self._here(cls.__new__(cls))
        self._pairs(vars(value), content["state"].items())
        if not is_registered(cls):
            complete(value)
            check(value)
        return value

    def _fields(self, content: Any) -> Any:
        value = self._class(content["class"], tuple)._make(self._all(content["values"]))
        if isinstance(value, Record):
            check_record(value.cls, value.values)
        return value

    def _entries(self, content: Any) -> Any:
        value = self._here(self._class(content["class"], dict)())
        value.update(self._pairs({}, content["values"].items()))
        return value

    def _by_call(self, content: Any) -> Any:
        cls = self._class(content["class"], object)
        if not _by_call(cls):
            raise self._error(f"is not a {cls.__name__} made by a call")
        return cls(*self._all(content["arguments"]))

    def _scikit(self, content: Any) -> Any:
        made = loads(self._tensor(content["tensor"]))
        return restored(made, self._all(content["models"]))


ModelDecoder.kinds = Decoder.kinds | {
    "named": ModelDecoder._named,
    "object": ModelDecoder._object,
    "fields": ModelDecoder._fields,
    "entries": ModelDecoder._entries,
    "made": ModelDecoder._by_call,
    "scikit": ModelDecoder._scikit,
}
