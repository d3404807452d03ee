"""Factors of a network's first weights."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal

from skscalablegp.core import input_weights
from skscalablegp.features import make_network, weigh_inputs


def weights_of(X, y, **more):
    tables = torch.as_tensor(X), torch.as_tensor(y)[:, None]
    return input_weights(lambda rows: [part[rows] for part in tables], *X.shape, **more)


def table(d=8, n=500):
    rng = np.random.default_rng(0)
    X = np.sort(rng.standard_normal((n, d)), axis=0)
    for j in range(1, d):
        X[:, j] = rng.permutation(X[:, j])
    return X, np.cos(2 * X[:, 0]) + 0.5 * X[:, 2] + 0.1 * rng.standard_normal(n), rng


def test_columns_that_matter_have_large_factors_and_none_has_zero():
    """The rows are sorted by a column that matters, so that an order of rows must be drawn."""
    X, y, _ = table()
    weights = weights_of(X, y)
    assert set(np.argsort(weights)[-2:]) == {0, 2}
    assert weights.min() >= 0.3 and weights[[0, 2]].min() > 2 * weights.min()
    assert_allclose(np.square(weights).mean(), 1)
    assert_array_equal(weights_of(X, y), weights)


def test_without_a_signal_columns_or_time_there_are_no_factors():
    X, y, rng = table()
    assert weights_of(X, rng.standard_normal(len(X))) is None
    assert weights_of(X, np.zeros(len(X))) is None
    assert weights_of(X[:, :2], y) is None
    assert weights_of(X, y, seconds_left=0.5) is None
    assert weights_of(X, y, seconds_left=5.0) is not None


@pytest.mark.parametrize("layers", [(5, 2), (), torch.nn.Linear(3, 2)])
def test_only_the_first_layer_of_dense_networks_changes(layers):
    network = make_network(3, layers)
    params = network.initial(torch.Generator().manual_seed(0), torch.float64)
    factors = np.array([2.0, 1.0, 0.5])
    changed = weigh_inputs(network, params, factors)
    X = torch.randn(4, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    seen = X * torch.as_tensor(factors) if layers == (5, 2) else X
    assert_allclose(network(changed, X), network(params, seen))
    assert_allclose(network(weigh_inputs(network, params, None), X), network(params, X))
