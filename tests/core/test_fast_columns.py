"""A column over whose range the target varies many times: found, resolved by starts, or said."""

import warnings

import named
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import (
    IterativeGPRegressor,
    KISSGPRegressor,
    NNGPRegressor,
    QSGPRegressor,
    SGPRRegressor,
    SVGPRegressor,
)
from skscalablegp.core import LeftOut, StartRows, fast_column

NOISE = 0.4
LOCAL = named.module("local_errors")
nothing_learned = named.module("nothing_learned").nothing_learned


def series(n, cycles, d=1, seed=0):
    """Rows of uniform columns, the target, and the function of which it is a noisy value."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, d))
    f = function(X, cycles)
    return X, f + NOISE * rng.standard_normal(n), f


def function(X, cycles):
    d = X.shape[1]
    phase = 2 * np.pi * cycles * X[:, d // 2]
    f = 3 * np.sin(phase) + 1.5 * np.sin(2 * phase)
    return f + X[:, 0] + np.sin(3 * X[:, -1]) if d > 1 else f


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


def test_local_errors_are_those_of_processes_of_the_nearest_rows(thresholds):
    """scikit-learn's process of the other rows of a window predicts the row that it surrounds."""
    X, y, _ = series(400, 20, 3)
    fast = fast_column(X, y[:, None])
    thresholds(_OF_OTHERS=(4.0,), _OF_FAST=(2.0,), _NOISES=(0.1,))
    errors = LOCAL.local_errors(fast, X, y[:, None], 30)
    scale = 4 * X.std(0) * np.sqrt(3)
    scale[1] = 2 * fast.width
    order = np.argsort(X[:, 1])
    z = (y - y.mean()) / y.std()
    for row in range(30):
        place = int(np.flatnonzero(order == row)[0])
        begin = min(max(place - LOCAL.NEAREST // 2, 0), len(X) - LOCAL.NEAREST - 1)
        others = np.setdiff1d(order[begin : begin + LOCAL.NEAREST + 1], row)
        gp = GaussianProcessRegressor(Matern(scale, nu=1.5), alpha=0.1, optimizer=None)
        predicted = gp.fit(X[others], z[others]).predict(X[row : row + 1])
        assert errors[row] == pytest.approx((z[row] - predicted[0]) ** 2, rel=1e-6)


@pytest.mark.parametrize(
    "n, cycles, d",
    [
        (1500, 60, 2),
        pytest.param(800, 40, 1, marks=pytest.mark.slow),
        pytest.param(1500, 60, 4, marks=pytest.mark.slow),
    ],
)
def test_local_errors_are_as_small_as_those_of_the_exact_process(n, cycles, d):
    """As small as those of the dense process, whose hyperparameters a part of the rows chose."""
    X, y, _ = series(n, cycles, d)
    errors = LOCAL.local_errors(fast_column(X, y[:, None]), X, y[:, None], 200) * y.var()
    inverse = np.linalg.inv(of_part(X, y, cycles, d)(X))
    exact = np.square(inverse @ y / np.diag(inverse))[:200]
    assert NOISE**2 < errors.mean() < 1.1 * exact.mean()


@pytest.mark.parametrize("missing, missed", [(0.02, False), (0.05, True)])
def test_a_tenth_of_a_nat_is_missed(missing, missed):
    """Noise has .027 of the variance, the exact process leaves .049, and means of two rows .133."""
    X, y, f = series(1500, 60, 2)
    off = np.sqrt(missing) * y.std() * np.random.default_rng(2).standard_normal(len(y))

    class Given:
        def _left_out(self, X, y, noise_variance, rows):
            return LeftOut(rows, (f + off)[rows], None, "leave_one_out")

    assert ("varies many times" in nothing_learned(Given(), X, y)) == missed


@pytest.mark.parametrize("n, cycles, d", [(3000, 60, 2), (3000, 100, 3)])
def test_the_function_itself_misses_nothing(n, cycles, d):
    """A model without a closed form is evaluated close to rows, not cycles away."""
    X, y, _ = series(n, cycles, d)

    class Known:
        def _left_out(self, X, y, noise_variance, rows):
            return None

        def _expected_targets(self, X):
            return function(X, cycles)[:, None]

    assert nothing_learned(Known(), X, y) == ""


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


def test_a_grid_has_points_for_the_column():
    X, y, _ = series(3000, 100)
    model, said = fitted(KISSGPRegressor(max_iter=1, random_state=0), X, y)
    (axis,), *_ = model.grid_.components
    assert axis.step < 1 / 100 / 4


@pytest.mark.parametrize(
    "n, cycles, size", [(2100, 70, 150), pytest.param(9000, 187, 300, marks=pytest.mark.slow)]
)
def test_a_subset_holds_neighbours(n, cycles, size):
    X, y, _ = series(n, cycles)
    model = NNGPRegressor(
        objective="subset",
        subset_size=size,
        n_neighbors=10,
        calibrate=False,
        max_iter=3,
        random_state=0,
    )
    model, said = fitted(model, X, y)
    assert not said and model.kernel_.k1.k2.length_scale < 0.5 / cycles


def test_what_is_missed_is_said():
    """Sixty inducing points cannot follow a hundred cycles."""
    X, y, f = series(3000, 100)
    few = SGPRRegressor(n_inducing=60, max_iter=3, small_table="method", random_state=0)
    model, said = fitted(few, X, y)
    assert np.mean((model.predict(X) - f) ** 2) > 0.5 * f.var()
    assert len(said) == 1 and "column 0" in said[0]
    assert model.fit_report_.status not in ("converged", "completed")


def case(model, n, cycles, d, quick=False):
    """A cell of the contract: a fit of n rows of d columns, one of which has so many cycles."""
    name = f"{type(model).__name__}-{n}x{d}-{cycles}"
    return pytest.param(model, n, cycles, d, id=name, marks=() if quick else pytest.mark.slow)


@pytest.mark.seldom(
    "IterativeGPRegressor-4000x3-150",
    "KISSGPRegressor-4000x3-150",
    "NNGPRegressor-2500x1-52",
    "QSGPRegressor-4000x3-150",
    "SGPRRegressor-3000x3-100",
    "SVGPRegressor-2500x1-52",
)
@pytest.mark.parametrize(
    "model, n, cycles, d",
    [
        case(IterativeGPRegressor(), 300, 20, 2, quick=True),
        case(IterativeGPRegressor(), 2500, 52, 1),
        case(IterativeGPRegressor(), 4000, 150, 3),
        case(KISSGPRegressor(), 2500, 52, 1),
        case(KISSGPRegressor(), 4000, 150, 3),
        case(NNGPRegressor(), 2500, 52, 1),
        case(QSGPRegressor(), 4000, 150, 3),
        case(SGPRRegressor(), 2500, 187, 1),
        case(SGPRRegressor(), 3000, 100, 3),
        case(SVGPRegressor(), 2500, 52, 1),
    ],
)
def test_defaults_learn_it_or_say_so(model, n, cycles, d):
    """The density of new rows is within .1 nats of the best start's, or there is a warning."""
    X, y, _ = series(n, cycles, d)
    fit, said = fitted(clone(model).set_params(random_state=0), X, y)
    assert said or density(fit, cycles, d) < best_start(model, n, cycles, d) + 0.1


def density(model, cycles, d):
    X, y, _ = series(500, cycles, d, seed=1)
    mean, std = model.predict(X, return_std=True)
    return np.mean(0.5 * np.log(2 * np.pi * std**2) + 0.5 * np.square((y - mean) / std))


def best_start(model, n, cycles, d):
    """The density under scikit-learn's process, or of the model itself, started at the cycle."""
    if not isinstance(model, SVGPRegressor):
        return reference(n, cycles, d)
    X, y, _ = series(n, cycles, d)
    started = clone(model).set_params(random_state=0, kernel=right_kernel(cycles, d))
    return density(fitted(started, X, y)[0], cycles, d)


def right_kernel(cycles, d):
    scale = np.ones(d)
    scale[d // 2] = 0.2 / cycles
    return ConstantKernel(6.0) * Matern(scale, (1e-4, 1e3), nu=1.5) + WhiteKernel(0.2)


def reference(n, cycles, d):
    """The density under scikit-learn's exact process, with the hyperparameters of a part."""
    X, y, _ = series(n, cycles, d)
    kernel = of_part(X, y, cycles, d)
    return density(GaussianProcessRegressor(kernel, optimizer=None).fit(X, y), cycles, d)


def of_part(X, y, cycles, d):
    """The kernel of scikit-learn's process of the rows in a part of the column."""
    near = np.abs(X[:, d // 2] - 0.5) < (0.1 if d == 1 else 0.05)
    return GaussianProcessRegressor(right_kernel(cycles, d)).fit(X[near], y[near]).kernel_
