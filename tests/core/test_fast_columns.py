"""A column over whose range the target varies many times: found, resolved by starts, or said."""

import warnings

import numpy as np
import pytest
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    QSGPRegressor,
    SGPRRegressor,
)
from skscalablegp.core._fast_columns import StartRows, fast_column

NOISE = 0.4


def series(n, cycles, d=1, seed=0):
    """Rows of uniform columns, the target, and the function of which it is a noisy value."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    phase = 2 * np.pi * cycles * X[:, d // 2]
    f = 3 * np.sin(phase) + 1.5 * np.sin(2 * phase)
    if d > 1:
        f = f + X[:, 0] + np.sin(3 * X[:, -1])
    return X, f + NOISE * rng.standard_normal(n), f


def fitted(model, X, y):
    """The model, and what was said of a fast column."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return model, [str(w.message) for w in caught if "varies many times" in str(w.message)]


@pytest.mark.parametrize("n, cycles, d", [(200, 12, 1), (2500, 187, 1), (3000, 60, 4)])
def test_the_column_is_found(n, cycles, d):
    X, y, f = series(n, cycles, d)
    fast = fast_column(X, y[:, None])
    assert fast.column == d // 2
    # Windows much shorter than a cycle, in which the mean is not the function's own mean.
    assert fast.width < 0.6 / cycles
    # The errors are those of predictions from other rows: no smaller than the noise.
    assert fast.errors.mean() * y.var() > NOISE**2


@pytest.mark.parametrize("seed", range(20))
def test_smooth_functions_and_noise_have_none(seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((int(rng.integers(200, 5000)), int(rng.integers(1, 12))))
    y = seed % 2 * np.tanh(2 * X[:, 0]) + rng.standard_normal(len(X))
    assert fast_column(X, y[:, None]) is None


def test_rows_for_a_start_hold_neighbours_in_the_column():
    X, y, _ = series(9000, 187)
    rows = StartRows(9000, 1, lambda some: (X[some], y[some, None]))
    random = np.random.default_rng(1).permutation(9000)[:300]
    chosen = rows.chosen(random)
    assert len(chosen) == len(np.unique(chosen)) == 300

    def near(some):
        """The share of rows with another one within a twentieth of a cycle."""
        return (np.diff(np.sort(X[some, 0])) < 1 / 187 / 20).mean()

    assert near(chosen) > 0.4 and near(random) < 0.15
    # Where random rows resolve the column, or nothing is fast, they stay.
    smooth = StartRows(9000, 1, lambda some: (X[some], X[some]))
    np.testing.assert_array_equal(smooth.chosen(random), np.sort(random))


@pytest.mark.slow
@pytest.mark.parametrize("model", [QSGPRegressor(random_state=0)], ids=["qsgp"])
def test_a_default_learns_a_series_of_many_cycles(model):
    X, y, f = series(3000, 100)
    X_new, _, f_new = series(500, 100, seed=1)
    model, said = fitted(model, X, y)
    assert not said
    # Thirty rows a cycle, of noise .4 each.
    assert np.sqrt(np.mean((model.predict(X_new) - f_new) ** 2)) < 0.7 * NOISE


def test_a_grid_has_points_for_the_column():
    X, y, _ = series(3000, 100)
    model, said = fitted(KISSGPRegressor(max_iter=1, random_state=0), X, y)
    (axis,), *_ = model.grid_.components
    assert axis.step < 1 / 100 / 4


def test_a_subset_holds_neighbours():
    X, y, _ = series(2100, 70)
    model = NNGPRegressor(
        objective="subset",
        subset_size=150,
        n_neighbors=10,
        calibrate=False,
        max_iter=3,
        random_state=0,
    )
    model, said = fitted(model, X, y)
    assert not said and model.kernel_.k1.k2.length_scale < 0.5 / 70


def test_what_is_missed_is_said():
    """Sixty inducing points cannot follow a hundred cycles."""
    X, y, f = series(3000, 100)
    few = SGPRRegressor(n_inducing=60, max_iter=3, small_table="method", random_state=0)
    model, said = fitted(few, X, y)
    assert np.mean((model.predict(X) - f) ** 2) > 0.5 * f.var()
    assert len(said) == 1 and "column 0" in said[0]
    assert model.fit_report_.status not in ("converged", "completed")


@pytest.mark.slow
@pytest.mark.parametrize(
    "estimator, n, cycles, d",
    [
        (IterativeGPRegressor, 2500, 52, 1),
        (IterativeGPRegressor, 4000, 150, 3),
        (KISSGPRegressor, 2500, 52, 1),
    ],
)
def test_defaults_learn_it_or_say_so(estimator, n, cycles, d):
    X, y, f = series(n, cycles, d)
    X_new, y_new, f_new = series(500, cycles, d, seed=1)
    model, said = fitted(estimator(random_state=0), X, y)
    mean, std = model.predict(X_new, return_std=True)
    density = np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * np.square((y_new - mean) / std))
    # The default kernel, started at the scale of the cycle, by scikit-learn on a part of the range.
    assert said or density < reference(n, cycles, d) + 0.1


def reference(n, cycles, d):
    """The density of new rows under scikit-learn's exact process, of the rows of a part."""
    from sklearn.gaussian_process import GaussianProcessRegressor

    X, y, _ = series(n, cycles, d)
    X_new, y_new, _ = series(500, cycles, d, seed=1)
    low, high = 0.4, 0.6 if d == 1 else 0.5
    near = (X[:, d // 2] > low) & (X[:, d // 2] < high)
    inside = (X_new[:, d // 2] > low + 0.02) & (X_new[:, d // 2] < high - 0.02)
    scale = np.ones(d)
    scale[d // 2] = 0.2 / cycles
    kernel = ConstantKernel(6.0) * Matern(scale, (1e-4, 1e3), nu=1.5) + WhiteKernel(0.2)
    model = GaussianProcessRegressor(kernel).fit(X[near], y[near])
    mean, std = model.predict(X_new[inside], return_std=True)
    error = (y_new[inside] - mean) / std
    return np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * np.square(error))
