"""The plan of a fit on a grid, and the default kernel there."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, WhiteKernel

from ...core import (
    Choice,
    MemoryNeed,
    Plan,
    StageSettings,
    fast_column,
    ignore,
    instead,
    is_auto,
    plan_stages,
    resolve,
    rows_to_look_at,
    small_table_rows,
    table_kernel,
)
from ...core.data import Table
from ._grid import Grid, varying_columns

# Largest number of points an axis, by the number of axes.
_MOST_POINTS = {1: 400, 2: 100, 3: 36, 4: 8}
_MOST_AXES = 4
_LEAST_POINTS = 8
_ADDITIVE_POINTS = 100
# On additive grids, the points of all axes together. An axis has no fewer than the second number,
# nor has one that makes room for a fast column on a product grid.
_ALL_POINTS, _FEW_POINTS = 4000, 20
# A fast column has a point for each width of its best windows, up to so many: the cost grows
# with the third power.
_FAST_POINTS = 1200
# Largest signal variance, in units of the target's.
_LARGEST_SIGNAL = 1e3


@dataclass(frozen=True, kw_only=True)
class MethodPlan(Plan):
    """The choices that do not depend on the grid.

    Attributes
    ----------
    solver : Choice
        "cholesky" or "cg".
    priors : Choice
    training : Plan
    structure, grid_size : Choice or None
        Those without a grid, which the exact process replaces.
    """

    solver: Choice
    priors: Choice
    training: Plan
    structure: Choice | None = None
    grid_size: Choice | None = None


@dataclass(frozen=True, kw_only=True)
class GridPlan(Plan):
    """A grid for the columns of a table.

    Attributes
    ----------
    structure : Choice
        "product" or "additive".
    grid_size : Choice
        Number of points along each column that varies.
    """

    structure: Choice
    grid_size: Choice


def asks_for_grid(params: Any) -> bool:
    """Whether a parameter asks for a grid."""
    return not (
        all(map(is_auto, (params.grid_size, params.structure, params.solver)))
        and params.extrapolation == "extend"
        and params.kernel is None
        and params.feature_extractor is None
    )


def plan_method(params: Any, n: int, *, stream: bool = False) -> MethodPlan:
    """The choices of a fit to n rows, with or without a grid, and the parameters without effect.

    A `stream` always has a grid.

    Raises
    ------
    ValueError
        For a solver that a grid does not have.
    """
    if params.solver not in ("auto", "cholesky", "cg"):
        raise ValueError(
            f"solver={params.solver!r} is unknown on a grid: use 'auto', 'cholesky' or 'cg'."
        )
    ignored = {}
    if params.feature_extractor is None:
        ignored |= ignore("activation", "max_epochs", because="there is no network")
    elif callable(params.feature_extractor):
        ignored |= ignore("activation", because="a module has activations of its own")
    solver = resolve(params.solver, "cholesky", "a grid's covariance has a low rank")
    settings, exact = StageSettings.of(params, params.n_restarts_optimizer), {}
    if not stream and n <= small_table_rows(params) and not asks_for_grid(params):
        why = f"{n} rows: their exact process costs no more than a grid"
        exact = instead(n, why)
        exact |= {"structure": Choice("rows", why), "grid_size": Choice(None, "there is no grid")}
    return MethodPlan(
        solver=solver,
        training=Plan() if exact else plan_stages(settings, solver.value == "cholesky", n),
        priors=resolve(params.priors, None, "only priors that are given are used on a grid"),
        ignored=ignored,
        **exact,
    )


def points_of_fast(X: np.ndarray, Y: np.ndarray) -> dict[int, int]:
    """The points that a column needs over whose range the target varies many times.

    O(n log n) for each column.
    """
    rows = rows_to_look_at(*X.shape)
    fast = fast_column(X[rows], Y[rows])
    if fast is None:
        return {}
    points = np.ptp(X[:, fast.column]) / fast.width
    return {fast.column: int(min(_FAST_POINTS, points)) + 5}


def plan_grid(
    params: Any,
    n: int,
    d: int,
    varying: Sequence[int] | None = None,
    wanted: Mapping[int, int] | None = None,
) -> GridPlan:
    """The grid over n rows of d columns, some of which may be constant.

    Parameters
    ----------
    params : KISSGPRegressor
    n, d : int
    varying : sequence of int, optional
        The columns that vary; all by default.
    wanted : mapping of int to int, optional
        Fewest points of some columns, by their numbers.

    Raises
    ------
    ValueError
        For a `grid_size` that is not one number, or one for each column, of at least 6.
    """
    columns = range(d) if varying is None else varying
    structure = resolve(
        params.structure,
        "product" if len(columns) <= _MOST_AXES else "additive",
        f"{len(columns)} columns vary",
    )
    product = structure.value == "product"
    if is_auto(params.grid_size):
        usual, least = _points(n, len(columns), product), wanted or {}
        sizes = [max(usual, least.get(j, 0)) for j in columns]
        if product and len(columns) > 1:
            sizes = _within(sizes)
    else:
        given = _given_sizes(params.grid_size, d)
        sizes = [given[column] for column in columns]
    points, needs = sum(sizes), ()
    if product:
        points, axes = math.prod(sizes), len(sizes)
        shape = " x ".join(map(str, sizes)) if axes <= 6 else f"{sizes[0]}^{axes}"
        need = MemoryNeed(
            # W'W at 7^d offsets a point, as a stencil and as a sparse matrix.
            30.0 * points * 7**axes,
            f"A product grid over {axes} columns ({shape} = {points:,} points)",
            "use structure='additive', feature_extractor=(64, 2) to learn two features first, a "
            "smaller grid_size, or a model with inducing points",
        )
        needs = (need,)
    size = Choice(sizes, f"a grid of {points} points in all")
    return GridPlan(structure=structure, grid_size=size, needs=needs)


def _points(n: int, n_axes: int, product: bool) -> int:
    """The number of points along each axis for n rows."""
    if n_axes == 1:
        size = min(_MOST_POINTS[1], n + 5)
    elif not product:
        size = min(_ADDITIVE_POINTS, max(_FEW_POINTS, _ALL_POINTS // n_axes), n + 5)
    else:
        most = _MOST_POINTS[min(n_axes, _MOST_AXES)]
        size = min(most, math.ceil(1.5 * n ** (1 / n_axes)) + 5)
    return max(_LEAST_POINTS, size)


def _within(sizes: list[int]) -> list[int]:
    """Points along axes of a product grid, where the other axes make room for the longest one.

    There are no more points in all than if no axis asked for more, and the others keep enough for
    functions that are not quite smooth.
    """
    usual, others = min(sizes), len(sizes) - 1
    points = usual ** len(sizes)
    longest = min(max(sizes), points // _FEW_POINTS**others)
    if longest <= usual:
        return [usual] * len(sizes)
    shorter = int((points / longest) ** (1 / others))
    return [shorter if size == usual else longest for size in sizes]


def _given_sizes(grid_size: Any, d: int) -> list[int]:
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


def columns_that_vary(X: np.ndarray, n: int) -> list[int]:
    """The columns with an axis; warns of constant ones, which are ignored.

    Raises
    ------
    ValueError
        If all columns are constant.
    """
    columns = varying_columns(X).tolist()
    if not columns:
        raise ValueError(
            f"All columns of X are constant ({n} sample{'s' if n > 1 else ''}): a grid "
            "needs at least two different rows."
        )
    if len(columns) < X.shape[1]:
        constant = sorted(set(range(X.shape[1])) - set(columns))
        warnings.warn(
            f"Constant columns of X carry no information and are ignored: {constant}.",
            UserWarning,
            stacklevel=4,
        )
    return columns


def grid_default_kernel(table: Table, grid: Grid, shortest: float = 0.0) -> Kernel:
    """Constant * RBF (one length scale per column) + White, in the units of the table.

    It is `data_scaled_kernel` with three changes: the kernel is smooth, which interpolation needs;
    length scales are no shorter than a step of the grid, or than `shortest`; and the amplitude has
    a lower upper bound. Along straight lines amplitude and length scale grow together for nothing,
    until products with the grid's covariance round off what noise there is.
    """
    scaled, d = table_kernel(table), table.X.shape[1]
    matern, white = scaled.k1.k2, scaled.k2
    bounds = np.array(np.broadcast_to(matern.length_scale_bounds, (d, 2)))
    for axes in grid.components:
        for axis in axes:
            bounds[axis.column, 0] = max(bounds[axis.column, 0], axis.step, shortest)
    scale = np.maximum(matern.length_scale, bounds[:, 0])
    unit = white.noise_level / len(grid.components)
    signal = ConstantKernel(unit, (1e-5 * unit, _LARGEST_SIGNAL * unit))
    if d == 1:
        return signal * RBF(float(scale[0]), tuple(bounds[0])) + white
    return signal * RBF(scale, bounds) + WhiteKernel(white.noise_level, white.noise_level_bounds)
