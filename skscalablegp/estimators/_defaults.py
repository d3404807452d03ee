"""Starting values that depend on the table."""

from __future__ import annotations

import numpy as np
from sklearn.gaussian_process.kernels import ConstantKernel, Kernel, Matern, WhiteKernel


def data_scaled_kernel(X: np.ndarray, y: np.ndarray) -> Kernel:
    """Constant * Matern-3/2 (one length scale per column) + White, in the units of the table.

    Each length scale starts at its column's standard deviation and the signal and noise variances
    at the target's mean square, which on standardised data is the start at 1 of Lin et al. (2024);
    the bounds move along, so that a change of units changes nothing.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    y : ndarray of shape (n,) or (n, t)
        Targets as the model sees them.

    Returns
    -------
    kernel : Kernel
        Length scales between 1e-3 and 1e5 of a column's deviation, variances between 1e-6 (noise;
        1e-5 the signal) and 1e5 of the target's mean square.
    """
    spread = X.std(axis=0)
    # A constant column carries no information and gets no say in the distance's unit.
    spread = np.where(spread > 1e-12 * np.abs(X).max(axis=0, initial=0.0), spread, 1.0)
    unit = float(np.mean(np.square(y)))
    if not np.isfinite(unit) or unit <= 0:
        unit = 1.0
    scale = spread if len(spread) > 1 else float(spread[0])
    bounds = np.outer(np.atleast_1d(scale), [1e-3, 1e5])
    matern = Matern(scale, bounds if len(spread) > 1 else tuple(bounds[0]), nu=1.5)
    signal = ConstantKernel(unit, (1e-5 * unit, 1e5 * unit))
    return signal * matern + WhiteKernel(unit, (1e-4 * unit, 1e5 * unit))
