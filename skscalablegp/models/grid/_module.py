"""Predictions of interpolated models as a torch module."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ...core.posteriors import Moments, PosteriorModule
from ._grid import FARTHEST, WEIGHTS, Axis, Grid, strides
from ._grid_kernel import GridKernel, along_axes, interpolated, outer_rows, toeplitz


class Places(NamedTuple):
    """Where rows are along one axis, as in `Axis`.

    Attributes
    ----------
    cell : Tensor of shape (m,)
        The number of the cell, for rows beyond the grid that of the nearest one.
    place : Tensor of shape (m,)
        The place within the cell.
    weights : Tensor of shape (m, 4)
        The weights of the four points around each row.
    lags : Tensor of shape (m, 4, s)
        Distances of these points, which may be off the grid, from those of the axis.
    step : Tensor of shape ()
        The distance between points.
    inside : Tensor of bool of shape (m,)
    """

    cell: Int[Tensor, " m"]
    place: Float[Tensor, " m"]
    weights: Float[Tensor, "m 4"]
    lags: Float[Tensor, "m 4 s"]
    step: Float[Tensor, ""]
    inside: Bool[Tensor, " m"]


# By component and axis of a grid.
OnGrid = list[list[Places]]


class _Axis(nn.Module):
    """Finds the places of rows along one axis."""

    def __init__(self, axis: Axis):
        super().__init__()
        self._column, self._size = axis.column, axis.size
        self.register_buffer("start", torch.tensor(axis.start, dtype=torch.float64))
        self.register_buffer("step", torch.tensor(axis.step, dtype=torch.float64))
        self.register_buffer("weights", torch.as_tensor(WEIGHTS))

    def forward(self, X: Float[Tensor, "m d"]) -> Places:
        place = ((X[:, self._column] - self.start) / self.step).clamp(-FARTHEST, FARTHEST)
        last = self._size - 2
        first = place.detach().floor()
        first = torch.where(place == last, first - 1, first)
        place, inside, first = place - first - 0.5, (place >= 1) & (place <= last), first - 1
        steps = torch.arange(self._size, dtype=first.dtype, device=first.device)
        near = first[:, None] + steps[:4]
        lags = (near[:, :, None] - steps).abs() * self.step
        cell, weights = first.clamp(0, self._size - 4).long(), powers(place, 3) @ self.weights.T
        return Places(cell, place, weights, lags, self.step, inside)


def powers(v: Float[Tensor, " m"], highest: int) -> Float[Tensor, "m k"]:
    """Powers 0 to `highest`."""
    out = [torch.ones_like(v)]
    for _ in range(highest):
        out.append(out[-1] * v)
    return torch.stack(out, 1)


class Polynomials(nn.Module):
    """One polynomial for each cell of a product grid.

    Parameters
    ----------
    coefficients : ndarray of shape (t, cells, k^d)
    cells : list of int
        Cells along each axis.
    """

    def __init__(self, coefficients: np.ndarray, cells: Sequence[int]):
        super().__init__()
        self._strides = strides(list(cells))
        self._k = round(coefficients.shape[2] ** (1 / len(cells)))
        values = torch.as_tensor(np.ascontiguousarray(coefficients.transpose(1, 2, 0)))
        self.register_buffer("coefficients", values.double())

    def forward(self, at: OnGrid) -> Float[Tensor, "m t"]:
        (places,) = at
        number = sum(p.cell * stride for p, stride in zip(places, self._strides, strict=True))
        values = self.coefficients[number]
        for p in places:
            values = values.unflatten(1, (self._k, -1))
            values = (values * powers(p.place, self._k - 1)[:, :, None, None]).sum(1)
        return values[:, 0]

    def variance(self, at: OnGrid) -> Float[Tensor, " m"]:
        """The value, which is a variance."""
        return self(at)[:, 0]


class Interpolation(nn.Module):
    """W_x V from the points around each row, for grids without polynomials.

    Parameters
    ----------
    values : Tensor of shape (points, s)
    grid : Grid
    """

    def __init__(self, values: Float[Tensor, "points s"], grid: Grid):
        super().__init__()
        self._starts, self._strides = grid.starts, [strides(shape) for shape in grid.shapes]
        self.register_buffer("values", values.detach().double().cpu().clone())

    def forward(self, at: OnGrid) -> Float[Tensor, "m s"]:
        total = 0
        for start, steps, places in zip(self._starts, self._strides, at, strict=True):
            index = places[0].cell[:, None] * 0 + start
            for stride, p in zip(steps, places, strict=True):
                near = (p.cell[:, None] + torch.arange(4, device=p.cell.device)) * stride
                index = (index[:, :, None] + near[:, None]).flatten(1)
            value = reduce(outer_rows, [p.weights for p in places])
            total = total + (value[:, None] @ self.values[index])[:, 0]
        return total

    def variance(self, at: OnGrid) -> Float[Tensor, " m"]:
        """The sum of squares of the values, which are a root of a variance."""
        return self(at).square().sum(1)


class GridModule(PosteriorModule):
    """`GridPosterior` or `ProductPosterior`, with the caches on the grid as buffers.

    Rows beyond the grid are computed from their covariances with all of its points, and so are, as
    the graph has no branches, those inside: O(points r) a row.

    Parameters
    ----------
    kernel : GridKernel
    theta : Tensor of shape (p,)
    mean, spread : Polynomials or Interpolation
        Of the mean, and of variances (polynomials) or roots of them.
    outside : nn.Module
        Mean and variance from covariances with the grid.
    noise, misfit : float
    explained : bool
        Whether `spread` is subtracted from the prior variance.
    """

    def __init__(
        self,
        kernel: GridKernel,
        theta: Float[Tensor, " p"],
        mean: nn.Module,
        spread: nn.Module | None,
        outside: Outside,
        noise: float = 0.0,
        misfit: float = 0.0,
        explained: bool = False,
    ):
        super().__init__()
        components = kernel.grid.components
        self.axes = nn.ModuleList(nn.ModuleList(map(_Axis, axes)) for axes in components)
        self.register_buffer("theta", theta.detach().double().cpu().clone())
        self._columns, self._d = [[a.column for a in c] for c in components], kernel.n_features
        self._terms = [(term, [leaf.plain() for leaf in leaves]) for term, leaves in kernel.terms]
        self.inner_mean, self.spread, self.outside = mean, spread, outside
        self._noise, self._misfit, self._explained = noise, misfit, explained

    def _along(self, columns: list[int], lags: list[Tensor]) -> list[list[Tensor]]:
        return along_axes(self._terms, self.theta, columns, lags, self._d)

    def _rows(self, at: OnGrid) -> list[list[Tensor]]:
        """W_x K(points around x, grid), (m, points) by component and term, as `GridKernel.rows`."""
        out = []
        for columns, places in zip(self._columns, at, strict=True):
            terms = self._along(columns, [p.lags for p in places])
            parts = interpolated(terms, [p.weights for p in places])
            out.append([reduce(outer_rows, along) for along in parts])
        return out

    def _own(self, at: OnGrid) -> Float[Tensor, " m"]:
        """W_x K W_x' on an infinite grid, as `GridKernel.cross`."""
        total = at[0][0].place * 0
        for columns, places in zip(self._columns, at, strict=True):
            lags = [torch.arange(4, dtype=p.step.dtype, device=p.step.device) * p.step
                    for p in places]  # fmt: skip
            for values in self._along(columns, lags):
                value = 1
                for near, p in zip(values, places, strict=True):
                    value = value * ((p.weights @ toeplitz(near)) * p.weights).sum(1)
                total = total + value
        return total

    def _at(self, X: Float[Tensor, "m d"]) -> tuple[OnGrid, Bool[Tensor, " m"]]:
        """The places of rows, and whether they are inside."""
        at = [[axis(X) for axis in axes] for axes in self.axes]
        return at, reduce(torch.logical_and, [p.inside for places in at for p in places])

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        at, inside = self._at(X)
        return torch.where(inside[:, None], self.inner_mean(at), self.outside.mean(self._rows(at)))

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        at, inside = self._at(X)
        rows, own = self._rows(at), self._own(at)
        mean = torch.where(inside[:, None], self.inner_mean(at), self.outside.mean(rows))
        near = self.spread.variance(at)
        near = own - near if self._explained else near
        variance = torch.where(inside, near, self.outside.variance(rows, own)).clamp_min(0)
        return Moments(mean, variance + self._misfit, variance * 0 + self._noise)


class Outside(nn.Module):
    """Mean and variance from covariances c with the grid, or with the coordinates of a factor.

    ``mean = c W`` and ``variance = own - |c A|^2 + |c B|^2``.

    Parameters
    ----------
    weights : Tensor of shape (r, t)
        W.
    minus, plus : Tensor of shape (r, k), optional
        A, by default the identity, and B, by default zero.
    duals : list of Tensor, optional
        The matrices that turn covariances with a component's points, term by term, into
        coordinates.
    """

    def __init__(
        self,
        weights: Float[Tensor, "r t"],
        minus: Float[Tensor, "r k"] | None = None,
        plus: Float[Tensor, "r k"] | None = None,
        duals: list[Tensor] | None = None,
    ):
        super().__init__()
        for name, value in (("weights", weights), ("minus", minus), ("plus", plus)):
            self.register_buffer(name, None if value is None else value.detach().clone())
        self._count = len(duals or [])
        for k, block in enumerate(duals or []):
            self.register_buffer(f"dual{k}", block.clone())

    def _coordinates(self, rows: list[list[Tensor]]) -> Float[Tensor, "m r"]:
        if self._count == 0:
            return torch.cat([sum(terms) for terms in rows], 1)
        flat = [row for terms in rows for row in terms]
        return torch.cat([row @ getattr(self, f"dual{k}") for k, row in enumerate(flat)], 1)

    def mean(self, rows: list[list[Tensor]]) -> Float[Tensor, "m t"]:
        """The mean."""
        return self._coordinates(rows) @ self.weights

    def variance(self, rows: list[list[Tensor]], own: Float[Tensor, " m"]) -> Float[Tensor, " m"]:
        """The variance of rows with these prior variances."""
        c = self._coordinates(rows)
        out = own - (c @ self.minus if self.minus is not None else c).square().sum(1)
        return out if self.plus is None else out + (c @ self.plus).square().sum(1)
