"""Starting values that depend on the table."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from ..kernels import LogNormal, Prior, default_kernel

# Of the signal's variance under a finite number of random features, in units of the target's. Their
# error is a share of it, and a likelihood that rises with it hardly does beyond here: amplitude and
# length scales then grow together.
LARGEST_FEATURE_SIGNAL = 10.0

# Of the target's variance: noise that is given from here on is the user's word on it.
KNOWN_NOISE = 1e-6
# Tables of few rows a column, whose likelihood often is highest where the model interpolates.
_FEW_ROWS, _FEW_ROWS_A_COLUMN, _FEWEST_COLUMNS = 120, 15, 3


def default_priors(kernel: Kernel, n: int, d: int) -> tuple[dict[str, Prior] | None, str]:
    """What priors="auto" is for the default kernel on n rows of d columns, and why.

    A prior of the noise where rows are few: a factor of 4.5 either way around a tenth of
    the target's variance. On eleven sets that had no part in this rule it is better by more than
    .02 nats a new target in 17 of 27 cases with 30, 60 or 120 rows and worse in 2 (a function
    without noise by .08); the median gain is .31 nats at 30 rows. At 500 rows, where there is no
    prior, none would matter by more than .02 (benchmarks/priors.py).

    Parameters
    ----------
    kernel : Kernel
        The default kernel, whose noise begins at the target's variance.
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
    return {"k2__noise_level": LogNormal(0.1 * level, 1.5)}, (
        f"{n} rows of {d} columns say little about the noise"
    )


def data_scaled_kernel(X: np.ndarray, y: np.ndarray, largest_signal: float | None = None) -> Kernel:
    """The default kernel in the units of the table.

    Each length scale starts at its column's standard deviation and the signal and noise variances
    at the target's mean square, which on standardised data is the start at 1 of Lin et al. (2024).

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    y : ndarray of shape (n,) or (n, t)
        Targets as the model sees them.
    largest_signal : float, optional
        Upper bound of the signal's variance, in units of its start.

    Returns
    -------
    kernel : Kernel
        Its bounds are relative to these starting values.
    """
    spread = X.std(axis=0)
    # A constant column carries no information and gets no say in the distance's unit.
    spread = np.where(spread > 1e-12 * np.abs(X).max(axis=0, initial=0.0), spread, 1.0)
    unit = float(np.mean(np.square(y)))
    if not np.isfinite(unit) or unit <= 0:
        unit = 1.0
    kernel = default_kernel(X.shape[1], spread, unit)
    if largest_signal is not None:
        low = kernel.k1.k1.constant_value_bounds[0]
        kernel.set_params(k1__k1__constant_value_bounds=(low, largest_signal * unit))
    return kernel
