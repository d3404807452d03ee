"""Where training on a grid begins."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import (
    RBF,
    ConstantKernel,
    DotProduct,
    Matern,
    RationalQuadratic,
    WhiteKernel,
)

from skscalablegp import KISSGPRegressor
from skscalablegp.core import Run, choose_start
from skscalablegp.core.training import Monitor
from skscalablegp.kernels import Columns, SumOverColumns, compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows, exact_marginal_likelihood


def drawn(d, f, noise=0.1, n=1000, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d))
    return X, f(X) + noise * rng.standard_normal(n)


@pytest.mark.parametrize(
    ("d", "f", "settings"),
    [
        (1, lambda X: np.sin(15 * X[:, 0]), {"grid_size": 200}),
        (2, lambda X: np.sin(8 * X[:, 0]) + X[:, 1], {"grid_size": [60, 20]}),
        (3, lambda X: np.sin(8 * X[:, 0]) + X[:, 1], {"structure": "additive", "grid_size": 60}),
    ],
    ids=["one column", "product", "additive"],
)
def test_steep_functions_are_found(d, f, settings):
    X, y = drawn(d, f)
    model = KISSGPRegressor(**settings).fit(X[:800], y[:800])
    assert model.score(X[800:], y[800:]) > 0.9
    assert model.fit_report_.status == "converged"
    assert "training began at length scales from" in str(model.fit_report_)


def test_the_sum_over_columns_is_the_kernel_of_an_additive_grid():
    X, y = drawn(3, lambda X: np.sin(X[:, 0]) + X[:, 2], n=40)
    kernel = ConstantKernel(1.3) * RBF([0.8, 1.5, 2.0]) + WhiteKernel(0.02)
    fixed = KISSGPRegressor(kernel, structure="additive", grid_size=400, optimizer=None, alpha=0)
    model = fixed.fit(X, y)
    compiled = compile_kernel(kernel, 3)
    theta, rows = compiled.theta0, torch.from_numpy(X)
    node = SumOverColumns(compiled.node, [0, 1, 2])
    K = node.smooth(theta, rows, rows)
    assert_allclose(node.diag(theta, rows).expand(40), K.diagonal())
    noise = torch.as_tensor(node.noise(theta, rows)).expand(40)
    H = (K + torch.diag(noise)).numpy()
    y = (y - model._y_train_mean) / model._y_train_std
    sign, log_det = np.linalg.slogdet(H)
    value = -0.5 * (y @ np.linalg.solve(H, y) + log_det + 40 * np.log(2 * np.pi))
    assert sign == 1
    assert_allclose(model.log_marginal_likelihood_value_, value, rtol=1e-4)


@pytest.mark.parametrize(
    "kernel",
    [
        ConstantKernel(1.3) * RBF([0.8, 1.5, 2.0]) + WhiteKernel(0.02),
        (Matern(0.7, nu=0.5) + ConstantKernel(0.2)) ** 2,
        RationalQuadratic(0.7, 2.0) + DotProduct(0.3) * RBF(0.5),
        Columns(RBF([0.8, 1.5]), [2, 0]) + RBF([0.8, 1.5, 2.0]),
    ],
)
def test_summands_of_columns_are_kernels_of_rows_with_zeros(kernel):
    compiled = compile_kernel(kernel, 3)
    X, Z = (torch.from_numpy(drawn(3, lambda X: X[:, 0], n=n, seed=n)[0]) for n in (7, 5))
    theta, total = compiled.theta0, 0.0
    node = SumOverColumns(compiled.node, [0, 2])
    for column in (0, 2):
        alone = torch.eye(3, dtype=torch.float64)[column]
        expected = compiled.node.smooth(theta, X * alone, Z * alone)
        assert_allclose(node.summands[column].smooth(theta, X, Z), expected, rtol=1e-14)
        total = total + expected
    assert_allclose(node.smooth(theta, X, Z), total, rtol=1e-14)


def test_nothing_moves_without_training():
    X, y = drawn(1, lambda X: np.sin(15 * X[:, 0]), n=200)
    kernel = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.1)
    model = KISSGPRegressor(kernel, optimizer=None).fit(X, y)
    assert_allclose(model.kernel_.theta, kernel.theta, rtol=1e-12)
    assert "training began" not in str(model.fit_report_)


def test_a_grid_without_memory_for_steep_functions_says_that_it_cannot_follow():
    X, y = drawn(2, lambda X: np.sin(4 * X[:, 0]) * np.sin(4 * X[:, 1]), n=800)
    model = KISSGPRegressor(grid_size=40, max_iter=1, memory_budget=50 * 2**20)
    cannot = r"grid cannot follow .*RBF\(length_scale=\[0\.\d+, 0\..*Use IterativeGPRegressor"
    with pytest.warns(ConvergenceWarning, match=cannot):
        model.fit(X[:600], y[:600])
    assert model.score(X[600:], y[600:]) < 0.3
    report = str(model.fit_report_)
    assert "cannot follow" in report and "training began" not in report
    with pytest.warns(ConvergenceWarning, match="max_iter") as caught:
        model.set_params(memory_budget=2**30).fit(X[:600], y[:600])
    assert not any("cannot follow" in str(warning.message) for warning in caught)
    assert model.score(X[600:], y[600:]) > 0.8


@pytest.mark.slow
def test_each_column_of_a_sum_has_a_length_scale_of_its_own():
    X, y = drawn(20, lambda X: np.sin(10 * X[:, 0]) + X[:, 1], noise=0.4, n=600)
    model = KISSGPRegressor(structure="additive", grid_size=40, max_iter=1, random_state=0)
    with pytest.warns(ConvergenceWarning, match="max_iter"):
        model.fit(X, y)
    scales = model.kernel_.k1.k2.length_scale
    assert set(np.argsort(scales)[:2]) == {0, 1} and scales[0] < 0.5 and scales[1] > 3 * scales[0]


def test_few_columns_of_many_get_the_variance_of_the_sum():
    """With a thirtieth each, noise columns would have to help those that matter."""
    X, y = drawn(30, lambda X: np.sin(2 * X[:, 0]) + np.cos(2 * X[:, 1]), noise=0.5, n=300)
    y = (y - y.mean()) / y.std()
    kernel = compile_kernel(ConstantKernel(1 / 30) * RBF(np.ones(30)) + WhiteKernel(1.0), 30)
    kernel.node = SumOverColumns(kernel.node, list(range(30)))
    zeros = torch.zeros(300, dtype=torch.float64)
    problem = GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y[:, None]), zeros))
    run = Run(Monitor(), torch.Generator().manual_seed(0), np.random.RandomState(0))
    start = choose_start(problem, kernel.theta0.numpy(), run)
    assert np.exp(start.theta[0]) > 3 / 30
    assert set(np.flatnonzero(start.theta[1:-1] < np.log(2))) == {0, 1}


def test_the_value_of_a_sum_is_that_of_its_exact_process():
    X, y = drawn(3, lambda X: np.sin(5 * X[:, 0]) + X[:, 1], n=120)
    y = (y - y.mean()) / y.std()
    kernel = compile_kernel(ConstantKernel() * RBF([1.0, 1.0, 1.0]) + WhiteKernel(0.1), 3)
    kernel.node = SumOverColumns(kernel.node, [0, 1, 2])
    zeros = torch.zeros(120, dtype=torch.float64)
    problem = GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y[:, None]), zeros))
    run = Run(Monitor(), torch.Generator().manual_seed(0), np.random.RandomState(0))
    start = choose_start(problem, kernel.theta0.numpy(), run)
    assert not np.allclose(start.theta, kernel.theta0)
    exact = exact_marginal_likelihood(problem, torch.as_tensor(start.theta), False).value
    assert_allclose(start.value, exact / 120, rtol=1e-8)
