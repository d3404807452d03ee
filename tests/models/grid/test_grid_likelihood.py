"""The likelihood in grid space against dense algebra of the same H."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from interpolated import InterpolatedOperator, rows_of
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import KISSGPRegressor
from skscalablegp.core.data import Table
from skscalablegp.gradients import GradientState
from skscalablegp.kernels import compile_kernel
from skscalablegp.models.grid import (
    CommonNoise,
    GridGradient,
    GridKernel,
    GridPosterior,
    GridProblem,
    NoiseByRow,
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
    (2, "product", RBF([0.5, 0.9], "fixed") + W(0.1)),
]


def problem(d, structure, kernel, t, known):
    rng = np.random.default_rng(d)
    X, Y = rng.uniform(-1, 2, (60, d)), rng.standard_normal((60, t))
    compiled = compile_kernel(kernel, d)
    grid = make_grid(X, [12] * d, structure)
    grid_kernel = GridKernel(compiled, grid)
    if np.ndim(known):
        rows = NoiseByRow(grid, Table(X, Y, np.zeros(t), np.ones(t), known))
    else:
        rows = CommonNoise(grid_moments(rows_of(X, Y), grid), grid, known)
    return GridProblem.make(grid_kernel, rows, 60), X, torch.from_numpy(Y)


@pytest.mark.parametrize(("d", "structure", "kernel"), CASES)
@pytest.mark.parametrize("t", [1, 2])
@pytest.mark.parametrize("known", [0.05, np.linspace(0.01, 1, 60)], ids=["common", "by row"])
def test_value_and_gradient(d, structure, kernel, t, known, thresholds):
    thresholds(_CUT_NATS=1e-9)
    made, X, Y = problem(d, structure, kernel, t, known)
    theta, n = made.kernel.theta0, len(X)
    extra = torch.from_numpy(np.broadcast_to(known, n).copy())
    operator = InterpolatedOperator(made.grid_kernel, theta, X, extra)
    H = operator.to_dense()
    V = torch.linalg.solve(H, Y)
    value = -0.5 * float((Y * V).sum() + t * torch.logdet(H) + n * t * np.log(2 * np.pi))
    grad = 0.5 * operator.bilinear_grad(V @ V.T - t * torch.linalg.inv(H))
    result = grid_marginal_likelihood(made, theta)
    assert result.value == pytest.approx(value, rel=1e-8)
    torch.testing.assert_close(result.grad, grad, rtol=1e-6, atol=1e-6)
    assert result.jitter == 0
    assert grid_marginal_likelihood(made, theta, eval_gradient=False).grad is None
    estimate, _ = GridGradient().estimate(made, theta, GradientState())
    assert estimate.value == result.value
    table = Table(X, Y.numpy(), np.zeros(t), np.ones(t), extra.numpy())
    few = rows_on_grid(made.grid_kernel.grid, table)
    by_rows, _ = GridGradient().estimate(replace(made, few=few), theta, GradientState())
    assert by_rows.value == pytest.approx(value, rel=1e-10)
    torch.testing.assert_close(by_rows.grad, grad, rtol=1e-8, atol=1e-8)


def test_few_rows_train_by_themselves(thresholds, stand_in):
    """A rough prior on a product grid has far more columns than there are rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(size=(50, 3))
    y = np.sin(4 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.1 * rng.standard_normal(50)
    settings = dict(structure="product", grid_size=7, random_state=0)
    asked = []

    def counted(grid, table, device):
        asked.append(len(table.X))
        return original(grid, table, device)

    original = stand_in("rows_on_grid", counted)
    by_rows = KISSGPRegressor(**settings).fit(X, y)
    assert asked == [50]
    thresholds(_FEW_NUMBERS=0)
    by_grid = KISSGPRegressor(**settings).fit(X, y)
    assert asked == [50]
    np.testing.assert_allclose(by_rows.kernel_.theta, by_grid.kernel_.theta, atol=1e-3)
    value = by_grid.log_marginal_likelihood_value_
    assert by_rows.log_marginal_likelihood_value_ == pytest.approx(value, abs=1e-5)


def test_too_little_noise_is_raised_and_reported():
    X = np.random.default_rng(1).uniform(-1, 2, (60, 1))
    compiled = compile_kernel(C(2.0) * RBF(0.5), 1)
    kernel = GridKernel(compiled, make_grid(X, [60], "product"))
    rows = CommonNoise(grid_moments(rows_of(X, np.sin(2 * X)), kernel.grid), kernel.grid, 0.0)
    made, theta = GridProblem.make(kernel, rows, 60), compiled.theta0
    result = grid_marginal_likelihood(made, theta)
    assert result.jitter == pytest.approx(2e-9)
    # The jitter is part of the model: it moves with the prior variance.
    for k, step in enumerate(1e-3 * torch.eye(2, dtype=torch.float64)):
        ends = [grid_marginal_likelihood(made, theta + s * step).value for s in (1, -1)]
        assert float(result.grad[k]) == pytest.approx((ends[0] - ends[1]) / 2e-3, rel=1e-3)


@pytest.mark.parametrize("noise", [1e-1, 1e-4])
def test_what_the_cut_costs_in_three_columns(noise):
    rng = np.random.default_rng(0)
    X, n = rng.uniform(size=(300, 3)), 300
    Y = np.sin(5 * X[:, :1]) * X[:, 1:2] + noise**0.5 * rng.standard_normal((n, 1))
    compiled = compile_kernel(C(1.0) * RBF([0.8, 0.7, 0.9]) + W(noise), 3)
    kernel = GridKernel(compiled, make_grid(X, [10] * 3, "product"))
    grid, theta = kernel.grid, compiled.theta0
    rows = CommonNoise(grid_moments(rows_of(X, Y), grid), grid, 0.0)
    made = GridProblem.make(kernel, rows, n)
    result = grid_marginal_likelihood(made, theta)
    assert len(result.inner) < 700 < grid.n_points
    H = InterpolatedOperator(kernel, theta, X)
    dense, Y = H.to_dense(), torch.from_numpy(Y)
    V = torch.linalg.solve(dense, Y)
    value = -0.5 * float((Y * V).sum() + torch.logdet(dense) + n * np.log(2 * np.pi))
    assert result.value == pytest.approx(value, abs=1e-4)
    grad = 0.5 * H.bilinear_grad(V @ V.T - torch.linalg.inv(dense))
    torch.testing.assert_close(result.grad, grad, rtol=0, atol=1e-3)
    # Predictions, in units of the posterior's deviation.
    new = np.vstack([rng.uniform(size=(50, 3)), [[0.0] * 3, [1.0] * 3]])
    posterior, rows = GridPosterior(kernel, theta, result), torch.from_numpy(new)
    both = InterpolatedOperator(kernel, theta, np.vstack([X, new])).to_dense()
    cross, own = both[n:, :n], both.diagonal()[n:] - noise
    std = (own - (cross * torch.linalg.solve(dense, cross.T).T).sum(1)).sqrt()
    assert float(((posterior.mean(rows) - cross @ V)[:, 0] / std).abs().max()) < 1e-4
    # What the grid misses at the rows is no part of the cut.
    variance = posterior.variance(rows) - result.misfit
    assert float((variance.sqrt() / std - 1).abs().max()) < 1e-4
