"""Starting values that depend on the table."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process.kernels import Kernel

from ..kernels import default_kernel


def data_scaled_kernel(X: np.ndarray, y: np.ndarray) -> Kernel:
    """The default kernel in the units of the table.

    Each length scale starts at its column's standard deviation and the signal and noise variances
    at the target's mean square, which on standardised data is the start at 1 of Lin et al. (2024).

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    y : ndarray of shape (n,) or (n, t)
        Targets as the model sees them.

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
    return default_kernel(X.shape[1], spread, unit)
