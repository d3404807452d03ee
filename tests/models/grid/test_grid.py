"""Cubic interpolation and streamed moments against dense W."""

import numpy as np
import pytest
import torch
from interpolated import rows_of

from skscalablegp.models.grid import (
    cell_polynomials,
    grid_moments,
    local_polynomials,
    make_grid,
    value_polynomials,
    varying_columns,
)
from skscalablegp.models.grid._sparse import times


def rows(d, n=150, seed=0):
    return np.random.default_rng(seed + d).uniform(-1, 2, (n, d))


def grid(X, structure="product"):
    return make_grid(X, [9, 10, 11], structure)


def test_interpolates_quadratics_exactly_and_smooth_functions_to_third_order():
    x = rows(1)
    errors = []
    for size in (25, 45, 85):
        g = make_grid(x, [size], "product")
        W, points = g.interpolate(x), g.components[0][0].points
        np.testing.assert_allclose(W @ (points**2 - points), (x**2 - x)[:, 0], atol=1e-12)
        errors.append(np.abs(W @ np.sin(3 * points) - np.sin(3 * x[:, 0])).max())
    assert errors[0] / errors[1] > 7 and errors[1] / errors[2] > 7


@pytest.mark.parametrize("d", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("structure", ["product", "additive"])
def test_moments(d, weighted, structure, thresholds):
    thresholds("_moments", _BLOCK_BYTES=8 * 7**d * 64)
    X, Y = rows(d), np.random.default_rng(9).standard_normal((150, 2))
    c = np.linspace(0.1, 2, 150) if weighted else np.ones(150)
    g = grid(X, structure)
    assert g.covers(X).all()
    W = g.interpolate(X).toarray()
    np.testing.assert_allclose(W.sum(1), len(g.components), atol=1e-12)
    moments = grid_moments(rows_of(X, Y), g, c)
    CW = c[:, None] * W
    np.testing.assert_allclose(moments.gram.toarray(), W.T @ CW, atol=1e-12)
    np.testing.assert_allclose(moments.rhs, CW.T @ Y, atol=1e-12)
    np.testing.assert_allclose(moments.total, (c[:, None] * Y**2).sum(0))
    parts = [grid_moments(rows_of(X[s], Y[s]), g, c[s])
             for s in (slice(0, 40), slice(40, None))]  # fmt: skip
    together = parts[0] + parts[1]
    np.testing.assert_allclose(together.gram.toarray(), moments.gram.toarray(), atol=1e-12)
    assert together.n == 150
    # On a larger grid with the same spacing.
    larger = g.extended(2 * X)
    numbers = g.numbers_in(larger)
    assert larger.covers(2 * X).all()
    moved = moments.moved(numbers, larger.n_points)
    there = grid_moments(rows_of(X, Y), larger, c)
    np.testing.assert_allclose(moved.gram.toarray(), there.gram.toarray(), atol=1e-10)
    np.testing.assert_allclose(moved.rhs, there.rhs, atol=1e-10)


@pytest.mark.parametrize("weighted", [False, True])
def test_moments_of_many_columns_are_dense(weighted, thresholds):
    thresholds("_moments", _BLOCK_BYTES=2**15)
    X, Y = rows(40), np.random.default_rng(9).standard_normal((150, 2))
    c = np.linspace(0.1, 2, 150) if weighted else np.ones(150)
    g = make_grid(X, [8] * 40, "additive")
    moments, W = grid_moments(rows_of(X, Y), g, c), g.interpolate(X).toarray()
    CW = c[:, None] * W
    assert isinstance(moments.gram, np.ndarray)
    np.testing.assert_allclose(moments.gram, W.T @ CW, atol=1e-12)
    np.testing.assert_allclose(moments.rhs, CW.T @ Y, atol=1e-12)
    V = np.random.default_rng(8).standard_normal((g.n_points, 3))
    np.testing.assert_allclose(times(moments.gram, torch.from_numpy(V)), W.T @ (CW @ V), atol=1e-9)
    larger = g.extended(2 * X)
    moved = moments.moved(g.numbers_in(larger), larger.n_points)
    there = grid_moments(rows_of(X, Y), larger, c)
    assert isinstance(moved.gram, np.ndarray)
    np.testing.assert_allclose(moved.gram, there.gram, atol=1e-10)
    np.testing.assert_allclose((moved + there).gram, 2 * there.gram, atol=1e-10)


@pytest.mark.parametrize("structure", ["product", "additive"])
def test_moments_on_any_number_of_cores_are_the_same(structure, set_workers, thresholds):
    thresholds("_moments", _BLOCK_BYTES=8 * 7**2 * 16)
    X, Y, found = rows(2), np.random.default_rng(9).standard_normal((150, 2)), []
    for count in (1, 3):
        set_workers(count)
        moments = grid_moments(rows_of(X, Y), grid(X, structure))
        found.append((moments.gram.toarray(), moments.rhs))
    assert all(map(np.array_equal, *found))


@pytest.mark.parametrize("d", [1, 2, 3])
def test_polynomials_of_cells(d):
    X = rows(d)
    g = grid(X)
    (axes,), (shape,) = g.components, g.shapes
    W = g.interpolate(X).toarray()
    rng = np.random.default_rng(3)
    values = rng.standard_normal(shape)
    np.testing.assert_allclose(
        cell_polynomials(axes, X, value_polynomials(values)), W @ values.ravel(), atol=1e-12
    )
    E = rng.standard_normal((g.n_points, 3))
    C = (E @ E.T).reshape(*shape, *shape)
    stencil = np.zeros((*shape, *[7] * d))
    for i in np.ndindex(*shape):
        for offset in np.ndindex(*[7] * d):
            j = tuple(a + b - 3 for a, b in zip(i, offset, strict=True))
            if all(0 <= a < size for a, size in zip(j, shape, strict=True)):
                stencil[(*i, *offset)] = C[(*i, *j)]
    quadratic = cell_polynomials(axes, X, local_polynomials(stencil))
    np.testing.assert_allclose(quadratic, np.square(W @ E).sum(1), atol=1e-11)


def test_a_constant_column_gets_no_axis():
    X = np.column_stack([rows(1), np.full(150, 1e6)])
    np.testing.assert_array_equal(varying_columns(X), [0])
    assert len(make_grid(X, [9, 9], "product").components[0]) == 1


def test_what_a_grid_covers():
    X = np.array([[0.0], [1.0]])
    g = make_grid(X, [9], "product")
    step = g.components[0][0].step
    inside = g.covers(np.array([[-step], [1 + step], [-1.01 * step], [1 + 1.01 * step]]))
    np.testing.assert_array_equal(inside, [True, True, False, False])
