"""Grids on a simulated GPU: the numbers of the CPU, and waits that do not grow with the grid."""

import numpy as np
import pytest
import torch
from interpolated import rows_of
from numpy.testing import assert_allclose
from simulated import simulated
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import KISSGPRegressor, LOVEPredictor
from skscalablegp.core.data import Table
from skscalablegp.gradients import GradientState
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.grid import (
    CommonNoise,
    GridGradient,
    GridKernel,
    GridProblem,
    NoiseByRow,
    ProductGradient,
    RowProbes,
    grid_marginal_likelihood,
    grid_moments,
    make_grid,
    rows_on_grid,
)

C, W = ConstantKernel, WhiteKernel
CASES = [
    (1, "product", C(1.3) * Matern(0.4, nu=1.5) + W(0.1)),
    (2, "product", C(1.3) * RBF([0.5, 0.9]) + C(0.4) * RBF(0.3) + W(0.1)),
    (3, "additive", C(0.7) * Matern([0.5, 0.9, 1.4], nu=2.5) + W(0.2)),
]


def problem(d, structure, kernel, known, device, size=12):
    rng = np.random.default_rng(d)
    X, Y = rng.uniform(-1, 2, (60, d)), rng.standard_normal((60, 2))
    compiled, grid = compile_kernel(kernel, d), make_grid(X, [size] * d, structure)
    on_grid = GridKernel(compiled, grid, device=torch.device(device))
    by_row = np.broadcast_to(known, 60).copy()
    table = Table(X, Y, np.zeros(2), np.ones(2), by_row)
    if np.ndim(known):
        rows = NoiseByRow(grid, table)
    else:
        rows = CommonNoise(grid_moments(rows_of(X, Y), grid), grid, known)
    probes = RowProbes(grid, table, torch.Generator().manual_seed(0))
    few = rows_on_grid(grid, table, on_grid.device)
    return GridProblem.make(on_grid, rows, 60, probes), few


@pytest.mark.parametrize(("d", "structure", "kernel"), CASES)
@pytest.mark.parametrize("known", [0.05, np.linspace(0.01, 1, 60)], ids=["common", "by row"])
def test_likelihoods_and_gradients(d, structure, kernel, known):
    """From the factor, from few rows and by products."""
    found = []
    for device in ("cpu", "cuda"):
        with simulated():
            made, few = problem(d, structure, kernel, known, device)
            theta, state = made.kernel.theta0, GradientState()
            whole = grid_marginal_likelihood(made, theta)
            assert whole.factor.F.device.type == device
            by_products = ProductGradient().estimate(made, theta, state)[0]
            object.__setattr__(made, "few", few)
            by_rows = GridGradient().estimate(made, theta, state)[0]
            found.append([
                whole.value, whole.misfit, by_rows.value, by_rows.value - whole.value,
                *whole.grad.tolist(), *by_rows.grad.tolist(), *by_products.grad.tolist(),
            ])  # fmt: skip
    assert_allclose(found[1], found[0], rtol=1e-7, atol=1e-7)


def test_an_evaluation_waits_a_few_times(thresholds):
    """For the factor, the value and the gradient: for any grid, and any blocks of it."""
    thresholds("models", _BLOCK_NUMBERS=2**8)
    with simulated() as gpu:
        for size in (6, 10):
            made, _ = problem(*CASES[1], 0.05, "cuda", size)
            grid_marginal_likelihood(made, made.kernel.theta0)
            gpu.forget()
            grid_marginal_likelihood(made, made.kernel.theta0 + 0.1)
            assert sum(gpu.waits.values()) <= 3, gpu.waits
            # Columns of the grid's axes are sent, and eigenvectors along them; no rows.
            assert gpu.bytes_sent < 8 * 20 * size * made.grid_kernel.grid.n_points


@pytest.mark.parametrize(
    "solver, structure, love",
    [
        ("cholesky", "additive", True),
        pytest.param("cg", "product", False, marks=pytest.mark.slow),
        pytest.param("cholesky", "product", False, marks=pytest.mark.slow),
        pytest.param("cg", "additive", True, marks=pytest.mark.slow),
    ],
)
def test_predictions(solver, structure, love):
    """Inside the grid and beyond it, joint covariances and samples, with and without LOVE."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (150, 2))
    y = np.sin(3 * X.sum(1)) + 0.1 * rng.standard_normal(150)
    new, found = np.vstack([X[:20] + 0.01, [[3.0, 0.0], [-2.0, 2.5]]]), []
    kernel = C(1.0) * RBF([0.5, 0.7]) + W(0.05)
    for device in ("cpu", "cuda"):
        with simulated() as gpu:
            model = KISSGPRegressor(
                kernel, grid_size=14, structure=structure, solver=solver, max_iter=3,
                device=device, random_state=0,
            )  # fmt: skip
            model = (LOVEPredictor(model, device=device, random_state=0) if love else model).fit(
                X, y
            )
            assert torch.device(model.device_).type == device
            assert bool(gpu.launches) == (device == "cuda")
            found.append([
                *model.predict(new, return_std=True),
                model.predict(new, return_cov=True)[1],
                model.sample_y(new[:20], 3, random_state=1),
            ])  # fmt: skip
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(theirs, ours, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("solver", ["cholesky", "cg"])
def test_sums_that_are_stored_densely(solver, thresholds):
    """As on sums of many axes, of which every two share entries of the Gram matrix."""
    thresholds(_DENSE_COLUMNS=3)
    d, structure, kernel = CASES[2]
    rng = np.random.default_rng(d)
    X, Y = rng.uniform(-1, 2, (60, d)), rng.standard_normal((60, 1))
    found = []
    for device in ("cpu", "cuda"):
        with simulated() as gpu:
            model = KISSGPRegressor(
                kernel, grid_size=12, structure=structure, solver=solver, max_iter=2,
                device=device, random_state=0,
            ).fit(X, Y[:, 0])  # fmt: skip
            assert bool(gpu.launches) == (device == "cuda")
            found.append([*model.predict(X[:9], return_std=True), [*model.kernel_.theta]])
    assert isinstance(
        grid_moments(rows_of(X, Y), make_grid(X, [12] * d, structure)).gram, np.ndarray
    )
    for ours, theirs in zip(*found, strict=True):
        assert_allclose(theirs, ours, rtol=1e-5, atol=1e-6)
