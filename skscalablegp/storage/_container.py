"""The container: one file in the safetensors format, written whole and read with suspicion.

The format is eight bytes with the length of a JSON header, the header, and the bytes of all tensors
in a row. It is read and written here, and not by its library, so that a file costs no more memory
than its tensors, every tensor is checked, and the base installation suffices. Any reader of
safetensors opens the files.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ._errors import ModelFileError
from ._json import MOST_BYTES, parse

# The dtypes of the format, in the byte order of files.
DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "|i1",
    "U64": "<u8",
    "U32": "<u4",
    "U16": "<u2",
    "U8": "|u1",
    "BOOL": "|b1",
}
_CODES = {np.dtype(name): code for code, name in DTYPES.items()}
_MOST_DIMENSIONS = 8


def storable(dtype: np.dtype) -> bool:
    """Whether the format has this dtype, in any byte order."""
    return dtype.newbyteorder("<") in _CODES


def checksum(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes."""
    return hashlib.sha256(_bytes_of(array)).hexdigest()


def _bytes_of(array: np.ndarray) -> memoryview:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return little.reshape(-1).view(np.uint8).data


class Contents:
    """Tensors by name and text, laid out as a file.

    Parameters
    ----------
    tensors : mapping of str to ndarray
    metadata : mapping of str to str
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]):
        # The largest items first, so that every tensor is aligned.
        names = sorted(tensors, key=lambda name: -tensors[name].dtype.itemsize)
        self._tensors = [tensors[name] for name in names]
        header: dict[str, Any] = {"__metadata__": dict(metadata)}
        at = 0
        for name, tensor in zip(names, self._tensors, strict=True):
            code = _CODES[tensor.dtype.newbyteorder("<")]
            offsets = [at, at := at + tensor.nbytes]
            header[name] = {"dtype": code, "shape": list(tensor.shape), "data_offsets": offsets}
        text = json.dumps(header, separators=(",", ":")).encode("ascii")
        self._header = text + b" " * (-len(text) % 8)
        self.size = 8 + len(self._header) + at
        if len(self._header) > MOST_BYTES:
            raise ValueError(
                f"The structure of the model takes {len(self._header):,} bytes, and a file may "
                f"have {MOST_BYTES:,}. Arrays do not count: the model has too many small parts."
            )

    def write(self, path: Path) -> None:
        """Write beside `path` and rename, so that there is always the old or the new file."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            with open(part, "xb") as file:
                file.write(len(self._header).to_bytes(8, "little"))
                file.write(self._header)
                for tensor in self._tensors:
                    file.write(_bytes_of(tensor))
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        finally:
            part.unlink(missing_ok=True)


class Tensors:
    """The tensors of an open file, read one by one."""

    def __init__(self, file: FileIO, header: Mapping[str, Any], start: int, end: int):
        self._file, self._start, self._length, self.size = file, start, end - start, end
        self.metadata = _metadata(header)
        self._places = {
            name: self._place(name, it) for name, it in header.items() if name != "__metadata__"
        }
        self._check_places()
        self.names = frozenset(self._places)

    def _place(self, name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
        if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ModelFileError(f"tensor {name!r} is not described by dtype, shape and offsets")
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(code, str) or code not in DTYPES:
            raise ModelFileError(f"tensor {name!r} has the unknown dtype {code!r:.40}")
        if not _sizes(shape) or not _sizes(offsets) or len(offsets) != 2:
            raise ModelFileError(f"tensor {name!r} has no valid shape and offsets")
        dtype = np.dtype(DTYPES[code])
        if prod(shape) * dtype.itemsize != offsets[1] - offsets[0]:
            raise ModelFileError(f"tensor {name!r} has a shape that its bytes do not fill")
        return dtype, tuple(shape), offsets[0], offsets[1]

    def _check_places(self) -> None:
        """The tensors fill the rest of the file, without gaps and overlaps."""
        at = 0
        for start, stop in sorted(place[2:] for place in self._places.values()):
            if start != at:
                raise ModelFileError("the tensors overlap or leave gaps")
            at = stop
        if at != self._length:
            raise ModelFileError(
                f"the tensors take {at:,} bytes, and the file has {self._length:,}: it was "
                "truncated or has extra bytes"
            )

    def described(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Dtype and shape of a tensor, without reading it."""
        return self._places[name][:2]

    def read(self, name: str, expected: str) -> np.ndarray:
        """A tensor, whose checksum has to be the expected one."""
        dtype, shape, start, _ = self._places[name]
        array = np.empty(shape, dtype)
        view = array.reshape(-1).view(np.uint8).data
        self._file.seek(self._start + start)
        if self._file.readinto(view) != len(view) or hashlib.sha256(view).hexdigest() != expected:
            raise ModelFileError(f"tensor {name!r} does not match its checksum")
        if dtype.kind == "b" and len(view) and array.view(np.uint8).max() > 1:
            raise ModelFileError(f"tensor {name!r} has booleans other than 0 and 1")
        return array.astype(dtype.newbyteorder("="), copy=False)


@contextmanager
def opened(path: Path) -> Iterator[Tensors]:
    """The tensors and the metadata of a file.

    Raises
    ------
    ModelFileError
        For a file that is no valid container.
    OSError
        For a file that cannot be read.
    """
    with open(path, "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ModelFileError("it is not a regular file")
        size = status.st_size
        length = int.from_bytes(file.read(8), "little")
        if size < 10 or length > size - 8:
            raise ModelFileError("it does not begin with the length of a header, or was truncated")
        if length > MOST_BYTES:
            raise ModelFileError(f"its header of {length:,} bytes is too large")
        header = parse(file.read(length), "its header", size)
        if not isinstance(header, dict):
            raise ModelFileError("its header is not a JSON object")
        yield Tensors(file, header, 8 + length, size)


def _metadata(header: Mapping[str, Any]) -> dict[str, str]:
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or any(type(v) is not str for v in metadata.values()):
        raise ModelFileError("its header has no metadata")
    return metadata


def _sizes(value: Any) -> bool:
    return (
        isinstance(value, list)
        and len(value) <= _MOST_DIMENSIONS
        and all(type(item) is int and 0 <= item < 2**63 for item in value)
    )
