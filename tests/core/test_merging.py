"""Equal rows merged into one with a count."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skscalablegp.core.data import merged


def table(n=200, seed=0):
    rng = np.random.default_rng(seed)
    X, y = rng.integers(-2, 3, size=(n, 2)) / 7, rng.normal(size=(n, 2))
    return X, y, rng.choice([0.1, 0.2], size=n), rng.uniform(0, 2, size=n) * rng.integers(0, 2, n)


def test_sums_of_groups():
    X, y, noise, weights = table()
    found = merged(X, y, [noise], weights)
    keys = {}
    for i in np.flatnonzero(weights):
        keys.setdefault((*X[i], noise[i]), []).append(i)
    assert len(found.rows) == len(keys) < len(X)
    assert_array_equal(found.groups < 0, weights == 0)
    for k, row in enumerate(found.rows):
        rows = keys[(*X[row], noise[row])]
        assert_array_equal(np.flatnonzero(found.groups == k), rows)
        w = weights[rows]
        mean = w @ y[rows] / w.sum()
        assert_allclose(found.counts[k], w.sum())
        assert_allclose(found.y[k], mean, atol=1e-12)
        assert_allclose(found.within[k], w @ (y[rows] - mean) ** 2, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_weights_and_repetitions_in_any_order_are_equal_bit_for_bit(seed):
    X, y, noise, _ = table(40, seed)
    rng = np.random.default_rng(seed)
    weights = rng.integers(0, 4, size=40)
    one, order = merged(X, y, [noise], weights.astype(float)), rng.permutation(weights.sum())
    Xr, yr, noise_r = (np.repeat(a, weights, axis=0)[order] for a in (X, y, noise))
    other = merged(Xr, yr, [noise_r])
    assert_array_equal(X[one.rows], Xr[other.rows])
    for name in ("y", "counts", "within"):
        assert_array_equal(getattr(one, name), getattr(other, name))


def test_different_rows_stay_as_they_are():
    X, y = np.random.default_rng(0).normal(size=(50, 3)), np.zeros(50)
    for found in (merged(X, y, []), merged(X, y, [], np.ones(50))):
        assert np.shares_memory(X[found.rows], X)
        assert (found.counts == 1).all() and not found.within.any()
        assert_array_equal(found.groups, np.arange(50))
    some = merged(X, y, [], np.arange(50) % 2.0)
    assert_array_equal(some.rows, np.arange(1, 50, 2))
    assert (some.counts == 1).all() and not some.within.any()


def test_zeros_of_either_sign_are_equal():
    found = merged(np.array([[0.0], [-0.0], [1.0]]), np.array([1.0, 3.0, 5.0]), [])
    assert_array_equal(found.counts, [2, 1])
    assert_array_equal(found.y, [2, 5])
    assert_array_equal(found.within, [[2], [0]])
