"""Factors of a network's first weights, from an exact process of some rows."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from scipy.spatial.distance import cdist

from skscalablegp.core import Run, data_scaled_kernel, first_layer_factors, first_layer_rows
from skscalablegp.core.training import Budget, Monitor
from skscalablegp.features import has_first_layer, make_network, weigh_inputs
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, Rows


def run(seconds=None):
    return Run(Monitor(budget=Budget(seconds)), torch.Generator(), np.random.RandomState(0))


def factors_of(X, y, n=None):
    X, Y = torch.as_tensor(X), torch.as_tensor(y)[:, None]
    kernel = compile_kernel(data_scaled_kernel(X.numpy(), Y.numpy()), X.shape[1])
    return first_layer_factors(
        GPProblem(kernel, Rows.of(X, Y, torch.zeros(len(X)).double())), n or len(X), run()
    )


def table(d=8, n=300):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    return X, np.cos(2 * X[:, 0]) + 0.5 * X[:, 2] + 0.1 * rng.standard_normal(n), rng


def log_likelihood(X, y, inverse):
    """The best over scales and noise variances of a Matern process with these inverse lengths."""

    def value(scale, noise):
        R = np.sqrt(3) * scale * cdist(X * inverse, X * inverse)
        H = (1 + R) * np.exp(-R) + noise * np.eye(len(y))
        return -0.5 * y @ np.linalg.solve(H, y) - 0.5 * np.linalg.slogdet(H)[1]

    return max(value(scale, noise) for scale in (0.1, 0.3, 1.0) for noise in (0.01, 0.1, 1.0))


@pytest.mark.slow
def test_factors_are_those_of_a_likely_process():
    """The oracle is a dense process in NumPy, without the package's starts and kernels."""
    X, y, _ = table()
    factors = factors_of(X, y)
    assert_allclose(np.square(factors).mean(), 1)
    y = (y - y.mean()) / y.std()
    likely = log_likelihood(X, y, factors)
    # Neither equal length scales nor those in place of their inverses would do.
    assert likely > log_likelihood(X, y, np.ones(8)) + 50
    assert likely > log_likelihood(X, y, factors**-1) + 50
    assert set(np.argsort(factors)[-2:]) == {0, 2} and factors.min() > 0
    assert_array_equal(factors_of(X, table()[1]), factors)


@pytest.mark.slow
def test_simple_models_replace_length_scales_where_there_are_many_rows_a_column():
    X, y, _ = table()
    few, some, many = (np.square(factors_of(X, y, n)) for n in (300, 2_000, 4_000))
    assert_array_equal(factors_of(X, y, 40_000) ** 2, many)
    for squares in (few, some, many):
        assert_allclose(squares.mean(), 1)
        assert set(np.argsort(squares)[-2:]) == {0, 2}
    # A tenth of the squares is the same for all columns.
    assert_allclose(many.min(), 0.1, atol=0.02)
    # At half of these rows simple models have a quarter of the whole.
    process = (few - 0.075**2 * many) / (1 - 0.075**2)
    assert_allclose(some, 0.75 * process + 0.25 * many, atol=1e-12)


def test_no_rows_are_read_where_nothing_is_fitted():
    rows, counts = first_layer_rows(np.ones(5_000), 8, run())
    assert len(rows) == 2_000 and (counts == 1).all()
    assert len(first_layer_rows(np.ones(300), 8, run(5.0))[0]) == 300
    assert_array_equal(first_layer_rows(np.ones(5_000), 8, run())[0], rows)
    seeded = run()
    seeded.generator.manual_seed(7)
    assert_array_equal(first_layer_rows(np.ones(5_000), 8, seeded)[0], rows)
    # Merged rows are drawn as often as they count.
    counts = np.ones(5_000)
    counts[:100] = 1_000.0
    rows, drawn = first_layer_rows(counts, 8, run())
    assert drawn.sum() == 2_000 and drawn[rows < 100].sum() > 1_800
    assert first_layer_rows(np.ones(99), 8, run()) is None
    assert first_layer_rows(np.ones(300), 2, run()) is None
    assert first_layer_rows(np.ones(300), 501, run()) is None
    assert first_layer_rows(np.ones(300), 8, run(0.5)) is None
    assert factors_of(table()[0], np.zeros(300)) is None


@pytest.mark.parametrize("layers", [(5, 2), (), torch.nn.Linear(3, 2)])
def test_only_the_first_layer_of_dense_networks_changes(layers):
    network = make_network(3, layers)
    params = network.initial(torch.Generator().manual_seed(0), torch.float64)
    factors = np.array([2.0, 1.0, 0.5])
    changed = weigh_inputs(network, params, factors)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert has_first_layer(network) == (layers == (5, 2))
    seen = X * torch.as_tensor(factors) if layers == (5, 2) else X
    assert_allclose(network(changed, X), network(params, seen))
    assert_allclose(network(weigh_inputs(network, params, None), X), network(params, X))
