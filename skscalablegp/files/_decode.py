"""From a structure of JSON and tensors to a model."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ..core import Record
from ..storage import Decoder
from ._checks import check, check_record, complete
from ._classes import entry_of, is_registered
from ._scikit import loads, restored


class ModelDecoder(Decoder):
    """The inverse of `ModelEncoder`."""

    def _named(self, name: Any) -> Any:
        entry = self._entry(name)
        if not isinstance(entry, type | FunctionType):
            raise self._error("is neither a class nor a function")
        return entry

    def _entry(self, name: Any) -> Any:
        entry = entry_of(name) if isinstance(name, str) else None
        if entry is None:
            raise self._error(
                f"is {name!r:.200}, which is unknown to this version and this process. If it is "
                "code of your own, call skscalablegp.files.register with it before load"
            )
        return entry

    def _class(self, name: Any, base: type) -> type:
        entry = self._entry(name)
        if not isinstance(entry, type) or not issubclass(entry, base):
            raise self._error(f"cannot be a {name!r:.200}")
        return entry

    def _object(self, content: Any, number: int) -> Any:
        cls = self._class(content["class"], object)
        if issubclass(cls, dict | tuple) or ("__reduce__" in vars(cls) and not is_registered(cls)):
            raise self._error(f"is not a {cls.__name__} made of attributes")
        self._made[number] = value = cls.__new__(cls)
        self._attributes(content["state"], vars(value))
        if not is_registered(cls):
            complete(value)
            check(value)
        return value

    def _fields(self, content: Any, number: int) -> Any:
        cls: Any = self._class(content["class"], tuple)
        value = cls._make(self._all(content["values"]))
        if isinstance(value, Record):
            check_record(value.cls, value.values)
        return value

    def _entries(self, content: Any, number: int) -> Any:
        cls = self._class(content["class"], dict)
        self._made[number] = value = cls()
        value.update(self._attributes(content["values"], {}))
        return value

    def _by_call(self, content: Any, number: int) -> Any:
        cls = self._class(content["class"], object)
        if "__reduce__" not in vars(cls) or is_registered(cls):
            raise self._error(f"is not a {cls.__name__} made by a call")
        return cls(*self._all(content["arguments"]))

    def _scikit(self, content: Any, number: int) -> Any:
        made = loads(self._tensor(content["tensor"]), content["types"])
        models = [self._inside(i, node) for i, node in enumerate(content["models"])]
        return restored(made, models)


ModelDecoder.kinds = Decoder.kinds | {
    "named": lambda decoder, name, number: decoder._named(name),
    "object": ModelDecoder._object,
    "fields": ModelDecoder._fields,
    "entries": ModelDecoder._entries,
    "made": ModelDecoder._by_call,
    "scikit": ModelDecoder._scikit,
}
