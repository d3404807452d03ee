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
from ...kernels import TorchKernel
from ._grid import FARTHEST, WEIGHTS, Axis, Grid, strides


class _Axis(nn.Module):
    """The places of rows along one axis, as in `Axis`."""

    def __init__(self, axis: Axis):
        super().__init__()
        self._column, self._size = axis.column, axis.size
        self.register_buffer("start", torch.tensor(axis.start, dtype=torch.float64))
        self.register_buffer("step", torch.tensor(axis.step, dtype=torch.float64))
        self.register_buffer("weights", torch.as_tensor(WEIGHTS))

    def locate(self, X: Float[Tensor, "m d"]) -> tuple[Tensor, Tensor, Tensor]:
        """The first of the four points around each row, its place in the cell, and `covers`."""
        place = ((X[:, self._column] - self.start) / self.step).clamp(-FARTHEST, FARTHEST)
        last = self._size - 2
        first = place.detach().floor()
        first = torch.where(place == last, first - 1, first)
        return first - 1, place - first - 0.5, (place >= 1) & (place <= last)

    def cell(self, first: Float[Tensor, " m"]) -> Int[Tensor, " m"]:
        """The number of the cell, for rows beyond the grid that of the nearest one."""
        return first.clamp(0, self._size - 4).long()

    def keys(self, v: Float[Tensor, " m"]) -> Float[Tensor, "m 4"]:
        """The weights of the four points."""
        return powers(v, 3) @ self.weights.T

    def lags(self, first: Float[Tensor, " m"]) -> Float[Tensor, "m 4 s"]:
        """Distances of these four points, which may be off the grid, from the axis."""
        near = first[:, None] + torch.arange(4, dtype=first.dtype, device=first.device)
        points = torch.arange(self._size, dtype=first.dtype, device=first.device)
        return (near[:, :, None] - points).abs() * self.step


def powers(v: Float[Tensor, " m"], highest: int) -> Float[Tensor, "m k"]:
    """Powers 0 to `highest`."""
    out = [torch.ones_like(v)]
    for _ in range(highest):
        out.append(out[-1] * v)
    return torch.stack(out, 1)


class Places(NamedTuple):
    """Where rows are on a grid, each by component and axis.

    Attributes
    ----------
    firsts : list of list of Tensor of shape (m,)
        The first of the four points around each row, possibly off the grid.
    cells : list of list of Tensor of shape (m,)
        The number of the cell, for rows beyond the grid that of the nearest one.
    places : list of list of Tensor of shape (m,)
        The place within the cell.
    weights : list of list of Tensor of shape (m, 4)
        The weights of the four points.
    inside : Tensor of bool of shape (m,)
    """

    firsts: list[list[Tensor]]
    cells: list[list[Tensor]]
    places: list[list[Tensor]]
    weights: list[list[Tensor]]
    inside: Bool[Tensor, " m"]


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

    def forward(self, at: Places) -> Float[Tensor, "m t"]:
        (cells,), (places,) = at.cells, at.places
        number = sum(cell * stride for cell, stride in zip(cells, self._strides, strict=True))
        values = self.coefficients[number]
        for v in places:
            values = values.unflatten(1, (self._k, -1))
            values = (values * powers(v, self._k - 1)[:, :, None, None]).sum(1)
        return values[:, 0]

    def variance(self, at: Places) -> Float[Tensor, " m"]:
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

    def forward(self, at: Places) -> Float[Tensor, "m s"]:
        total, parts = 0, (self._starts, self._strides, at.cells, at.weights)
        for start, step, cell, weight in zip(*parts, strict=True):
            index, value = cell[0][:, None] * 0 + start, weight[0][:, :1] * 0 + 1
            for first, stride, w in zip(cell, step, weight, strict=True):
                near = (first[:, None] + torch.arange(4, device=first.device)) * stride
                index = (index[:, :, None] + near[:, None]).flatten(1)
                value = (value[:, :, None] * w[:, None]).flatten(1)
            total = total + (value[:, None] @ self.values[index])[:, 0]
        return total

    def variance(self, at: Places) -> Float[Tensor, " m"]:
        """The sum of squares of the values, which are a root of a variance."""
        return self(at).square().sum(1)


class Covariances(nn.Module):
    """Covariances of any rows with the grid, as `GridKernel.rows` and `cross` compute them.

    Parameters
    ----------
    kernel : TorchKernel
    theta : Tensor of shape (p,)
    grid : Grid
    """

    def __init__(self, kernel: TorchKernel, theta: Float[Tensor, " p"], grid: Grid):
        super().__init__()
        self.register_buffer("theta", theta.detach().double().cpu().clone())
        self._d = kernel.n_features
        self._columns = [[axis.column for axis in axes] for axes in grid.components]
        products = kernel.node.products()
        self._terms = [(term, [leaf.plain() for leaf in term.leaves]) for term in products]

    def _along(self, term: int, column: int, lags: Float[Tensor, "m a"]) -> Float[Tensor, "m a"]:
        """The product of a term's kernels at distances along one column."""
        unit = torch.zeros(self._d, dtype=lags.dtype, device=lags.device)
        unit[column] = 1
        X, value = lags[..., None] * unit, torch.ones_like(lags)
        for leaf in self._terms[term][1]:
            value = value * leaf.smooth(self.theta, X, X[..., :1, :] * 0)[..., 0]
        return value

    def rows(self, at: Places, axes: nn.ModuleList) -> list[list[Tensor]]:
        """W_x K(points around x, grid), (m, points) by component and term."""
        out, parts = [], (self._columns, at.firsts, at.weights, axes)
        for columns, firsts, weight, component in zip(*parts, strict=True):
            terms = []
            for number, (term, _) in enumerate(self._terms):
                row = weight[0][:, :1] * 0 + term.amplitude(self.theta).to(weight[0])
                for column, first, w, axis in zip(columns, firsts, weight, component, strict=True):
                    lags = axis.lags(first)
                    value = self._along(number, column, lags.flatten(1))
                    value = value.unflatten(1, lags.shape[1:])
                    along = (w[:, None] @ value)[:, 0]
                    row = (row[:, :, None] * along[:, None]).flatten(1)
                terms.append(row)
            # Along a single axis the terms are one, as in the factor of the grid.
            out.append([sum(terms)] if len(columns) == 1 or not terms else terms)
        return out

    def own(self, at: Places, axes: nn.ModuleList) -> Float[Tensor, " m"]:
        """W_x K W_x' on an infinite grid."""
        total = at.weights[0][0][:, 0] * 0
        for columns, weight, component in zip(self._columns, at.weights, axes, strict=True):
            for number, (term, _) in enumerate(self._terms):
                value = term.amplitude(self.theta).to(total)
                for column, w, axis in zip(columns, weight, component, strict=True):
                    lags = torch.arange(4, dtype=w.dtype, device=w.device) * axis.step
                    near = self._along(number, column, lags[None])[0]
                    apart = torch.arange(4, device=w.device)
                    K = near[(apart[:, None] - apart).abs()]
                    value = value * ((w @ K) * w).sum(1)
                total = total + value
        return total


class GridModule(PosteriorModule):
    """`GridPosterior` or `ProductPosterior`, with the caches on the grid as buffers.

    Rows beyond the grid are computed from their covariances with all of its points, and so are, as
    the graph has no branches, those inside: O(points r) a row.

    Parameters
    ----------
    grid : Grid
    covariances : Covariances
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
        grid: Grid,
        covariances: Covariances,
        mean: nn.Module,
        spread: nn.Module | None,
        outside: Outside,
        noise: float,
        misfit: float,
        explained: bool,
    ):
        super().__init__()
        self.axes = nn.ModuleList(
            nn.ModuleList(_Axis(axis) for axis in axes) for axes in grid.components
        )
        self.covariances, self.inner_mean, self.spread = covariances, mean, spread
        self.outside, self._noise, self._misfit, self._explained = outside, noise, misfit, explained

    def _places(self, X: Float[Tensor, "m d"]) -> Places:
        at = Places([], [], [], [], X[:, 0] == X[:, 0])
        for axes in self.axes:
            found = [axis.locate(X) for axis in axes]
            at.firsts.append([first for first, _, _ in found])
            at.cells.append([axis.cell(f) for axis, (f, _, _) in zip(axes, found, strict=True)])
            at.places.append([v for _, v, _ in found])
            at.weights.append([axis.keys(v) for axis, (_, v, _) in zip(axes, found, strict=True)])
            at = at._replace(inside=reduce(torch.logical_and, [c for *_, c in found], at.inside))
        return at

    def mean(self, X: Float[Tensor, "m d"]) -> Float[Tensor, "m t"]:
        at = self._places(X)
        rows = self.covariances.rows(at, self.axes)
        return torch.where(at.inside[:, None], self.inner_mean(at), self.outside.mean(rows))

    def moments(self, X: Float[Tensor, "m d"]) -> Moments:
        at = self._places(X)
        rows, own = self.covariances.rows(at, self.axes), self.covariances.own(at, self.axes)
        mean = torch.where(at.inside[:, None], self.inner_mean(at), self.outside.mean(rows))
        near = self.spread.variance(at)
        near = own - near if self._explained else near
        variance = torch.where(at.inside, near, self.outside.variance(rows, own)).clamp_min(0)
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
