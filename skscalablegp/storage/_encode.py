"""From values without classes to a structure of JSON and tensors."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse
import torch

from ._container import checksum, storable

# Lists of at least this many numbers or strings become tensors.
_LONG = 32
# Arrays of at least this many equal numbers are stored as one number.
_EQUAL = 32


class Encoder:
    """Collects the tensors of a structure while it is made.

    A value is JSON's null, a truth value, an integer, a finite float, a string, or a list for a
    Python list. Everything else is an object with one key, its kind. Values that are not atoms are
    numbered in the order in which they begin, and a second occurrence refers to the first. Objects
    of other classes than those of numbers, text and containers are left to subclasses.

    Attributes
    ----------
    tensors : dict of str to ndarray
    checksums : dict of str to str
    """

    def __init__(self) -> None:
        self.tensors: dict[str, np.ndarray] = {}
        self.checksums: dict[str, str] = {}
        self._path: list[str] = []
        # Objects by id, with their number. Keeping them keeps their ids from being used again.
        self._numbers: dict[int, tuple[int, Any]] = {}

    def __call__(self, value: Any) -> Any:
        atom = _ATOMS.get(type(value))
        if atom is not None:
            return atom(value)
        if id(value) in self._numbers:
            return {"same": self._numbers[id(value)][0]}
        self._numbers[id(value)] = len(self._numbers), value
        known = _KINDS.get(type(value))
        if known is not None:
            return known(self, value)
        return self._other(value)

    def _inside(self, key: Any, value: Any) -> Any:
        self._path.append(str(key))
        made = self(value)
        self._path.pop()
        return made

    def _all(self, values: Any) -> list[Any]:
        return [self._inside(i, value) for i, value in enumerate(values)]

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

    # ------------------------------------------------------------------ containers

    def _list(self, value: list) -> Any:
        return self._packed("list", value) or self._all(value)

    def _tuple(self, value: tuple) -> Any:
        return self._packed("tuple", value) or {"tuple": self._all(value)}

    def _packed(self, kind: str, value: list | tuple) -> Any:
        """A long list of equal types as tensors; None for other lists."""
        types = set(map(type, value)) if len(value) >= _LONG else set()
        if types == {str}:
            return {"strings": {"of": kind, **self._strings(value)}}
        if types == {float} or (types == {int} and all(-(2**63) <= v < 2**63 for v in value)):
            return {"numbers": {"of": kind, "tensor": self._tensor(np.array(value))}}
        return None

    def _strings(self, values: Any) -> dict[str, str]:
        coded = [value.encode("utf-8", "surrogatepass") for value in values]
        lengths = np.array([len(code) for code in coded], dtype=np.int64)
        text = np.frombuffer(b"".join(coded), dtype=np.uint8)
        return {"text": self._tensor(text), "lengths": self._tensor(lengths)}

    def _dict(self, value: dict) -> Any:
        if all(type(key) is str for key in value):
            return {"dict": self._attributes(value)}
        pairs = [[self._inside("key", key), self._inside(key, item)] for key, item in value.items()]
        return {"pairs": pairs}

    def _ordered(self, value: OrderedDict) -> Any:
        return {"ordered": self._dict(dict(value))}

    def _attributes(self, value: dict[str, Any]) -> dict[str, Any]:
        return {key: self._inside(key, item) for key, item in value.items()}

    def _set(self, value: set | frozenset) -> Any:
        return {type(value).__name__: self._all(sorted(value, key=repr))}

    # ------------------------------------------------------------------ arrays

    def _array(self, value: np.ndarray) -> Any:
        dtype = value.dtype
        if dtype.kind == "O":
            if value.size and all(type(item) is str for item in value.flat):
                return {
                    "strings": {
                        "of": "objects",
                        "shape": [*value.shape],
                        **self._strings(value.flat),
                    }
                }
            return {"objects": {"shape": [*value.shape], "items": self._all(value.flat)}}
        if dtype.kind == "U":
            said = {"of": dtype.str[1:], "shape": [*value.shape]}
            return {"strings": {**said, **self._strings(map(str, value.flat))}}
        if dtype.kind in "mM":
            return {"array": {"tensor": self._tensor(value.view(np.int64)), "as": dtype.str[1:]}}
        if not storable(dtype):
            raise self._refusal(value, f"an array of dtype {dtype}")
        value = np.asarray(value, dtype=dtype.newbyteorder("="))
        if value.size >= _EQUAL and _all_equal(value):
            one = self._tensor(value.reshape(-1)[:1].copy())
            return {"filled": {"shape": [*value.shape], "tensor": one}}
        said = {"tensor": self._tensor(value.T if _fortran(value) else value)}
        return {"array": said | ({"order": "F"} if _fortran(value) else {})}

    def _masked(self, value: np.ma.MaskedArray) -> Any:
        return {"masked": [self._inside("data", value.data), self._inside("mask", value.mask)]}

    def _sparse(self, value: Any) -> Any:
        parts = {
            name: self._inside(name, getattr(value, name)) for name in ("data", "indices", "indptr")
        }
        return {"sparse": {"class": type(value).__name__, "shape": [*value.shape], **parts}}

    def _torch(self, value: torch.Tensor) -> Any:
        kind = {torch.Tensor: "plain", torch.nn.Parameter: "parameter"}[type(value)]
        array = value.detach().cpu().numpy()
        return {
            "torch": {
                "of": kind,
                "grad": value.requires_grad,
                "array": self._inside("array", array),
            }
        }

    def _random_state(self, value: np.random.RandomState) -> Any:
        return {"random_state": self._inside("state", value.get_state(legacy=False))}

    def _generator(self, value: np.random.Generator) -> Any:
        return {"generator": self._inside("state", value.bit_generator.state)}

    def _other(self, value: Any) -> Any:
        """The structure of an object of another class."""
        raise self._refusal(value, f"a {type(value).__module__}.{type(value).__qualname__}")

    def _where(self) -> str:
        return ".".join(self._path) or "The model"

    def _refusal(self, value: Any, what: str, remedy: str = "") -> TypeError:
        return TypeError(f"{self._where()} is {what}, which files cannot hold{remedy}.")


def _fortran(value: np.ndarray) -> bool:
    return value.flags.f_contiguous and not value.flags.c_contiguous


def _all_equal(value: np.ndarray) -> bool:
    flat = value.reshape(-1) if value.flags.c_contiguous else value.ravel(order="K")
    bits = flat.view(f"u{flat.dtype.itemsize}")
    return bool(bits[0] == bits[-1] and (bits == bits[0]).all())


def _float(value: float) -> Any:
    return value if math.isfinite(value) else {"float": repr(value)}


def _integer(value: int) -> Any:
    return value if abs(value) < 2**63 else {"integer": hex(value)}


def _date(value: np.datetime64 | np.timedelta64) -> Any:
    return {"number": [value.dtype.str[1:], int(value.astype(np.int64))]}


def _scalar(value: np.generic) -> Any:
    return {"number": [value.dtype.str[1:], _ATOMS[type(value.item())](value.item())]}


_ATOMS: dict[type, Callable[[Any], Any]] = {
    type(None): lambda value: value,
    bool: lambda value: value,
    str: lambda value: value,
    int: _integer,
    float: _float,
    slice: lambda value: {"slice": [value.start, value.stop, value.step]},
    np.str_: lambda value: {"number": ["U", str(value)]},
    type(Ellipsis): lambda value: {"ellipsis": None},
}
_NUMBERS = (np.float64, np.float32, np.float16, np.bool_, np.int64, np.int32, np.int16, np.int8)
_NUMBERS += (np.uint64, np.uint32, np.uint16, np.uint8)
_ATOMS |= dict.fromkeys(_NUMBERS, _scalar) | dict.fromkeys((np.datetime64, np.timedelta64), _date)

_KINDS: dict[type, Callable[[Encoder, Any], Any]] = {
    list: Encoder._list,
    tuple: Encoder._tuple,
    dict: Encoder._dict,
    OrderedDict: Encoder._ordered,
    set: Encoder._set,
    frozenset: Encoder._set,
    np.ndarray: Encoder._array,
    np.ma.MaskedArray: Encoder._masked,
    scipy.sparse.csr_array: Encoder._sparse,
    scipy.sparse.csr_matrix: Encoder._sparse,
    scipy.sparse.csc_array: Encoder._sparse,
    scipy.sparse.csc_matrix: Encoder._sparse,
    torch.Tensor: Encoder._torch,
    torch.nn.Parameter: Encoder._torch,
    np.random.RandomState: Encoder._random_state,
    np.random.Generator: Encoder._generator,
}
