"""The choice of a grid for a table, and the default kernel on it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel

from ..._validation import check_memory
from ...core import data_scaled_kernel
from ._grid import Grid, make_grid, varying_columns

# Largest number of points an axis, by the number of axes.
_MOST_POINTS = {1: 400, 2: 100, 3: 36, 4: 8}
_MOST_AXES = 4
_LEAST_POINTS = 8
_ADDITIVE_POINTS = 100
# Largest signal variance, in units of the target's.
_LARGEST_SIGNAL = 1e3


def plan_grid(X: np.ndarray, grid_size: Any, structure: str, budget: float | None) -> Grid:
    """The grid over the rows of X.

    Parameters
    ----------
    X : ndarray of shape (n, d)
        Rows.
    grid_size : "auto", int or array-like of shape (d,)
        Points of every column.
    structure : {"auto", "product", "additive"}
        "auto" is product up to four columns.
    budget : float or None
        Bytes that may be used.

    Raises
    ------
    MemoryError
        For a product grid that does not fit.
    """
    columns = varying_columns(X)
    if len(columns) == 0:
        raise ValueError(
            f"All columns of X are constant ({len(X)} sample{'s' if len(X) > 1 else ''}): a grid "
            "needs at least two different rows."
        )
    if len(columns) < X.shape[1]:
        constant = sorted(set(range(X.shape[1])) - set(columns.tolist()))
        warnings.warn(
            f"Constant columns of X carry no information and are ignored: {constant}.",
            UserWarning,
            stacklevel=4,
        )
    if structure == "auto":
        structure = "product" if len(columns) <= _MOST_AXES else "additive"
    sizes = _sizes(len(X), X.shape[1], len(columns), grid_size, structure)
    if structure == "product":
        _check_product([sizes[c] for c in columns], budget)
    return make_grid(X, sizes, structure)


def _sizes(n: int, d: int, n_axes: int, grid_size: Any, structure: str) -> list[int]:
    if isinstance(grid_size, str):
        if structure == "additive" or n_axes == 1:
            most = _ADDITIVE_POINTS if n_axes > 1 else _MOST_POINTS[1]
            size = min(most, n + 5)
        else:
            size = min(
                _MOST_POINTS[min(n_axes, _MOST_AXES)], math.ceil(1.5 * n ** (1 / n_axes)) + 5
            )
        return [max(_LEAST_POINTS, size)] * d
    sizes = np.atleast_1d(np.asarray(grid_size))
    if sizes.ndim != 1 or sizes.size not in (1, d) or sizes.dtype.kind not in "iu":
        raise ValueError(
            f"grid_size must be 'auto', one whole number, or one for each of the {d} columns; got "
            f"{grid_size!r}."
        )
    if sizes.min() < 6:
        raise ValueError(
            f"grid_size must be at least 6 (two points of padding at both ends); got {grid_size!r}."
        )
    return np.broadcast_to(sizes, d).tolist()


def _check_product(sizes: list[int], budget: float | None) -> None:
    d, m = len(sizes), math.prod(sizes)
    shape = " x ".join(str(size) for size in sizes) if d <= 6 else f"{sizes[0]}^{d}"
    check_memory(
        # W'W at 7^d offsets a point, as a stencil and as a sparse matrix.
        30.0 * m * 7**d,
        f"A product grid over {d} columns ({shape} = {m:,} points)",
        "use structure='additive', feature_extractor=(64, 2) to learn two features first, a "
        "smaller grid_size, or a model with inducing points",
        budget,
    )


def grid_default_kernel(X: np.ndarray, y: np.ndarray, grid: Grid, shortest: float = 0.0) -> Kernel:
    """Constant * RBF (one length scale per column) + White, in the units of the table.

    It is `data_scaled_kernel` with three changes: the kernel is smooth, which interpolation needs;
    length scales are no shorter than a step of the grid, or than `shortest`; and the amplitude has
    a lower upper bound. Along straight lines amplitude and length scale grow together for nothing,
    until products with the grid's covariance round off what noise there is.
    """
    scaled = data_scaled_kernel(X, y)
    matern, white = scaled.k1.k2, scaled.k2
    bounds = np.array(np.broadcast_to(matern.length_scale_bounds, (X.shape[1], 2)))
    for axes in grid.components:
        for axis in axes:
            bounds[axis.column, 0] = max(bounds[axis.column, 0], axis.step, shortest)
    scale = np.maximum(matern.length_scale, bounds[:, 0])
    unit = white.noise_level / len(grid.components)
    signal = ConstantKernel(unit, (1e-5 * unit, _LARGEST_SIGNAL * unit))
    if X.shape[1] == 1:
        return signal * RBF(float(scale[0]), tuple(bounds[0])) + white
    return signal * RBF(scale, bounds) + WhiteKernel(white.noise_level, white.noise_level_bounds)
