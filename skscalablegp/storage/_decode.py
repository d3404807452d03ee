"""From a structure of JSON and tensors to values without classes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch

from ._container import Tensors
from ._errors import ModelFileError

# Values inside one another. Models have about thirty.
_DEEPEST = 200
# Bytes of arrays that are stored as one number, beyond a multiple of the size of the tensors.
_FILLED = 2**24
_SPARSE = ("csr_array", "csr_matrix", "csc_array", "csc_matrix")
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_SCALARS = ("f8", "f4", "f2", "b1", "i8", "i4", "i2", "i1", "u8", "u4", "u2", "u1")


class Decoder:
    """The inverse of `Encoder`: makes the values of a structure, in the same order.

    Parameters
    ----------
    tensors : Tensors
    checksums : dict of str to str
        The checksum of each tensor.

    Attributes
    ----------
    used : set of str
        The tensors that have been read.
    """

    # How to make a value of each kind.
    kinds: ClassVar[dict[str, Callable[[Any, Any, int], Any]]]

    def __init__(self, tensors: Tensors, checksums: dict[str, str]):
        self._tensors, self._checksums = tensors, checksums
        self._made: list[Any] = []
        self._path: list[str] = []
        self._filled = _FILLED + 8 * tensors.size
        self.used: set[str] = set()

    def _error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{'.'.join(self._path) or 'the model'} {message}")

    def _inside(self, key: Any, node: Any) -> Any:
        if len(self._path) > _DEEPEST:
            raise ModelFileError("it is nested too deeply")
        self._path.append(str(key))
        value = self(node)
        self._path.pop()
        return value

    def _all(self, nodes: Any) -> list[Any]:
        return [self._inside(i, node) for i, node in enumerate(nodes)]

    def _tensor(self, name: Any) -> np.ndarray:
        if not isinstance(name, str) or name not in self._tensors.names:
            raise self._error("has no tensor in the file")
        if name in self.used:
            raise self._error("has the tensor of another value")
        self.used.add(name)
        return self._tensors.read(name, self._checksums[name])

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
        if kind not in self.kinds:
            raise self._error(f"is of the unknown kind {kind!r:.40}")
        return self._numbered(lambda *args: self.kinds[kind](self, *args), content)

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

    # ------------------------------------------------------------------ numbers

    def _float(self, text: Any) -> float:
        if text not in ("nan", "inf", "-inf"):
            raise self._error("is not a number")
        return float(text)

    def _integer(self, text: Any) -> int:
        if type(text) is not str or len(text) > 100:
            raise self._error("is not an integer")
        return int(text, 16)

    def _number(self, content: Any) -> np.generic:
        code, value = content
        if code == "U" and type(value) is str:
            return np.str_(value)
        if code[:2] in ("M8", "m8") and type(value) is int:
            return np.array([value]).view(np.dtype(code))[0]
        if code not in _SCALARS:
            raise self._error("is a number of an unknown type")
        value = self(value)
        if type(value) not in (bool, int, float):
            raise self._error("is not a number")
        return np.dtype(code).type(value)

    def _slice(self, content: Any) -> slice:
        start, stop, step = content
        if any(part is not None and type(part) is not int for part in content):
            raise self._error("is not a slice of integers")
        return slice(start, stop, step)

    # ------------------------------------------------------------------ text and arrays

    def _packed(self, content: Any, number: int) -> Any:
        kind = {"list": list, "tuple": tuple}[content["of"]]
        return kind(self._tensor(content["tensor"]).tolist())

    def _strings(self, content: Any, number: int) -> Any:
        text, lengths = self._tensor(content["text"]), self._tensor(content["lengths"])
        if text.dtype != np.uint8 or lengths.dtype != np.int64 or (lengths < 0).any():
            raise self._error("is not text")
        ends = np.cumsum(lengths)
        if len(lengths) and (ends[-1] != len(text) or (ends > len(text)).any()):
            raise self._error("has lengths that its text does not have")
        raw = text.tobytes()
        values = [
            raw[end - length : end].decode("utf-8", "surrogatepass")
            for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)
        ]
        if content["of"] in ("list", "tuple"):
            return values if content["of"] == "list" else tuple(values)
        shape = self._shape(content["shape"], len(values))
        if content["of"] == "objects":
            return _of_objects(values, shape)
        width = max(map(len, values), default=0)
        code, wide = content["of"][:1], int(content["of"][1:])
        if code != "U" or not width <= wide <= 10 * width + 100:
            raise self._error("is not an array of text")
        self._spend(4 * wide * len(values))
        return np.array(values, dtype=f"U{wide}").reshape(shape)

    # ------------------------------------------------------------------ arrays

    def _shape(self, shape: Any, size: int) -> tuple[int, ...]:
        if not isinstance(shape, list) or len(shape) > 8 or any(type(k) is not int for k in shape):
            raise self._error("has no valid shape")
        if prod(shape) != size or min(shape, default=0) < 0:
            raise self._error("has a shape that its numbers do not fill")
        return tuple(shape)

    def _spend(self, size: int) -> None:
        """Count bytes that the file itself does not have."""
        self._filled -= size
        if self._filled < 0:
            raise self._error("takes far more memory than the file")

    def _array(self, content: Any, number: int) -> np.ndarray:
        value = self._tensor(content["tensor"])
        if "as" in content:
            code = content["as"]
            if code[:2] not in ("m8", "M8") or value.dtype != np.int64:
                raise self._error("is not an array of dates")
            return value.view(np.dtype(code))
        return value.T if content.get("order") == "F" else value

    def _filled_array(self, content: Any, number: int) -> np.ndarray:
        one, shape = self._tensor(content["tensor"]), content["shape"]
        if one.shape != (1,):
            raise self._error("is filled with more than one number")
        self._shape(shape, prod(shape))
        self._spend(prod(shape) * one.dtype.itemsize)
        return np.full(shape, one[0], one.dtype)

    def _objects(self, content: Any, number: int) -> np.ndarray:
        values = self._all(content["items"])
        return _of_objects(values, self._shape(content["shape"], len(values)))

    def _masked(self, content: Any, number: int) -> np.ma.MaskedArray:
        data, mask = content
        return np.ma.MaskedArray(self._inside("data", data), self._inside("mask", mask))

    def _sparse(self, content: Any, number: int) -> Any:
        if content["class"] not in _SPARSE:
            raise self._error("is a sparse array of an unknown class")
        parts = [self._inside(name, content[name]) for name in ("data", "indices", "indptr")]
        shape = content["shape"]
        if len(shape) != 2 or any(type(k) is not int or k < 0 for k in shape):
            raise self._error("has no valid shape")
        value = getattr(scipy.sparse, content["class"])(
            tuple(parts), shape=tuple(shape), copy=False
        )
        value.check_format(full_check=True)
        if parts[0].dtype.kind != "f" or not np.isfinite(parts[0]).all():
            raise self._error("is a sparse array with NaN, infinity, or no numbers")
        # What the constructor may have replaced keeps its type.
        value.data, value.indices, value.indptr = parts
        return value

    def _torch(self, content: Any, number: int) -> torch.Tensor:
        value = torch.from_numpy(np.array(self._inside("array", content["array"])))
        if content["of"] == "parameter":
            return torch.nn.Parameter(value, requires_grad=content["grad"] is True)
        return value

    def _random_state(self, content: Any, number: int) -> np.random.RandomState:
        made = np.random.RandomState()
        made.set_state(self._inside("state", content))
        return made

    def _generator(self, content: Any, number: int) -> np.random.Generator:
        state = self._inside("state", content)
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise self._error("is an unknown generator of random numbers")
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return np.random.Generator(bits)


def _of_objects(values: list[Any], shape: tuple[int, ...]) -> np.ndarray:
    flat = np.empty(len(values), dtype=object)
    for i, value in enumerate(values):
        flat[i] = value
    return flat.reshape(shape)


_UNFINISHED = object()


_ATOMS: dict[str, Callable[[Decoder, Any], Any]] = {
    "same": Decoder._same,
    "float": Decoder._float,
    "integer": Decoder._integer,
    "number": Decoder._number,
    "slice": Decoder._slice,
    "ellipsis": lambda decoder, content: ...,
}
Decoder.kinds = {
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
}
