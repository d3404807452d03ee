"""Tables of numbers, categories, booleans, dates and missing values, as one array of numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.utils import check_array
from torch import Tensor, nn

from ..kernels import NotExportable
from ._entries import Values, infinite

# Largest number of categories that get a column each.
_MOST_LEVELS = 20
# Largest number of sentences of a description that are about one column each.
_MOST_SENTENCES = 10
# Dates as text: years first or last, without separators, or with the name of a month.
_MONTH = "(jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*"
_DATE_TEXT = re.compile(
    r"(\d{4}[-/.]\d{1,2}[-/.]\d{1,2}"
    r"|\d{1,2}[-/.]\d{1,2}[-/.](\d{4}|\d{2})"
    r"|(19|20)\d\d(0[1-9]|1[0-2])([0-2]\d|3[01])"
    rf"|{_MONTH}[-. ]+\d{{1,2}},? +\d{{4}}|\d{{1,2}}[-. ]+{_MONTH}[-., ]+(\d{{4}}|\d{{2}}))"
    r"([T ].*)?$",
    re.IGNORECASE,
)
# Number of columns that a sentence about many columns names.
_NAMED = 3

_PLURAL = {
    "number": "numbers",
    "boolean": "booleans",
    "duration": "durations",
    "date": "dates",
    "category": "categories",
}
_ACCEPTED = {
    "number": ("number", "boolean"),
    "boolean": ("boolean", "number"),
    "duration": ("duration",),
    "date": ("date",),
}


class TableEncoder:
    """A table of numbers, categories, booleans, dates and missing values as one float64 array.

    Numbers stay as they are, and booleans become 0 and 1. A missing number becomes the median of
    the column. A column that has missing entries in the fitted table also gets a column that says
    where. Categories get a column each if there are up to 20 of them, and one column if there are
    two. More categories become integer codes, which `TargetCodes` replaces. A date becomes the days
    since the first one. The day of the year, the weekday and the hour are added where they vary. A
    duration becomes its seconds.

    Columns are known by their position, so that the table may come in another container later.

    Attributes
    ----------
    names_ : list of str
        The names of the encoded columns, such as ``"x0"``, ``"city=Rome"``, ``"age missing"`` or
        ``"sold_on.weekday"``.
    source_ : list of int
        The index of the original column of each encoded column.
    codes_ : list of int
        The indices of the encoded columns that hold codes of more than 20 categories. A missing
        category and one that the fitted table does not have are -1.
    n_features_in_ : int
        The number of columns of the fitted table.
    """

    names_: list[str]
    source_: list[int]
    codes_: list[int]
    n_features_in_: int

    def fit(self, X: Any) -> TableEncoder:
        """Learn the kinds of the columns, their categories and medians.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, n_features)

        Returns
        -------
        self : TableEncoder
        """
        X, names = _checked(X)
        plain = _plain(X, names)
        self._columns: list[_Numbers | _Dates | _Categories]
        if plain is not None:
            medians = np.median(plain, axis=0)
            columns = zip(names, medians, strict=True)
            self._columns = [_Numbers(name, "number", float(at), False) for name, at in columns]
        else:
            self._columns = [_learned(_column(X, j), name) for j, name in enumerate(names)]
        self._all_numbers = all(type(column) is _Numbers for column in self._columns)
        self._all_numbers &= not any(column.had_missing for column in self._columns)
        self.n_features_in_ = len(names)
        self.names_, self.source_, self.codes_ = [], [], []
        for j, column in enumerate(self._columns):
            if isinstance(column, _Categories) and column.coded:
                self.codes_.append(len(self.names_))
            self.names_ += column.names
            self.source_ += [j] * len(column.names)
        return self

    def transform(self, X, validated: bool = False) -> np.ndarray:
        """The encoded table.

        Parameters
        ----------
        X : data frame or array-like of shape (n_samples, n_features)
        validated : bool, default=False
            Whether X is a float64 array that scikit-learn has validated. A second check of a single
            row takes a tenth of the time of its prediction.

        Returns
        -------
        encoded : ndarray of shape (n_samples, n_encoded)
            Of type float64, without NaN and infinity. A float64 array of numbers, fitted and
            transformed without missing entries, is returned itself.
        """
        if not validated:
            X, _ = _checked(X)
        if X.shape[1] != self.n_features_in_:
            raise ValueError(
                f"X has {X.shape[1]} columns, but the model was fitted with {self.n_features_in_}."
            )
        if self._all_numbers:
            plain = _plain(X, [column.name for column in self._columns])
            if plain is not None:
                return plain
        encoded = np.empty((X.shape[0], len(self.names_)))
        at, unseen = 0, []
        for j, column in enumerate(self._columns):
            entries = _column(X, j)
            for values in column.encoded(entries):
                encoded[:, at] = values
                at += 1
            if found := column.unseen(entries):
                unseen.append(f"{found} in column {column.name!r}")
        if unseen:
            warnings.warn(
                f"X holds entries that the fit has not seen: {listed(unseen)}. Predictions have "
                "the uncertainty of entries that it has seen, which may be too small: fit again to "
                "a table that holds them.",
                stacklevel=2,
            )
        return encoded

    def may_meet(self) -> str:
        """Which entries a later table may have that the fitted one does not; empty for numbers."""
        if self._all_numbers:
            return ""
        named = [column.name for column in self._columns if isinstance(column, _Categories)]
        whole = [column.name for column in self._columns if not column.had_missing]
        parts = [f"other categories in {listed(named)}"] if named else []
        parts += [f"missing entries in {listed(whole)}"] if whole else []
        if not parts:
            return ""
        return (
            f"the fit has not seen {' and '.join(parts)}: their predictions have the uncertainty "
            "of entries that it has seen"
        )

    def dates_as_text(self) -> list[str]:
        """The columns of categories that are dates, written as text."""
        return [
            column.name
            for column in self._columns
            if isinstance(column, _Categories)
            and column.text
            and all(level is None or _DATE_TEXT.match(level) for level in column.index)
        ]

    def module(self) -> nn.Module:
        """`transform` as a torch module, for tables of numbers and missing numbers.

        Raises
        ------
        NotExportable
            For a column of dates, durations or categories.
        """
        for column in self._columns:
            if column.kind not in ("number", "boolean"):
                raise NotExportable(
                    f"Column {column.name!r} holds {_PLURAL[column.kind]}, and an exported model "
                    "takes numbers alone: turn the column into numbers before the fit, for example "
                    "by a OneHotEncoder."
                )
        return _EncoderModule(self._columns)

    def describe(self) -> list[str]:
        """What becomes of the columns that are not plain numbers.

        Returns
        -------
        sentences : list of str
            One for each such column, or one for each kind of column where these are many.
        """
        told = [(column.name, *column.told()) for column in self._columns]
        told = [sentence for sentence in told if sentence[1]]
        if len(told) <= _MOST_SENTENCES:
            return [f"{name}: {one}" for name, one, _ in told]
        groups: dict[str, list[tuple[str, str]]] = {}
        for name, one, many in told:
            groups.setdefault(many, []).append((name, one))
        return [
            f"{len(group)} {many}: {listed([name for name, _ in group])}"
            if len(group) > 1
            else f"{group[0][0]}: {group[0][1]}"
            for many, group in groups.items()
        ]


class _EncoderModule(nn.Module):
    """Columns of numbers with their medians in place of NaN, and columns that say where."""

    medians: Tensor

    def __init__(self, columns: list[_Numbers]):
        super().__init__()
        medians = torch.tensor([column.median for column in columns], dtype=torch.float64)
        self.register_buffer("medians", medians)
        self._missing = [j for j, column in enumerate(columns) if column.had_missing]
        # The indicator of missing entries comes after its column.
        self._order = list(range(len(columns)))
        for k, j in enumerate(self._missing):
            self._order.insert(self._order.index(j) + 1, len(columns) + k)

    def forward(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m q"]:
        missing = X.isnan()
        filled = torch.where(missing, self.medians, X)
        if not self._missing:
            return filled
        where = missing[:, self._missing].to(X.dtype)
        return torch.cat([filled, where], 1)[:, self._order]


class _Numbers:
    """A column of numbers, booleans or durations."""

    def __init__(self, name: str, kind: str, median: float, had_missing: bool):
        self.name, self.kind, self.median, self.had_missing = name, kind, median, had_missing
        self.names = [name, f"{name} missing"] if had_missing else [name]

    def encoded(self, values: Values) -> list[np.ndarray]:
        """The encoded columns."""
        read = values.numbers(self.name, _same_kind(values, self.name, self.kind))
        missing = np.isnan(read)
        if missing.any():
            read = np.where(missing, self.median, read)
        return [read, missing.astype(float)] if self.had_missing else [read]

    def unseen(self, values: Values) -> str:
        """What the fitted column does not have; empty if nothing."""
        return _unseen_missing(values, self.had_missing)

    def told(self) -> tuple[str, str]:
        """What becomes of it, as a sentence for one column and one for many."""
        parts = {
            "number": ("", "columns of numbers"),
            "boolean": ("a boolean, as 0 and 1", "columns of booleans, as 0 and 1"),
            "duration": ("a duration, as seconds", "columns of durations, as seconds"),
        }
        return _with_missing(*parts[self.kind], self.had_missing)


class _Dates:
    """A column of dates, with or without the time of the day."""

    def __init__(self, name: str, dates: np.ndarray):
        missing = np.isnat(dates)
        known = dates[~missing]
        self.name, self.kind, self.had_missing = name, "date", bool(missing.any())
        self.first = known.min()
        parts = self._parts(known)
        varying = [part for part in parts if part == "days" or np.ptp(parts[part]) > 0]
        self.medians = {part: float(np.median(parts[part])) for part in varying}
        self.names = [f"{name}.{part}" for part in varying]
        self.names += [f"{name} missing"] if self.had_missing else []

    def _parts(self, dates: np.ndarray) -> dict[str, np.ndarray]:
        """The sentences for dates none of which is missing."""
        day = dates.astype("datetime64[D]")
        return {
            "days": (dates - self.first) / np.timedelta64(1, "D"),
            "day of year": (day - day.astype("datetime64[Y]")).astype(float) + 1,
            "weekday": (day.astype(np.int64) + 3) % 7.0,  # the first day of 1970 was a Thursday
            "hour": (dates.astype("datetime64[h]") - day).astype(float),
        }

    def encoded(self, values: Values) -> list[np.ndarray]:
        """The encoded columns."""
        _same_kind(values, self.name, self.kind)
        dates = values.dates()
        missing = np.isnat(dates)
        parts = self._parts(dates[~missing])
        columns = []
        for part, median in self.medians.items():
            column = np.full(len(dates), median)
            column[~missing] = parts[part]
            columns.append(column)
        return [*columns, missing.astype(float)] if self.had_missing else columns

    def unseen(self, values: Values) -> str:
        """What the fitted column does not have; empty if nothing."""
        return _unseen_missing(values, self.had_missing)

    def told(self) -> tuple[str, str]:
        """What becomes of it, as a sentence for one column and one for many."""
        parts = _joined(list(self.medians))
        return _with_missing(
            f"a date, as {parts}", f"columns of dates, as {parts}", self.had_missing
        )


class _Categories:
    """A column of categories."""

    def __init__(self, name: str, keys: Sequence[str | None], text: bool):
        self.name, self.kind, self.text = name, "category", text
        distinct = set(keys)
        self.had_missing = None in distinct
        levels: list[str | None] = list(sorted(key for key in distinct if key is not None))
        self.n_levels = len(levels)
        self.coded = self.n_levels > _MOST_LEVELS
        if self.had_missing and not self.coded:
            levels.append(None)
        self.index = {level: code for code, level in enumerate(levels)}
        # Two categories need one column, an indicator of the second one.
        self.shown = [1] if len(levels) == 2 else list(range(len(levels)))
        names = [f"{name} missing" if key is None else f"{name}={key}" for key in levels]
        self.names = [name] if self.coded else [names[code] for code in self.shown]

    def encoded(self, values: Values) -> Iterable[np.ndarray]:
        """The encoded columns, one at a time."""
        kind = values.kind(self.name)
        strange = kind in ("date", "duration") or (self.text and values.array.dtype.kind in "iuf")
        if strange and not values.missing.all():
            raise _other_kind(values, self.name, self.kind)
        get = self.index.get
        codes = np.array([get(key, -1) for key in values.keys], dtype=float)
        return [codes] if self.coded else ((codes == code) * 1.0 for code in self.shown)

    def unseen(self, values: Values) -> str:
        """What the fitted column does not have; empty if nothing."""
        new = sorted({key for key in values.keys if key is not None} - self.index.keys())
        parts = [listed([repr(key) for key in new])] if new else []
        missing = _unseen_missing(values, self.had_missing)
        return _joined([*parts, missing] if missing else parts) if parts or missing else ""

    def told(self) -> tuple[str, str]:
        """What becomes of it, as a sentence for one column and one for many."""
        count = "1 category" if self.n_levels == 1 else f"{self.n_levels} categories"
        if self.coded:
            how = "encoded by the targets of their rows, and as categories for trees"
            return f"{count}, {how}", f"columns of more than {_MOST_LEVELS} categories, {how}"
        count += " and missing entries" if self.had_missing else ""
        one = "with a column each" if len(self.shown) > 1 else "in one column"
        return f"{count}, {one}", f"columns of at most {_MOST_LEVELS} categories, with 0 and 1"


def _learned(values: Values, name: str) -> _Numbers | _Dates | _Categories:
    """The encoder of one column."""
    kind = values.kind(name)
    if kind == "category":
        known = values.array[~values.missing]
        text = all(isinstance(entry, str | bytes) for entry in known)
        return _Categories(name, values.keys, text and len(known) > 0)
    if kind == "date" and not values.missing.all():
        return _Dates(name, values.dates())
    if kind == "date":
        values, kind = Values(np.full(len(values.array), np.nan)), "number"
    read = values.numbers(name, kind)
    known = read[~np.isnan(read)]
    median = float(np.median(known)) if len(known) else 0.0
    return _Numbers(name, kind, median, len(known) < len(read))


def _same_kind(values: Values, name: str, fitted: str) -> str:
    """Check that the column is of the fitted kind, and return how to read it."""
    kind = values.kind(name)
    if kind in _ACCEPTED[fitted]:
        return kind
    if values.missing.all():
        return "duration" if values.array.dtype.kind in "mM" else "number"
    raise _other_kind(values, name, fitted)


def _other_kind(values: Values, name: str, fitted: str) -> ValueError:
    known = values.array[~values.missing]
    # For a column of mixed entries, name an entry of the wrong type.
    strange = [entry for entry in known.tolist() if isinstance(entry, str | bytes)]
    entry = strange[0] if strange else known[0]
    what = _PLURAL[fitted]
    return ValueError(
        f"Column {name!r} of X held {what} in fit, and now holds {str(entry)!r}. Convert this"
        f" column to {what}, or fit again to a table that holds it as it is now."
    )


def _is_frame(X: Any) -> bool:
    return hasattr(X, "columns") and (hasattr(X, "iloc") or hasattr(X, "to_series"))


def _checked(X: Any) -> tuple[Any, list[str]]:
    """The table, a data frame or an array of two dimensions, and the names of its columns."""
    if _is_frame(X):
        if 0 in X.shape:
            check_array(np.empty(X.shape))  # raises scikit-learn's error
        names = [name if isinstance(name, str) else f"x{j}" for j, name in enumerate(X.columns)]
        return X, names
    if isinstance(X, list | tuple) and np.asarray(X).dtype.kind in "US":
        X = np.asarray(X, dtype=object)  # in which numbers among strings remain numbers
    X = check_array(X, accept_sparse=False, dtype=None, ensure_all_finite=False)
    return X, [f"x{j}" for j in range(X.shape[1])]


def _column(X: Any, j: int) -> Values:
    """One column of a checked table."""
    if isinstance(X, np.ndarray):
        return Values(X[:, j])
    if not hasattr(X, "iloc"):
        column = X.to_series(j)
        if getattr(column.dtype, "time_zone", None) is not None:
            column = column.dt.replace_time_zone(None, ambiguous="earliest")
        return _of_one_dimension(column.to_numpy(), X.columns[j])
    column = X.iloc[:, j]
    if hasattr(column.dtype, "categories"):
        return Values(column.astype(object).to_numpy(), categories=True)
    code = getattr(column.dtype, "kind", "O")
    if code == "M" and column.dt.tz is not None:
        column = column.dt.tz_localize(None)
    if code in "iuf":
        return Values(column.to_numpy(dtype=np.float64, na_value=np.nan))
    return _of_one_dimension(column.to_numpy(), X.columns[j])


def _of_one_dimension(array: np.ndarray, name: Any) -> Values:
    if array.ndim != 1:
        raise TypeError(f"argument must be a string or a number: column {name!r} of X holds lists.")
    return Values(array)


def _plain(X: Any, names: Sequence[str]) -> np.ndarray | None:
    """The table as a float64 array, or None if not all entries are numbers that are there."""
    if isinstance(X, np.ndarray):
        if X.dtype.kind not in "iufb":
            return None
        with np.errstate(over="ignore"):
            array = X.astype(np.float64, copy=False)
    elif hasattr(X, "iloc"):
        if not all(getattr(dtype, "kind", "O") in "iuf" for dtype in X.dtypes):
            return None
        if any(hasattr(dtype, "categories") for dtype in X.dtypes):
            return None
        array = X.to_numpy(dtype=np.float64, na_value=np.nan)
    else:
        if not all(dtype.is_integer() or dtype.is_float() for dtype in X.dtypes):
            return None
        array = X.to_numpy().astype(np.float64, copy=False)
    if np.isfinite(array).all():
        return array
    places = np.isinf(array).any(axis=0)
    if places.any():
        raise infinite(names[int(np.argmax(places))])
    return None


def _with_missing(one: str, many: str, had_missing: bool) -> tuple[str, str]:
    """Sentences that also tell what becomes of missing entries."""
    if not had_missing:
        return one, many
    median = "missing entries are replaced by the median and marked in a further column"
    return f"{one}; {median}" if one else median, f"{many}; {median}"


def _unseen_missing(values: Values, had_missing: bool) -> str:
    return "missing entries" if values.missing.any() and not had_missing else ""


def _joined(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def listed(names: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    if len(names) <= _NAMED + 1:
        return _joined(names)
    return f"{', '.join(names[:_NAMED])} and {len(names) - _NAMED} more"
