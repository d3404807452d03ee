"""From a structure of JSON and tensors to a model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from types import FunctionType
from typing import Any

from ..core import Record
from ._checks import check, check_record, complete
from ._classes import entry_of, is_registered
from ._decode_arrays import ArrayDecoder
from ._scikit import loads, restored


class Decoder(ArrayDecoder):
    """The inverse of `Encoder`: makes the values of a structure, in the same order.

    Parameters
    ----------
    tensors : Tensors
    checksums : dict of str to str
        The checksum of each tensor.
    """

    def __call__(self, node: Any) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        if type(node) is list:
            return self._numbered(self._list, node)
        if len(node) != 1:
            raise self._error("is described by more than one kind")
        ((kind, content),) = node.items()
        if kind in _ATOMS:
            return _ATOMS[kind](self, content)
        if kind not in _KINDS:
            raise self._error(f"is of the unknown kind {kind!r:.40}")
        return self._numbered(lambda *args: _KINDS[kind](self, *args), content)

    def _numbered(self, make: Callable[[Any, int], Any], content: Any) -> Any:
        """A value that others may refer to by its number; `make` may put it there earlier."""
        number = len(self._made)
        self._made.append(_UNFINISHED)
        self._made[number] = value = make(content, number)
        return value

    def _attributes(self, nodes: Any, into: dict[str, Any]) -> dict[str, Any]:
        for key, node in nodes.items():
            into[key] = self._inside(key, node)
        return into

    # ------------------------------------------------------------------ atoms

    def _same(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._made):
            raise self._error("refers to a value that does not exist")
        value = self._made[number]
        if value is _UNFINISHED:
            raise self._error("refers to a value that contains it")
        return value

    def _named(self, name: Any) -> Any:
        entry = self._entry(name)
        if not isinstance(entry, type | FunctionType):
            raise self._error("is neither a class nor a function")
        return entry

    # ------------------------------------------------------------------ containers

    def _list(self, nodes: Any, number: int) -> list[Any]:
        value: list[Any] = []
        self._made[number] = value
        for i, node in enumerate(nodes):
            value.append(self._inside(i, node))
        return value

    def _tuple(self, nodes: Any, number: int) -> tuple:
        return tuple(self._all(nodes))

    def _set(self, nodes: Any, number: int) -> set:
        return set(self._all(nodes))

    def _frozenset(self, nodes: Any, number: int) -> frozenset:
        return frozenset(self._all(nodes))

    def _dict(self, nodes: Any, number: int) -> dict[str, Any]:
        value: dict[str, Any] = {}
        self._made[number] = value
        return self._attributes(nodes, value)

    def _pairs(self, pairs: Any, number: int) -> dict[Any, Any]:
        value: dict[Any, Any] = {}
        self._made[number] = value
        for key, node in pairs:
            made = self._inside("key", key)
            value[made] = self._inside(made, node)
        return value

    def _ordered(self, content: Any, number: int) -> OrderedDict:
        (pairs,) = content.values()
        if "dict" in content:
            pairs = [[key, node] for key, node in pairs.items()]
        return OrderedDict(self._pairs(pairs, number))

    # ------------------------------------------------------------------ objects

    def _entry(self, name: Any) -> Any:
        entry = entry_of(name) if isinstance(name, str) else None
        if entry is None:
            raise self._error(
                f"is {name!r:.200}, which this version and this process do not know. If it is code "
                "of your own, call skscalablegp.files.register with it before load"
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


_UNFINISHED = object()


_ATOMS: dict[str, Callable[[Decoder, Any], Any]] = {
    "same": Decoder._same,
    "float": Decoder._float,
    "integer": Decoder._integer,
    "number": Decoder._number,
    "slice": Decoder._slice,
    "ellipsis": lambda decoder, content: ...,
}
_KINDS: dict[str, Callable[[Decoder, Any, int], Any]] = {
    "tuple": Decoder._tuple,
    "set": Decoder._set,
    "frozenset": Decoder._frozenset,
    "dict": Decoder._dict,
    "pairs": Decoder._pairs,
    "ordered": Decoder._ordered,
    "numbers": Decoder._packed,
    "strings": Decoder._strings,
    "array": Decoder._array,
    "filled": Decoder._filled_array,
    "objects": Decoder._objects,
    "masked": Decoder._masked,
    "sparse": Decoder._sparse,
    "torch": Decoder._torch,
    "random_state": Decoder._random_state,
    "generator": Decoder._generator,
    "named": lambda decoder, name, number: decoder._named(name),
    "object": Decoder._object,
    "fields": Decoder._fields,
    "entries": Decoder._entries,
    "made": Decoder._by_call,
    "scikit": Decoder._scikit,
}
