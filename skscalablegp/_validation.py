"""Validation of users' input, with error messages that say what to do.

Tables are validated by scikit-learn's ``validate_data``; this module has the other checks. Its
functions only read their arguments (and, for memory, the machine).
"""

from __future__ import annotations

import datetime
import math
import os
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn import config_context
from sklearn.base import is_regressor
from sklearn.utils.validation import validate_data

from ._devices import free_memory
from ._frames import readable

# Accepted magnitudes: within the range of single precision, in which some models compute, and with
# ratios that can be squared in double precision.
_LARGEST, _SMALLEST = 1e30, 1e-30
# Parts of the messages of errors that strings raise on their conversion to numbers.
_CONVERSION = "could not convert", "Cannot cast", "could not be promoted"


# ---------------------------------------------------------------- tables


def validated(estimator: Any, X: Any = "no_validation", y: Any = "no_validation", **rules: Any):
    """Call scikit-learn's ``validate_data``, and check magnitudes; returns NumPy arrays.

    Arrays of other libraries are converted to NumPy even if scikit-learn's array API dispatch is
    enabled, which would leave them as they are.

    Parameters
    ----------
    estimator : estimator
    X, y : array-like
    **rules
        Arguments of ``validate_data``.

    Raises
    ------
    ValueError
        If scikit-learn refuses the table, or numbers are too large or too small to compute with.
    """
    if isinstance(y, str) and _is_valid(estimator, X, **rules):
        return X
    X = readable(X)
    learns_numbers = rules.get("reset", True) and not rules.get("skip_check_array")
    with config_context(array_api_dispatch=False):
        try:
            if learns_numbers and _has_dates(X):
                raise TypeError(_CONVERSION[0])
            checked = validate_data(estimator, X, y, **rules)
        except (TypeError, ValueError) as error:
            if str(error).startswith("y should be a 1d array") and is_regressor(estimator):
                name = type(estimator).__name__
                raise ValueError(
                    f"{error} {name} has a single target: use "
                    f"sklearn.multioutput.MultiOutputRegressor({name}(...))."
                ) from error
            if not _is_conversion(error, X):
                raise
            raise ValueError(_not_numbers(type(estimator).__name__, X, error)) from error
    if not rules.get("skip_check_array"):
        parts = checked if isinstance(checked, tuple) else (checked,)
        if rules.get("y_numeric") and parts[-1].dtype.kind not in "fiub":
            first = parts[-1].ravel().tolist()[0]
            raise ValueError(
                f"y must hold numbers for {type(estimator).__name__}, got {first!r}: "
                "convert them, or use a classifier for labels."
            )
        # Squares of half precision overflow from 256 on.
        parts = tuple(part.astype(np.float64) if _is_half(part) else part for part in parts)
        checked = parts if isinstance(checked, tuple) else parts[0]
        for name, part in zip(("X", "y"), parts, strict=False):
            check_magnitude(name, part, smallest=rules.get("reset", True))
    return checked


def _is_half(part: Any) -> bool:
    return getattr(part, "dtype", None) == np.float16


def _is_valid(estimator: Any, X: Any, dtype: Any = None, reset: bool = True, **rules: Any) -> bool:
    """Whether rows to predict are an array that the checks would return as it is.

    For one row the checks of ``validate_data`` take longer than the prediction of most models.
    """
    if reset or rules or type(X) is not np.ndarray or X.ndim != 2 or not X.size:
        return False
    accepted = dtype if isinstance(dtype, list) else [dtype]
    known = vars(estimator)
    if X.dtype not in accepted or None in accepted or "feature_names_in_" in known:
        return False
    largest = max(X.max(), -X.min())  # NaN if an entry is
    return X.shape[1] == known.get("n_features_in_") and bool(largest <= _LARGEST)


def _is_conversion(error: Exception, X: Any) -> bool:
    """Whether an error says that strings or dates are no numbers."""
    if any(words in str(error) for words in _CONVERSION):
        return not _is_numeric(X)
    return "float() argument" in str(error) and _holds_dates(X)


def _has_dates(X: Any) -> bool:
    """Whether a column holds dates, which some containers turn into numbers silently."""
    if hasattr(X, "columns"):
        return any(_holds_dates(X[name]) for name in X.columns)
    return getattr(getattr(X, "dtype", None), "kind", "") in ("m", "M")


def _not_numbers(estimator: str, X: Any, error: Exception) -> str:
    """The message for a table with strings or dates."""
    columns = {name: X[name] for name in getattr(X, "columns", ())}
    dates = [name for name, values in columns.items() if _holds_dates(values)]
    strings = [name for name in columns if name not in dates and not _is_numeric(columns[name])]
    got, remedies = [], []
    if dates or (not columns and _holds_dates(X)):
        got.append(f"dates in {_places(dates)}")
        remedies.append("turn dates into numbers, such as days since the first one")
    if strings or not got:
        got.append(f"strings in {_places(strings)}")
        if not dates:
            got[-1] += f" ({error})"
        remedies.append(
            "encode categories with OneHotEncoder, or with OrdinalEncoder for a kernel with "
            "kernels.Categorical"
        )
    return (
        f"X must hold numbers for {estimator}, got {' and '.join(got)}: {'; '.join(remedies)}. "
        "AutoGPRegressor and AutoGPClassifier encode such columns themselves."
    )


def _places(names: list[Any]) -> str:
    if not names:
        return "a value"
    return f"column{'s' * (len(names) > 1)} {', '.join(map(repr, names[:5]))}"


def _holds_dates(values: Any) -> bool:
    """Whether values, or the first that are objects, are dates or times."""
    array = np.asarray(values)
    if array.dtype.kind == "O":
        kinds = (datetime.date, datetime.timedelta, np.datetime64, np.timedelta64)
        return any(isinstance(value, kinds) for value in array.ravel()[:1000])
    return array.dtype.kind in "mM"


def _is_numeric(values: Any) -> bool:
    if _has_dates(values):
        return False
    try:
        np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        return False
    return True


def check_magnitude(name: str, values: Any, smallest: bool = True) -> None:
    """Refuse numbers that are too large, or columns that are too small, to compute with.

    Parameters
    ----------
    name : str
        Name of the array in the message, such as "X".
    values : ndarray
        Other arrays than those of floating-point numbers are accepted unchecked.
    smallest : bool, default=True
        Whether to refuse columns of small numbers; rows to predict may be close to zero.

    Raises
    ------
    ValueError
        For an absolute value above 1e30, or a column that is not zero and has none above 1e-30.
    """
    if not isinstance(values, np.ndarray) or values.dtype.kind != "f" or not values.size:
        return
    largest = np.maximum(values.max(axis=0), -values.min(axis=0))
    if np.max(largest) > _LARGEST:
        raise ValueError(
            f"{name} has values of up to {np.max(largest):.1e}, which are too large to compute "
            f"with: divide {name}, or that column, by a constant so that it stays below "
            f"{_LARGEST:g}."
        )
    small = (largest > 0) & (largest < _SMALLEST)
    if smallest and np.any(small):
        least = np.min(largest[small]) if largest.ndim else largest
        raise ValueError(
            f"{name} has a column whose largest value is {least:.1e}, which is too small to "
            f"compute with: multiply it by a constant so that it reaches {_SMALLEST:g}."
        )


# ---------------------------------------------------------------- noise


def check_noise(alpha: Any, n: int) -> np.ndarray:
    """The parameter ``alpha`` as one noise variance per row.

    Parameters
    ----------
    alpha : float or array-like of shape (n,)
        Added to the diagonal of the kernel matrix. One entry counts as a scalar.
    n : int
        Number of training rows.

    Returns
    -------
    noise : ndarray of shape (n,), float64
        A new array.
    """
    return _per_row(alpha, n, "alpha")


def check_noise_variance(noise_variance: Any, n: int, t: int = 1) -> np.ndarray | None:
    """The argument ``noise_variance`` as one variance per row and target; None stays None.

    Parameters
    ----------
    noise_variance : float, array-like of shape (n,) or (n, t), or None
        Known variance of the noise in each target value.
    n : int
        Number of rows.
    t : int, default=1
        Number of targets.

    Returns
    -------
    noise : ndarray of shape (n, t), float64, or None
        A new array.
    """
    if noise_variance is None:
        return None
    array = _array(noise_variance, "noise_variance")
    if array.shape == (n, t):
        flat = array.reshape(-1)
        return _per_row(flat, n * t, "noise_variance").reshape(n, t)
    return np.repeat(_per_row(noise_variance, n, "noise_variance")[:, None], t, axis=1)


def check_sample_weight(sample_weight: Any, n: int) -> np.ndarray | None:
    """The argument ``sample_weight`` as one weight per row; None stays None.

    Parameters
    ----------
    sample_weight : float, array-like of shape (n,), or None
        How many equal rows a row counts as.
    n : int
        Number of rows.

    Returns
    -------
    weights : ndarray of shape (n,), float64, or None
        A new array.

    Raises
    ------
    ValueError
        For weights that are no finite, non-negative numbers, or all zero.
    """
    if sample_weight is None:
        return None
    weights = _per_row(sample_weight, n, "sample_weight")
    if not weights.any():
        raise ValueError(
            f"sample_weight is zero for all {n} rows, which leaves no row to fit: give at least "
            "one row a positive weight."
        )
    small = (weights > 0) & (weights < _SMALLEST)
    if small.any():
        raise ValueError(
            f"sample_weight must be zero or at least {_SMALLEST:g}, got "
            f"{_first_wrong(weights, small)}."
        )
    return weights


def _per_row(value: Any, n: int, name: str) -> np.ndarray:
    accepted = "pass a scalar or one value per row"
    array = _array(value, name)
    if array.dtype.kind not in "fiub":
        try:
            if array.dtype.kind == "c":
                raise TypeError
            array = array.astype(np.float64)
        except (TypeError, ValueError):
            raise ValueError(f"{name} must hold real numbers, got {value!r}: {accepted}.") from None
    array = array.astype(np.float64)
    if array.ndim > 1:
        raise ValueError(f"{name} has shape {array.shape} for {n} rows: {accepted}.")
    if array.ndim == 1 and array.size not in (1, n):
        raise ValueError(
            f"{name} must be a scalar or an array with same number of entries as y. "
            f"({array.size} != {n})"
        )
    rules = (
        (~np.isfinite(array), "finite"),
        (array < 0, "non-negative"),
        (array > _LARGEST, f"at most {_LARGEST:g}"),
    )
    for wrong, rule in rules:
        if np.any(wrong):
            raise ValueError(f"{name} must be {rule}, got {_first_wrong(array, wrong)}.")
    return np.full(n, array.item()) if array.size == 1 else array


def _array(value: Any, name: str) -> np.ndarray:
    try:
        return np.asarray(value)
    except ValueError:  # lists of unequal lengths
        raise ValueError(f"{name} must be a scalar or an array, got {value!r}.") from None


def check_share(share: Any, name: str) -> np.ndarray:
    """Probabilities strictly between 0 and 1, as a float64 array of at most one axis.

    Parameters
    ----------
    share : float or array-like of shape (k,)
    name : str
        Name of the argument in the message.
    """
    try:
        array = np.asarray(share, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.empty(0)
    if array.ndim > 1 or not array.size or not ((array > 0) & (array < 1)).all():
        raise ValueError(
            f"{name} must lie strictly between 0 and 1 (0.95 for 95%), and be one number or a list "
            f"of numbers; got {share!r}."
        )
    return array


def check_coverage(coverage: Any) -> np.ndarray:
    """The probabilities of the two ends of a central interval.

    Parameters
    ----------
    coverage : float
        Probability of the interval, strictly between 0 and 1.
    """
    share = check_share(coverage, "coverage")
    if share.ndim:
        raise ValueError(f"coverage must be one number between 0 and 1, got {coverage!r}.")
    return np.array([0.5 - 0.5 * share, 0.5 + 0.5 * share])


def _first_wrong(array: np.ndarray, wrong: np.ndarray | np.bool_) -> str:
    if array.ndim == 0:
        return f"{array.item():g}"
    rows = np.flatnonzero(wrong)
    more = f" and {len(rows) - 1} more" if len(rows) > 1 else ""
    return f"{array[rows[0]]:g} in entry {rows[0]}{more}"


def check_duplicates(X: np.ndarray, total_noise: Any, counts: np.ndarray | float = 1.0) -> None:
    """Refuse equal rows without noise, whose kernel matrix is singular; O(n d log n).

    Parameters
    ----------
    X : ndarray of shape (n, d)
        The training table.
    total_noise : float or ndarray of shape (n,)
        The sum of alpha, noise_variance and the kernel's white noise.
    counts : ndarray of shape (n,), optional
        The number of equal rows for which a row stands, or its weight.
    """
    noiseless = np.broadcast_to(np.asarray(total_noise) == 0, (X.shape[0],))
    repeated = np.count_nonzero(noiseless & (counts != 1))
    if repeated:
        raise ValueError(
            f"{repeated} of the {X.shape[0]} different rows of X are repeated, or have a "
            "sample_weight other than one, while the noise is exactly zero, so that the kernel "
            "matrix is singular. Set alpha to a positive value (alpha=1e-6), add a WhiteKernel() "
            "to the kernel, or drop the duplicated rows."
        )
    if np.count_nonzero(noiseless) < 2:
        return
    rows = X[noiseless] + 0.0  # -0.0 and 0.0 are the same input
    n_duplicates = rows.shape[0] - np.unique(rows, axis=0).shape[0]
    if n_duplicates:
        verb = "repeat" if n_duplicates > 1 else "repeats"
        raise ValueError(
            f"{n_duplicates} of the {X.shape[0]} rows of X {verb} an earlier row while the noise "
            "is exactly zero, so that the kernel matrix is singular. Set alpha to a positive value "
            "(alpha=1e-6), add a WhiteKernel() to the kernel, or drop the duplicated rows."
        )


def check_points(name: str, points: Any, d: int) -> np.ndarray:
    """Points that stand for rows of the training table, as finite numbers; at least one.

    Parameters
    ----------
    name : str
        The parameter.
    points : array-like of shape (m, d)
    d : int
        Columns of the training table.

    Returns
    -------
    Z : ndarray of shape (m, d), float64
    """
    Z = check_numbers(name, points)
    if Z.ndim != 2 or Z.shape[1] != d or not len(Z):
        raise ValueError(f"{name} must have shape (m, {d}) with m >= 1, got {Z.shape}.")
    return Z


# ---------------------------------------------------------------- settings of objects


def check_integer(
    name: str, value: Any, least: int = 1, *, example: Any = None, other: tuple = ()
) -> Any:
    """A whole number of at least `least`, or one of the strings and None in `other`."""
    return _checked(name, value, Integral, f"an integer of at least {least}", least, example, other)


def check_number(
    name: str,
    value: Any,
    least: float = 0.0,
    *,
    below: float = math.inf,
    positive: bool = False,
    example: Any = None,
    other: tuple = (),
) -> Any:
    """A number with least <= value < below (0 < value if `positive`), or one of `other`."""
    kind = "a positive number" if positive else f"a number of at least {least:g}"
    if below < math.inf:
        kind += f" below {below:g}" if positive else f" and below {below:g}"
    least = math.nextafter(0.0, 1.0) if positive else least
    return _checked(name, value, Real, kind, least, example, other, below)


def check_numbers(name: str, value: Any) -> np.ndarray:
    """A number, or an array of them, as float64 numbers that are finite."""
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = np.array(np.nan)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be a finite number, or an array of them; got {value!r}.")
    return array


def check_bounds(name: str, bounds: Any) -> Any:
    """Bounds of a hyperparameter, unchanged if they are valid."""
    if isinstance(bounds, str) and bounds == "fixed":
        return bounds
    try:
        pairs = np.atleast_2d(np.asarray(bounds, dtype=np.float64))
    except (TypeError, ValueError):
        pairs = np.empty((0, 0))
    if pairs.ndim != 2 or pairs.shape[1] != 2 or not (pairs[:, 0] <= pairs[:, 1]).all():
        raise ValueError(
            f'{name} must be "fixed", a pair of a lower and an upper bound, or one pair for each '
            f"element; got {bounds!r}."
        )
    return bounds


def _checked(name, value, type_, kind, least, example, other, below=math.inf):
    if value is None or isinstance(value, str):
        if value in other:
            return value
    elif isinstance(value, type_) and not isinstance(value, bool) and least <= value < below:
        return value
    allowed = "".join(f" or {choice!r}" for choice in other)
    such = "" if example is None else f", for example {example}"
    raise ValueError(f"{name} must be {kind}{allowed}{such}; got {value!r}.")


# ---------------------------------------------------------------- requests


def check_return_flags(return_std: bool, return_cov: bool) -> None:
    """Raise a RuntimeError, as scikit-learn does, if both are requested."""
    if return_std and return_cov:
        raise RuntimeError(
            "At most one of return_std or return_cov can be requested. The diagonal of the "
            "covariance has the squared standard deviations."
        )


def check_n_targets(n_targets: int | None, y: np.ndarray) -> int:
    """The number t of targets in `y`, which must be the parameter `n_targets` if that is given."""
    seen = y.shape[1] if y.ndim > 1 else 1
    if n_targets is not None and n_targets != seen:
        raise ValueError(
            "The number of targets seen in `y` is different from the parameter `n_targets`. "
            f"Got {seen} != {n_targets}."
        )
    return seen


# ---------------------------------------------------------------- numbers


_DTYPES = {"float32": torch.float32, "float64": torch.float64}


def resolve_dtype(dtype: Any, n: int, *, threshold: int) -> torch.dtype:
    """The torch dtype for a string; "auto" is float64 up to `threshold` rows, and float32 above."""
    if dtype == "auto":
        return torch.float64 if n <= threshold else torch.float32
    try:
        return _DTYPES[dtype]
    except (KeyError, TypeError):
        raise ValueError(
            f"dtype={dtype!r} is unknown: use 'auto', 'float32' or 'float64'."
        ) from None


# ---------------------------------------------------------------- memory


def format_bytes(n_bytes: int | float) -> str:
    """A readable size: ``format_bytes(3 * 2**30)`` is '3.0 GiB'."""
    size = float(n_bytes)
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def available_memory(device: str | torch.device = "cpu") -> int | None:
    """Number of bytes that can be allocated on `device` without swapping or being killed.

    Parameters
    ----------
    device : str or torch.device

    Returns
    -------
    n_bytes : int or None
        For the CPU the smallest of the free memory of the system, of the control groups (v1 and v2)
        and of the address space and the data (``ulimit -v`` and ``-d``) of this process. On other
        devices the memory that the driver reports as free, plus the memory that torch holds unused.
        None if unknown.
    """
    device = torch.device(device)
    if device.type != "cpu":
        return free_memory(device)
    known = (
        _system_memory(),
        _cgroup_memory(),
        _process_memory("RLIMIT_AS", "VmSize"),
        _process_memory("RLIMIT_DATA", "VmData"),
    )
    left = [size for size in known if size is not None]
    return min(left, default=None)


def _system_memory(meminfo: Path = Path("/proc/meminfo")) -> int | None:
    try:
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    try:  # On macOS and others the total memory is the only known bound.
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def _process_memory(limit: str, used: str, status: Path = Path("/proc/self/status")) -> int | None:
    """Free bytes within a limit of this process; None without a limit.

    `limit` is the name in the module resource, and `used` that of the line of `status`.
    """
    try:
        import resource

        most = resource.getrlimit(getattr(resource, limit))[0]
        if most == resource.RLIM_INFINITY:
            return None
        lines = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return max(most - int(lines[used].split()[0]) * 1024, 0)
    except (ImportError, AttributeError, OSError, ValueError, LookupError):
        return None


# Folder below the root, files of limit and usage, and key of the reclaimable cache in memory.stat.
_CGROUP_FILES = {
    "memory": ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    "": ("", "memory.max", "memory.current", "inactive_file"),
}


def _cgroup_memory(
    root: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")
) -> int | None:
    """Free bytes in the tightest control group on the way to the root; None without a limit."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return None
    left = []
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        for controller in set(controllers.split(",")) & set(_CGROUP_FILES):
            folder, *files = _CGROUP_FILES[controller]
            top = root / folder
            group = top / path.lstrip("/")
            # A container may not see its own group. A missing group counts as unlimited.
            for place in (group, *group.parents):
                left.append(_group_memory(place, *files))
                if place == top:
                    break
    return min((size for size in left if size is not None), default=None)


def _group_memory(group: Path, limit: str, usage: str, cache: str) -> int | None:
    try:
        most, used = (group / limit).read_text().strip(), int((group / usage).read_text())
        if most == "max" or int(most) >= 2**60:  # how v2 and v1 write "no limit"
            return None
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return max(int(most) - used + int(stat.get(cache, 0)), 0)


def check_memory(
    need_bytes: int | float,
    what: str,
    remedy: str,
    limit: int | float | None = None,
    *,
    device: str | torch.device = "cpu",
) -> None:
    """Raise a MemoryError before work that does not fit into memory.

    Parameters
    ----------
    need_bytes : float
        Peak memory of the work in bytes.
    what : str
        Name of the work, such as "the covariance of 50000 rows (return_cov=True)".
    remedy : str
        A setting that fits, as a clause, such as "use solver='cg' or memory_budget=8e9".
    limit : float or None
        The memory budget in bytes; the free memory of the machine is a limit in any case.
    device : str or torch.device
        Device on which the memory is needed.
    """
    free = available_memory(device)
    bounds = []
    if limit is not None:
        bounds.append((float(limit), "the memory budget is"))
    if free is not None:
        bounds.append((float(free), f"the memory available on {device} is"))
    if not bounds:
        return
    bound, where = min(bounds)
    if need_bytes > bound:
        raise MemoryError(
            f"{what} needs {format_bytes(need_bytes)}, but {where} {format_bytes(bound)}: {remedy}."
        )
