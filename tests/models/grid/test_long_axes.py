"""Long axes of a grid: their eigenpairs, and fits that end by the time budget."""

import pickle

import numpy as np
import pytest
import scipy.linalg
import torch
from inside import clock
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Matern, WhiteKernel

from skscalablegp import KISSGPRegressor
from skscalablegp.models.grid._grid_kernel import halved_eigh, leading_pairs


def column(m):
    """The covariances of the first of m points with all, and the whole matrix."""
    points = np.linspace(0.0, 10.0, m)[:, None]
    first = Matern(0.7, nu=1.5)(points[:1], points)[0]
    return torch.from_numpy(first), scipy.linalg.toeplitz(first)


@pytest.mark.parametrize("m", [10, 11])
def test_eigenpairs_by_halves_are_those_of_the_matrix(m):
    first, T = column(m)
    values, V = (part.numpy() for part in halved_eigh(first))
    np.testing.assert_allclose(np.sort(values), scipy.linalg.eigvalsh(T), rtol=1e-10)
    np.testing.assert_allclose(V * values @ V.T, T, atol=1e-13)
    np.testing.assert_allclose(V.T @ V, np.eye(m), atol=1e-13)
    alone, none = halved_eigh(first, vectors=False)
    np.testing.assert_allclose(alone.numpy(), values)
    assert none.shape == (m, 0)


def test_leading_pairs_leave_out_hardly_more_than_the_best_ones():
    first, T = column(500)
    values, V = (part.numpy() for part in leading_pairs(first, 60))
    best = scipy.linalg.eigvalsh(T)
    left = T - V * values @ V.T
    assert np.trace(left) < 1.02 * best[:-60].sum()
    assert scipy.linalg.eigvalsh(left).min() > -1e-11 * best[-1]
    np.testing.assert_allclose(V.T @ V, np.eye(60), atol=1e-8)


def kernel(d):
    return ConstantKernel(1.0) * RBF([0.3] * d) + WhiteKernel(0.1)


@pytest.mark.parametrize(
    ("d", "settings"),
    [
        (1, {"grid_size": 400}),
        (2, {"grid_size": 300, "structure": "additive"}),
        (2, {"solver": "cg", "kernel": kernel(2), "grid_size": 60}),
    ],
)
def test_every_path_of_a_grid_ends_by_the_budget(d, settings, thresholds, stand_in, monkeypatch):
    """Products take time by the number of their columns, and decompositions by the cube of their
    size: those of the long axes, as a whole or by halves, would take 1.5 to 11 seconds each."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, d))
    y = np.sin(6 * X).sum(1) + 0.3 * rng.standard_normal(len(X))
    seconds = [0.0]

    def slowly(function, price):
        def slow(self, *args, **kwargs):
            seconds[0] += price(self, *args)
            return function(self, *args, **kwargs)

        return slow

    product = slowly(lambda *args: multiply(*args), lambda self, V: 8e-3 * V.shape[1])
    multiply = stand_in("SparseMatrix.__matmul__", product)
    for name in ("eigh", "eigvalsh"):
        found = slowly(getattr(torch.linalg, name), lambda A: (len(A) > 150) * len(A) ** 3 / 6e6)
        monkeypatch.setattr(torch.linalg, name, found)
    thresholds(LONG_AXIS=200)
    model = KISSGPRegressor(max_seconds=5.0, random_state=0, **settings)
    with clock(lambda: seconds[0]), pytest.warns(ConvergenceWarning, match="max_seconds"):
        model.fit(X, y)
    assert seconds[0] < 1.2 * 5.0
    mean, std = model.predict(X[:20], return_std=True)
    again = pickle.loads(pickle.dumps(model)).predict(X[:20], return_std=True)
    np.testing.assert_allclose(again[0], mean, rtol=1e-6)
    np.testing.assert_allclose(again[1], std, rtol=1e-6)
    truth = np.sin(6 * X[:20]).sum(1)
    assert np.mean((truth - mean) ** 2) < 0.5 * np.var(truth)
