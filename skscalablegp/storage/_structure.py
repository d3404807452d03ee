"""The structure in the metadata of a file: what it is, its schema, who wrote it, and checksums."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import sklearn
import torch

from .. import __version__
from ._codec import Encoder
from ._container import Contents, Tensors
from ._errors import ModelFileError
from ._json import parse


def contents(kind: str, schema: int, encoder: Encoder, **values: Any) -> Contents:
    """A file of some values, which the encoder encodes.

    Parameters
    ----------
    kind : str
        The program and what the file is.
    schema : int
        The number of the schema of `values`.
    encoder : Encoder
    **values
    """
    structure = {
        "schema": schema,
        "written_by": {
            "skscalablegp": __version__,
            "scikit-learn": sklearn.__version__,
            "numpy": np.__version__,
            "torch": torch.__version__.partition("+")[0],
        },
        **{name: encoder(value) for name, value in values.items()},
        "checksums": encoder.checksums,
    }
    text = json.dumps(structure, separators=(",", ":"), allow_nan=False)
    metadata = {
        "format": kind,
        "sha256": hashlib.sha256(text.encode("ascii")).hexdigest(),
        "structure": text,
    }
    return Contents(encoder.tensors, metadata)


def structure_of(tensors: Tensors, kind: str, schema: int) -> dict[str, Any]:
    """The structure of a file of this kind, of a schema up to the given one; nothing is decoded.

    Raises
    ------
    ModelFileError
        For a file of another kind or of a later schema, or a damaged one.
    """
    metadata = tensors.metadata
    if metadata.get("format") != kind or "structure" not in metadata:
        raise ModelFileError("it is a file of another program")
    text = metadata["structure"].encode()
    if hashlib.sha256(text).hexdigest() != metadata.get("sha256"):
        raise ModelFileError("its structure does not match its checksum")
    structure = parse(text, "its structure", tensors.size)
    if not isinstance(structure, dict) or type(structure.get("schema")) is not int:
        raise ModelFileError("its structure has no schema")
    if structure["schema"] > schema:
        raise ModelFileError(
            f"it has schema {structure['schema']}, and this version of skscalablegp reads schemas "
            f"up to {schema}: update it. It was written by {structure.get('written_by')!r:.200}"
        )
    sums = structure.get("checksums")
    if not isinstance(sums, dict) or set(sums) != tensors.names:
        raise ModelFileError("its checksums are not those of its tensors")
    return structure


def said_by(path: Any, error: Exception, written: str, what: str) -> ModelFileError:
    """The error about a file that cannot be used, in one sentence or two."""
    own = isinstance(error, ModelFileError)
    cause = str(error) if own else f"{type(error).__name__}: {error}"
    by = f" It says that it was written by {written:.300}." if written else ""
    return ModelFileError(" ".join(f"{path} {what}: {cause.rstrip('.'):.500}.{by}".split()))
