"""Values without classes as a structure of JSON and tensors, and back.

A value is JSON's null, a truth value, an integer, a finite float, a string, or a list for a Python
list. Everything else is an object with one key, its kind. Values that are not atoms are numbered in
the order in which they begin, and a second occurrence refers to the first. Objects of other classes
than those of numbers, text and containers are left to subclasses.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import numpy as np
import scipy.sparse
import torch

from ._container import DTYPES, Tensors, checksum, storable
from ._errors import ModelFileError

# Values inside one another. Models have about thirty.
_DEEPEST = 200
# Lists of at least this many numbers or strings become tensors.
_LONG = 32
# Arrays of at least this many equal numbers are stored as one number. What is read may take this
# many bytes beyond a multiple of the size of the file.
_EQUAL, _FILLED = 32, 2**24

_SCALARS = {dtype.str[1:]: dtype.type for dtype in DTYPES.values()}
_DATES = (np.datetime64, np.timedelta64)
_LISTS: dict[str, type] = {"list": list, "tuple": tuple}
_SPARSE = ("csr_array", "csr_matrix", "csc_array", "csc_matrix")
_BIT_GENERATORS = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
_UNFINISHED = object()


class _Walk:
    """A way through values inside one another."""

    def __init__(self) -> None:
        self._path: list[str] = []

    def __call__(self, item: Any) -> Any:
        raise NotImplementedError

    def _inside(self, key: Any, item: Any) -> Any:
        if len(self._path) > _DEEPEST:
            raise ModelFileError("it is nested too deeply")
        self._path.append(str(key))
        made = self(item)
        self._path.pop()
        return made

    def _all(self, items: Iterable[Any]) -> list[Any]:
        return [self._inside(i, item) for i, item in enumerate(items)]


class Encoder(_Walk):
    """Collects the tensors of a structure while it is made.

    Attributes
    ----------
    tensors : dict of str to ndarray
    checksums : dict of str to str
    """

    def __init__(self) -> None:
        super().__init__()
        self.tensors: dict[str, np.ndarray] = {}
        self.checksums: dict[str, str] = {}
        # Objects by id, with their number. Keeping them keeps their ids from being used again.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def __call__(self, value: Any) -> Any:
        if type(value) in _ATOMS:
            return _ATOMS[type(value)](value)
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)][0]}
        self._numbers[id(value)] = len(self._numbers), value
        known = _FORMS.get(type(value))
        return self._other(value) if known is None else known(self, value)

    def _other(self, value: Any) -> Any:
        """The structure of an object of another class."""
        raise self._refusal(f"a {type(value).__module__}.{type(value).__qualname__}")

    def _where(self) -> str:
        return ".".join(self._path) or "The model"

    def _refusal(self, what: str, remedy: str = "") -> TypeError:
        return TypeError(f"{self._where()} is {what}, which files cannot hold{remedy}.")

    def _tensor(self, array: np.ndarray) -> str:
        """The name of a tensor: where it is in the model."""
        path = ".".join(self._path) or "value"
        # Headers are printable ASCII.
        name = stem = "".join(c if " " <= c <= "~" else f"\\{ord(c):x}" for c in path)
        k = 1
        while name in self.tensors:
            name, k = f"{stem}.{k}", k + 1
        array = np.asarray(array, order="C")
        self.tensors[name], self.checksums[name] = array, checksum(array)
        return name

    def _list(self, value: list | tuple) -> Any:
        """A long list of equal types is stored as tensors."""
        of, types = type(value).__name__, set(map(type, value if len(value) >= _LONG else ()))
        if types == {str}:
            return {"strings": {"of": of, **self._strings(value)}}
        if types == {float} or (types == {int} and all(-(2**63) <= v < 2**63 for v in value)):
            return {"numbers": {"of": of, "tensor": self._tensor(np.array(value))}}
        return self._all(value) if of == "list" else {"tuple": self._all(value)}

    def _strings(self, values: Iterable[str]) -> dict[str, str]:
        coded = [value.encode("utf-8", "surrogatepass") for value in values]
        lengths = np.array([len(code) for code in coded], dtype=np.int64)
        text = np.frombuffer(b"".join(coded), dtype=np.uint8)
        return {"text": self._tensor(text), "lengths": self._tensor(lengths)}

    def _dict(self, value: dict) -> Any:
        if all(type(key) is str for key in value):
            return {"dict": self._attributes(value)}
        pairs = [[self._inside("key", key), self._inside(key, item)] for key, item in value.items()]
        return {"pairs": pairs}

    def _attributes(self, value: dict[str, Any]) -> dict[str, Any]:
        return {key: self._inside(key, item) for key, item in value.items()}

    def _array(self, value: np.ndarray) -> Any:
        dtype, said = value.dtype, {"shape": [*value.shape]}
        text = dtype.kind == "O" and set(map(type, value.flat)) == {str}
        if text or dtype.kind == "U":
            of = "objects" if text else dtype.str[1:]
            return {"strings": {"of": of, **said, **self._strings(value.flat)}}
        if dtype.kind == "O":
            return {"objects": {**said, "items": self._all(value.flat)}}
        if dtype.kind in "mM":
            return {"array": {"tensor": self._tensor(value.view(np.int64)), "as": dtype.str[1:]}}
        if not storable(dtype):
            raise self._refusal(f"an array of dtype {dtype}")
        value = np.asarray(value, dtype=dtype.newbyteorder("="))
        if value.size >= _EQUAL and _all_equal(value):
            return {"filled": {**said, "tensor": self._tensor(value.reshape(-1)[:1].copy())}}
        if value.flags.f_contiguous and not value.flags.c_contiguous:
            return {"array": {"tensor": self._tensor(value.T), "order": "F"}}
        return {"array": {"tensor": self._tensor(value)}}

    def _sparse(self, value: Any) -> Any:
        parts = self._attributes({k: getattr(value, k) for k in ("data", "indices", "indptr")})
        return {"sparse": {"class": type(value).__name__, "shape": [*value.shape], **parts}}

    def _torch(self, value: torch.Tensor) -> Any:
        of = "plain" if type(value) is torch.Tensor else "parameter"
        array = self._inside("array", value.detach().cpu().numpy())
        return {"torch": {"of": of, "grad": value.requires_grad, "array": array}}


def _all_equal(value: np.ndarray) -> bool:
    flat = value.reshape(-1) if value.flags.c_contiguous else value.ravel(order="K")
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


def _number(value: np.generic) -> Any:
    code = "U" if isinstance(value, str) else value.dtype.str[1:]
    if isinstance(value, _DATES):
        return {"number": [code, int(value.astype(np.int64))]}
    return {"number": [code, _ATOMS[type(value.item())](value.item())]}


_ATOMS: dict[type, Callable[[Any], Any]] = {
    **dict.fromkeys((type(None), bool, str), lambda value: value),
    int: lambda value: value if abs(value) < 2**63 else {"integer": hex(value)},
    float: lambda value: value if math.isfinite(value) else {"float": repr(value)},
    slice: lambda value: {"slice": [value.start, value.stop, value.step]},
    type(Ellipsis): lambda value: {"ellipsis": None},
    **dict.fromkeys((*_SCALARS.values(), *_DATES, np.str_), _number),
}
_FORMS: dict[type, Callable[[Encoder, Any], Any]] = {
    **dict.fromkeys((list, tuple), Encoder._list),
    dict: Encoder._dict,
    OrderedDict: lambda encoder, value: {"ordered": encoder._dict(dict(value))},
    set: lambda encoder, value: {"set": encoder._all(sorted(value, key=repr))},
    frozenset: lambda encoder, value: {"frozenset": encoder._all(sorted(value, key=repr))},
    np.ndarray: Encoder._array,
    np.ma.MaskedArray: lambda encoder, value: {"masked": encoder._all((value.data, value.mask))},
    **{getattr(scipy.sparse, name): Encoder._sparse for name in _SPARSE},
    **dict.fromkeys((torch.Tensor, torch.nn.Parameter), Encoder._torch),
    np.random.RandomState: lambda encoder, value: {
        "random_state": encoder._inside("state", value.get_state(legacy=False))
    },
    np.random.Generator: lambda encoder, value: {
        "generator": encoder._inside("state", value.bit_generator.state)
    },
}


class Decoder(_Walk):
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
    kinds: ClassVar[dict[str, Callable[[Any, Any], Any]]]

    def __init__(self, tensors: Tensors, checksums: dict[str, str]):
        super().__init__()
        self._tensors, self._checksums = tensors, checksums
        self._made: list[Any] = []
        self._filled = _FILLED + 8 * tensors.size
        self.used: set[str] = set()

    def __call__(self, node: Any) -> Any:
        if node is None or type(node) in (bool, int, float, str):
            return node
        if type(node) is list:
            node = {"list": node}
        if len(node) != 1:
            raise self._error("is described by more than one kind")
        ((kind, content),) = node.items()
        if kind in _READ:
            return _READ[kind](self, content)
        if kind not in self.kinds:
            raise self._error(f"is of the unknown kind {kind!r:.40}")
        number = len(self._made)
        self._made.append(_UNFINISHED)
        self._made[number] = value = self.kinds[kind](self, content)
        return value

    def _error(self, message: str) -> ModelFileError:
        return ModelFileError(f"{'.'.join(self._path) or 'the model'} {message}")

    def _here(self, value: Any) -> Any:
        """Let the parts of a value refer to it, before the first of them is made."""
        self._made[-1] = value
        return value

    def _pairs(self, value: Any, pairs: Iterable[Any]) -> Any:
        for key, node in pairs:
            made = self._inside("key", key)
            value[made] = self._inside(made, node)
        return value

    def _list(self, nodes: Any) -> list[Any]:
        value = self._here([])
        value.extend(self._all(nodes))
        return value

    def _ordered(self, content: Any) -> OrderedDict:
        ((kind, pairs),) = content.items()
        return self._pairs(self._here(OrderedDict()), pairs.items() if kind == "dict" else pairs)

    # ------------------------------------------------------------------ atoms

    def _same(self, number: Any) -> Any:
        if type(number) is not int or not 0 <= number < len(self._made):
            raise self._error("refers to a value that does not exist")
        value = self._made[number]
        if value is _UNFINISHED:
            raise self._error("refers to a value that contains it")
        return value

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
        return _SCALARS[code](value)

    def _slice(self, content: Any) -> slice:
        start, stop, step = content
        if any(part is not None and type(part) is not int for part in content):
            raise self._error("is not a slice of integers")
        return slice(start, stop, step)

    # ------------------------------------------------------------------ text and arrays

    def _tensor(self, name: Any) -> np.ndarray:
        if not isinstance(name, str) or name not in self._tensors.names:
            raise self._error("has no tensor in the file")
        if name in self.used:
            raise self._error("has the tensor of another value")
        self.used.add(name)
        return self._tensors.read(name, self._checksums[name])

    def _strings(self, content: Any) -> Any:
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
        of = content["of"]
        if of in _LISTS:
            return _LISTS[of](values)
        if of == "objects":
            return self._of_objects(values, content["shape"])
        width, wide = max(map(len, values), default=0), int(of[1:])
        if of[:1] != "U" or not width <= wide <= 10 * width + 100:
            raise self._error("is not an array of text")
        self._spend(4 * wide * len(values))
        shape = self._shape(content["shape"], len(values))
        return np.array(values, dtype=f"U{wide}").reshape(shape)

    def _of_objects(self, values: list[Any], shape: Any) -> np.ndarray:
        return np.fromiter(values, object, len(values)).reshape(self._shape(shape, len(values)))

    def _shape(self, shape: Any, size: int) -> tuple[int, ...]:
        if not isinstance(shape, list) or len(shape) > 8 or any(type(k) is not int for k in shape):
            raise self._error("has no valid shape")
        if math.prod(shape) != size or min(shape, default=0) < 0:
            raise self._error("has a shape that its numbers do not fill")
        return tuple(shape)

    def _spend(self, size: int) -> None:
        """Count bytes that the file itself does not have."""
        self._filled -= size
        if self._filled < 0:
            raise self._error("takes far more memory than the file")

    def _array(self, content: Any) -> np.ndarray:
        value = self._tensor(content["tensor"])
        if "as" in content:
            code = content["as"]
            if code[:2] not in ("m8", "M8") or value.dtype != np.int64:
                raise self._error("is not an array of dates")
            return value.view(np.dtype(code))
        return value.T if content.get("order") == "F" else value

    def _of_one_number(self, content: Any) -> np.ndarray:
        one, shape = self._tensor(content["tensor"]), content["shape"]
        if one.shape != (1,):
            raise self._error("is filled with more than one number")
        size = math.prod(self._shape(shape, math.prod(shape)))
        self._spend(size * one.dtype.itemsize)
        return np.full(shape, one[0], one.dtype)

    def _sparse(self, content: Any) -> Any:
        if content["class"] not in _SPARSE:
            raise self._error("is a sparse array of an unknown class")
        parts = [self._inside(name, content[name]) for name in ("data", "indices", "indptr")]
        shape = content["shape"]
        if len(shape) != 2 or any(type(k) is not int or k < 0 for k in shape):
            raise self._error("has no valid shape")
        made = getattr(scipy.sparse, content["class"])
        value = made(tuple(parts), shape=tuple(shape), copy=False)
        value.check_format(full_check=True)
        if parts[0].dtype.kind != "f" or not np.isfinite(parts[0]).all():
            raise self._error("is a sparse array with NaN, infinity, or no numbers")
        # What the constructor may have replaced keeps its type.
        value.data, value.indices, value.indptr = parts
        return value

    def _torch(self, content: Any) -> torch.Tensor:
        value = torch.from_numpy(np.array(self._inside("array", content["array"])))
        if content["of"] == "parameter":
            return torch.nn.Parameter(value, requires_grad=content["grad"] is True)
        return value

    # ------------------------------------------------------------------ random numbers

    def _random_state(self, content: Any) -> np.random.RandomState:
        made = np.random.RandomState()
        made.set_state(self._inside("state", content))
        return made

    def _generator(self, content: Any) -> np.random.Generator:
        state = self._inside("state", content)
        if state["bit_generator"] not in _BIT_GENERATORS:
            raise self._error("is an unknown generator of random numbers")
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return np.random.Generator(bits)


# Atoms, and values with a number.
_READ: dict[str, Callable[[Decoder, Any], Any]] = {
    "same": Decoder._same,
    "float": Decoder._float,
    "integer": Decoder._integer,
    "number": Decoder._number,
    "slice": Decoder._slice,
    "ellipsis": lambda decoder, content: ...,
}
Decoder.kinds = {
    "list": Decoder._list,
    "tuple": lambda decoder, nodes: tuple(decoder._all(nodes)),
    "set": lambda decoder, nodes: set(decoder._all(nodes)),
    "frozenset": lambda decoder, nodes: frozenset(decoder._all(nodes)),
    "dict": lambda decoder, nodes: decoder._pairs(decoder._here({}), nodes.items()),
    "pairs": lambda decoder, pairs: decoder._pairs(decoder._here({}), pairs),
    "ordered": Decoder._ordered,
    "numbers": lambda decoder, it: _LISTS[it["of"]](decoder._tensor(it["tensor"]).tolist()),
    "strings": Decoder._strings,
    "objects": lambda decoder, it: decoder._of_objects(decoder._all(it["items"]), it["shape"]),
    "array": Decoder._array,
    "filled": Decoder._of_one_number,
    "masked": lambda decoder, nodes: np.ma.MaskedArray(*decoder._all(nodes)[:2]),
    "sparse": Decoder._sparse,
    "torch": Decoder._torch,
    "random_state": Decoder._random_state,
    "generator": Decoder._generator,
}
