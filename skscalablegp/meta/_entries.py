"""The entries of one column: their kind, and numbers, dates or names of categories."""

from __future__ import annotations

import datetime
import decimal
import numbers
from functools import cached_property
from typing import Any

import numpy as np

_BOOLEANS = (bool, np.bool_)
_NUMBERS = (numbers.Real, decimal.Decimal, np.bool_)
_DURATIONS = (datetime.timedelta, np.timedelta64)
_DATES = (datetime.date, np.datetime64)
_KIND_OF_DTYPE = {"b": "boolean", "i": "number", "u": "number", "f": "number"}
_KIND_OF_DTYPE |= {"m": "duration", "M": "date"}


class Values:
    """The entries of one column, before their kind is known.

    Parameters
    ----------
    array : ndarray of shape (n_samples,)
    categories : bool
        Whether the container says that they are categories, even if they are numbers.
    """

    def __init__(self, array: np.ndarray, categories: bool = False):
        self.array, self.categories = array, categories
        code = array.dtype.kind
        self.missing = np.zeros(len(array), dtype=bool)
        if code == "O":
            self.missing = np.array([_is_missing(entry) for entry in array], dtype=bool)
        elif code == "f":
            self.missing = np.isnan(array)
        elif code in "mM":
            self.missing = np.isnat(array)

    def kind(self, name: str) -> str:
        """Number, boolean, duration, date or category; all missing entries are numbers."""
        if self.array.dtype.kind == "c":
            raise ValueError(f"Complex data not supported: column {name!r} of X.")
        if self.array.dtype.kind != "O":
            return _KIND_OF_DTYPE.get(self.array.dtype.kind, "category")
        types = set(map(type, self.array[~self.missing]))
        for kind in types:
            _check_type(kind, name)
        if self.categories:
            return "category"
        if not types:
            return "number"
        # A duration of NumPy counts as a number, too, and is therefore tested first.
        kinds = {"boolean": _BOOLEANS, "duration": _DURATIONS, "date": _DATES, "number": _NUMBERS}
        for named, those in kinds.items():
            if all(issubclass(kind, those) for kind in types):
                return named
        return "category"

    def numbers(self, name: str, kind: str) -> np.ndarray:
        """The entries as float64, NaN where they are missing; durations as seconds."""
        array = self.array
        if kind == "duration":
            read = self._known("timedelta64[us]") / np.timedelta64(1, "s")
        elif array.dtype.kind == "O":
            read = np.full(len(array), np.nan)
            try:
                read[~self.missing] = np.array([float(entry) for entry in array[~self.missing]])
            except OverflowError:
                raise infinite(name) from None
        else:
            with np.errstate(over="ignore"):
                read = array.astype(np.float64)
        if np.isinf(read).any():
            raise infinite(name)
        return read

    def dates(self) -> np.ndarray:
        """The entries as dates of microseconds, in their own time zones."""
        return self._known("datetime64[us]")

    def _known(self, dtype: str) -> np.ndarray:
        """Dates or durations, missing where the entries are."""
        if self.array.dtype.kind in "mM":
            return self.array.astype(dtype)
        read = np.full(len(self.array), "NaT", dtype=dtype)
        known = [_without_zone(entry) for entry in self.array[~self.missing]]
        read[~self.missing] = np.array(known, dtype=dtype)
        return read

    @cached_property
    def keys(self) -> list[str | None]:
        """The entries as the names of categories, and None where they are missing."""
        entries = zip(self.array.tolist(), self.missing.tolist(), strict=True)
        return [None if missing else _key(entry) for entry, missing in entries]


def infinite(name: str) -> ValueError:
    return ValueError(
        f"Column {name!r} of X contains infinity (inf), or a value too large for float64. Replace"
        " it by a finite number, or by NaN, which counts as missing."
    )


def _check_type(kind: type, name: str) -> None:
    """Refuse what is neither a number nor a name of a category, such as a dict."""
    if issubclass(kind, numbers.Complex) and not issubclass(kind, numbers.Real):
        raise ValueError(f"Complex data not supported: column {name!r} of X.")
    nameless = kind.__repr__ is object.__repr__ and kind.__str__ is object.__str__
    if nameless or kind.__hash__ is None or issubclass(kind, tuple | frozenset):
        raise TypeError(
            f"argument must be a string or a number, not {kind.__name__!r}: column {name!r} of X"
            " holds an entry of this type."
        )


def _is_missing(entry: Any) -> bool:
    """Whether an entry of a column of objects is missing."""
    if isinstance(entry, str):
        return False
    if entry is None or type(entry).__name__ in ("NAType", "NaTType"):
        return True
    return isinstance(entry, (float, np.generic, decimal.Decimal)) and bool(entry != entry)


def _without_zone(entry: Any) -> Any:
    """The time that a clock in the zone of this date shows."""
    if isinstance(entry, datetime.datetime) and entry.tzinfo is not None:
        return entry.replace(tzinfo=None)
    return entry


def _key(entry: Any) -> str:
    """The name of a category; a whole number has the same one in all types."""
    if isinstance(entry, str):
        return str(entry)
    if isinstance(entry, bytes):
        return entry.decode(errors="replace")
    if isinstance(entry, float | np.floating | decimal.Decimal) and entry % 1 == 0:
        return str(int(entry))
    return str(entry)
