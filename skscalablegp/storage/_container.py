"""The container: one file in the safetensors format, written whole and read with suspicion.

The library of the format writes and reads tensors, without further copies of them. Here are the
checks that it does not make, of text before it is parsed and of tensors after they are read.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from ._errors import ModelFileError
from ._json import MOST_BYTES, parse

# The dtypes that files have, in the order in which the library writes the tensors.
_NUMBERS = ("U64", "I64", "F64", "F32", "U32", "I32", "F16", "U16", "I16", "I8", "U8")
DTYPES = {code: np.dtype(f"{code[0].lower()}{int(code[1:]) // 8}") for code in _NUMBERS}
DTYPES["BOOL"] = np.dtype(bool)
_CODES = {dtype: code for code, dtype in DTYPES.items()}


def storable(dtype: np.dtype) -> bool:
    """Whether files have this dtype, in any byte order."""
    return dtype.newbyteorder("=") in _CODES


def checksum(array: np.ndarray) -> str:
    """SHA-256 of an array's bytes, in the byte order of files."""
    little = np.asarray(array, dtype=array.dtype.newbyteorder("<"))
    return hashlib.sha256(little.reshape(-1).view(np.uint8).data).hexdigest()


class Contents:
    """Tensors by name and text, laid out as a file.

    Parameters
    ----------
    tensors : mapping of str to ndarray
        Contiguous arrays in the byte order of the machine, whose names are printable ASCII.
    metadata : mapping of str to str
        The same.

    Attributes
    ----------
    size : int
        Of the file in bytes.

    Raises
    ------
    ValueError
        For a header that could not be read.
    """

    def __init__(self, tensors: Mapping[str, np.ndarray], metadata: Mapping[str, str]):
        self._tensors, self._metadata = dict(tensors), dict(metadata)
        # The header as the library writes it.
        places, at = {}, 0
        by_code = {name: list(DTYPES).index(_CODES[it.dtype]) for name, it in tensors.items()}
        for name in sorted(tensors, key=lambda name: (by_code[name], name)):
            tensor = tensors[name]
            said = {"dtype": _CODES[tensor.dtype], "shape": tensor.shape}
            places[name] = {**said, "data_offsets": [at, at := at + tensor.nbytes]}
        header = json.dumps({"__metadata__": self._metadata, **places}, separators=(",", ":"))
        length = len(header) + -len(header) % 8
        self.size = 8 + length + at
        if length > MOST_BYTES:
            raise ValueError(
                f"The structure of the model takes {length:,} bytes, and a file may "
                f"have {MOST_BYTES:,}. Arrays do not count: the model has too many small parts."
            )

    def write(self, path: Path) -> None:
        """Write beside `path` and rename, so that there is always the old or the new file."""
        part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            # The library replaces the file, by one that its owner alone may read.
            with open(part, "xb") as file:
                mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            save_file(self._tensors, part, self._metadata)
            part.chmod(mode)
            with open(part, "rb+") as file:
                os.fsync(file.fileno())
            os.replace(part, path)
        except SafetensorError as error:
            raise OSError(f"{path} cannot be written: {error}") from error
        finally:
            part.unlink(missing_ok=True)


class Tensors:
    """The tensors of an open file, read one by one.

    Attributes
    ----------
    names : frozenset of str
    metadata : dict of str to str
    size : int
        Of the file in bytes.
    """

    def __init__(self, file: Any, size: int):
        self._file, self.size = file, size
        self.names, self.metadata = frozenset(file.keys()), file.metadata() or {}

    def read(self, name: str, expected: str) -> np.ndarray:
        """A tensor, whose checksum has to be the expected one."""
        code = self._file.get_slice(name).get_dtype()
        if code not in DTYPES:
            raise ModelFileError(f"tensor {name!r} has the unknown dtype {code!r:.40}")
        array = self._file.get_tensor(name)
        if checksum(array) != expected:
            raise ModelFileError(f"tensor {name!r} does not match its checksum")
        if code == "BOOL" and array.view(np.uint8).max(initial=0) > 1:
            raise ModelFileError(f"tensor {name!r} has booleans other than 0 and 1")
        return array


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
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise ModelFileError("it is not a regular file")
    with open(path, "rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if length > status.st_size - 8:
            raise ModelFileError("it does not begin with the length of a header, or was truncated")
        if length > MOST_BYTES:
            raise ModelFileError(f"its header of {length:,} bytes is too large")
        # The library reads the header again, and would take a key twice, and text of any size.
        parse(file.read(length), "its header", status.st_size)
    try:
        # Mapped memory would end the process if the file became shorter.
        file = safe_open(path, framework="numpy", backend="pread")
    except SafetensorError as error:
        raise ModelFileError(f"its tensors cannot be read: {error}") from None
    with file:
        yield Tensors(file, status.st_size)
