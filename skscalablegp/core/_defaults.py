"""Starting values that depend on the table."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process.kernels import Kernel, WhiteKernel

from ..kernels import LogNormal, Prior, default_kernel
from .data import Table, column_spread, have_merged

# Log-normal prior of length scales in regressions on labels: its median for one column, in the
# columns' standard deviations, and the standard deviation of the logarithm. On 42 drawn tables of
# 50 to 200 rows, pure noise among them, SVGPClassifier loses at most .001 to the shares of the
# classes.
_LABEL_LENGTH, _LABEL_SPREAD = 2.0, 1.0

# Upper bound of the signal variance under a finite number of random features, in units of the
# target's variance. Their error grows with the signal variance. Where the likelihood favours larger
# values, amplitude and length scales grow together, and the likelihood hardly changes.
LARGEST_FEATURE_SIGNAL = 10.0

# Variance of the noise, in units of the target's mean square, where a model assumes it and nothing
# is known: for kernels without white noise, for networks, and as the median of its prior. Kernels
# with white noise have their own start; `default_kernel` gives the noise the whole mean square.
NOISE_SHARE = 0.1
# Bounds of such noise, in the same units.
_NOISE_BOUNDS = (1e-5, 1e5)

# From this fraction of the target's variance on, an alpha counts as the user's noise variance.
KNOWN_NOISE = 1e-6
# Tables with few rows for each column, whose likelihood is often highest for an interpolant.
_FEW_ROWS, _FEW_ROWS_A_COLUMN, _FEWEST_COLUMNS = 120, 15, 3


def default_priors(kernel: Kernel, n: int, d: int) -> tuple[dict[str, Prior] | None, str]:
    """The meaning of priors="auto" for the default kernel on n rows of d columns.

    Small tables have a prior of the noise variance: log-normal, with the median at a tenth of the
    target's variance and a standard deviation of a factor of 4.5. On eleven data sets that were not
    used to choose it, with 30, 60 or 120 rows, it lowers the negative log density of a new target
    by more than 0.02 nats in 17 of 27 cases and raises it as much in 2 (by 0.08 for a function
    without noise). The median gain at 30 rows is 0.31 nats. At 500 rows no prior would change the
    score by more than 0.02 (benchmarks/priors.py).

    Parameters
    ----------
    kernel : Kernel
        The default kernel, whose noise starts at the target's variance.
    n, d : int

    Returns
    -------
    priors : dict or None
    reason : str
    """
    level = kernel.get_params().get("k2__noise_level")
    few = n <= min(_FEW_ROWS, _FEW_ROWS_A_COLUMN * d) and d >= _FEWEST_COLUMNS
    if level is None or not few:
        return None, f"{n:,} rows of {d} columns: the likelihood decides"
    return {"k2__noise_level": LogNormal(NOISE_SHARE * level, 1.5)}, (
        f"{n} rows of {d} columns contain little information on the noise"
    )


def target_unit(y: np.ndarray, counts: np.ndarray | None = None) -> float:
    """The mean square of targets as the model sees them; 1 if that is zero or not finite.

    `counts` (n,) are the numbers of rows that each stands for.
    """
    squares = np.square(y)
    if counts is None or not have_merged(counts):
        return _unit(float(np.mean(squares)))
    return _unit(float(np.average(squares.reshape(len(y), -1), axis=0, weights=counts).mean()))


def _unit(mean_square: float) -> float:
    return mean_square if np.isfinite(mean_square) and mean_square > 0 else 1.0


def with_default_noise(kernel: Kernel, unit: float) -> Kernel:
    """A kernel without noise, with the noise of `NOISE_SHARE` added; `unit` is `target_unit`."""
    low, high = _NOISE_BOUNDS
    return kernel + WhiteKernel(NOISE_SHARE * unit, (low * unit, high * unit))


def data_scaled_kernel(
    X: np.ndarray,
    y: np.ndarray,
    largest_signal: float | None = None,
    counts: np.ndarray | None = None,
) -> Kernel:
    """The default kernel in the units of the table.

    Each length scale starts at its column's robust standard deviation, and the signal and noise
    variances at the target's mean square. On standardised data this is 1, as in Lin et al. (2024).

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    y : ndarray of shape (n,) or (n, t)
        Targets as the model sees them.
    largest_signal : float, optional
        Upper bound of the signal variance, relative to its starting value.
    counts : ndarray of shape (n,), optional
        How many rows each row stands for.

    Returns
    -------
    kernel : Kernel
        Its bounds are relative to these starting values.
    """
    spread = column_spread(X, 1.0 if counts is None else counts)
    return _scaled_kernel(spread, target_unit(y, counts), largest_signal)


def table_kernel(table: Table, largest_signal: float | None = None) -> Kernel:
    """`data_scaled_kernel` of a table, whose rows may be at several ranks."""
    return _scaled_kernel(table.robust_moments()[1], _unit(table.mean_square()), largest_signal)


def _scaled_kernel(spread: np.ndarray, unit: float, largest_signal: float | None) -> Kernel:
    # A constant column carries no information, so that any positive length scale is suitable.
    kernel = default_kernel(len(spread), spread, unit)
    if largest_signal is not None:
        low = kernel.k1.k1.constant_value_bounds[0]
        kernel.set_params(k1__k1__constant_value_bounds=(low, largest_signal * unit))
    return kernel


def label_prior(unit: float | np.ndarray) -> LogNormal:
    """The prior of length scales of a default kernel in a regression on labels.

    Very short length scales explain labels without signal as well as noise does, and predictions
    do not generalise.

    Parameters
    ----------
    unit : float or ndarray of shape (d,)
        The standard deviations of the columns, times the root of their number, because distances
        grow with it.
    """
    return LogNormal(_LABEL_LENGTH * unit, _LABEL_SPREAD)
