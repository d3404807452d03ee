"""The file from which a fit continues after its process was killed."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from sklearn.utils import check_random_state

from .._calls import Call
from ..storage import Decoder, Encoder, ModelFileError, contents, opened, said_by, structure_of
from ..workers import call_parts, differing, fitted_parts, versions
from .training import Journal

SCHEMA, _KIND = 1, "skscalablegp checkpoint"
# Parameters that do not change what a fit computes.
_LEFT_OUT = {"callbacks", "verbose", "n_jobs", "checkpoint"}
# Parameters of fits inside another one, which get the remaining time of the outer fit.
_LEFT_OUT_INSIDE = _LEFT_OUT | {"max_seconds", "memory_budget"}
_PARTS = ("fit", "seed", "records")


def parts_of(call: Call, inside: bool = False) -> dict[str, str]:
    """A hash and a short text for everything that decides what a fit computes.

    `inside` is whether the fit is part of another one.
    """
    found = call_parts(call, _LEFT_OUT_INSIDE if inside else _LEFT_OUT)
    settings = call.estimator.get_params(deep=False)
    return found | (fitted_parts(call.estimator) if settings.get("warm_start") else {})


def digest_of(parts: dict[str, str]) -> str:
    """One hash for all parts."""
    text = "\n".join(f"{name} {value}" for name, value in sorted(parts.items()))
    return blake2b(text.encode(), digest_size=8).hexdigest()


def _new_seed(random_state: Any) -> int:
    """A seed from NumPy's global generator, as scikit-learn draws it, if that is to be used."""
    return 0 if random_state is not None else int(check_random_state(None).randint(2**31 - 1))


class Checkpoint:
    """One fit's file, which is read once and replaced whenever its journal requests it.

    Parameters
    ----------
    folder : str or path-like
        Made if it does not exist.
    call : Call
        The fit.
    device : torch.device
    warn : callable
        Is told if the file cannot be written later.

    Attributes
    ----------
    path : Path
    journal : Journal
    resumed : float
        Seconds of the earlier fit that the file has; 0 if there was no file.

    Raises
    ------
    ModelFileError
        For a file of another fit, and a damaged one.
    OSError
        If the folder cannot be used.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        call: Call,
        device: torch.device,
        warn: Callable[[str], None],
    ):
        parts = parts_of(call)
        # A file of other versions or another device belongs to this fit, and is refused.
        fit = f"{type(call.estimator).__name__}-{digest_of(parts)}"
        self._parts = parts | versions() | {"device": str(device)}
        self._warn, self.resumed = warn, 0.0
        self.path = Path(folder) / f"{fit}.safetensors"
        found: dict[str, Any] = {}
        if self.path.exists():
            self._seed, found = self._read()
            self.resumed = max((r["seconds"] for r in found.values()), default=0.0)
        else:
            self._seed = _new_seed(call.estimator.random_state)
            self._begin()
        self.journal = Journal(found, self._seed, self._write_or_warn)

    def _read(self) -> tuple[int, dict[str, Any]]:
        try:
            with opened(self.path) as tensors:
                structure = structure_of(tensors, _KIND, SCHEMA)
                decoder = Decoder(tensors, structure["checksums"])
                fit, seed, records = (decoder(structure[name]) for name in _PARTS)
            if said := differing({"here": self._parts, "in the file": fit}):
                raise ModelFileError(f"it belongs to another fit: {said}")
            if type(seed) is not int or not 0 <= seed < 2**32 or type(records) is not dict:
                raise ModelFileError("it has no seed and records")
            for record in records.values():
                if type(record) is not dict or type(record["seconds"]) is not float:
                    raise ModelFileError("it has a record without its time")
        except OSError:
            raise
        except Exception as error:
            raise self.refusal(error) from error
        return seed, records

    def refusal(self, error: Exception) -> ModelFileError:
        """The error about a file from which this fit cannot continue."""
        said = said_by(self.path, error, "", "cannot be continued")
        advice = "Delete it to start this fit from the beginning, or give another folder."
        return ModelFileError(f"{said} {advice}")

    def _write(self, records: dict[str, Any]) -> None:
        values = {"fit": self._parts, "seed": self._seed, "records": records}
        contents(_KIND, SCHEMA, Encoder(), **values).write(self.path)

    def _begin(self) -> None:
        """Write a first file, which shows before any work whether files can be written."""
        folder = self.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._write({})
        except OSError as error:
            raise OSError(
                f"checkpoint={str(folder)!r} is not a folder in which files can be written "
                f"({type(error).__name__}: {error}): give another one."
            ) from error

    def _write_or_warn(self, records: dict[str, Any]) -> None:
        try:
            self._write(records)
        except OSError as error:
            self._warn(f"The checkpoint {self.path} could not be written: {error}.")

    def end(self, unfinished: bool) -> None:
        """Write what is new for a fit that is unfinished; remove the file of one that is not."""
        if unfinished:
            self.journal.write()
        else:
            self.path.unlink(missing_ok=True)
