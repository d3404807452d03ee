"""Fits to rows of which each rank has its own, compared with one process that has all of them."""

import os
import warnings
from hashlib import md5

import numpy as np
import pandas as pd
import pytest
from ranks.launched import launch
from sklearn.base import clone
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import (
    BSGDDKLRegressor,
    IterativeGPRegressor,
    KISSGPRegressor,
    MinimaxDKLRegressor,
    PoERegressor,
    QSGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    SGPRRegressor,
    SSRFFRegressor,
    SVGPRegressor,
    distribute,
)
from skscalablegp.workers import leading


def table(n=1501, d=3, seed=0):
    """Columns in other units, some far entries, and noise of two sizes."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * [1.0, 20.0, 0.1] + [5.0, -300.0, 0.0]
    X[::200, 1] *= 50
    y = np.sin(2 * X[:, 0]) + 10 * X[:, 2] + 0.3 * rng.normal(size=n)
    return X, y, rng.choice([0.01, 0.2], size=n)


POINTS = table(n=40, seed=1)[0]
COMMON = {"small_table": "method", "random_state": 0}
DEEP = COMMON | {"dtype": "float64", "feature_extractor": (8, 4)}
STEPS = {"inference": "stochastic", "dtype": "float64", "random_state": 0}
ESTIMATORS = {
    "features": RFFRegressor(n_components=60, optimizer="adam", max_iter=3, **COMMON),
    # Fewer rows than features are factorised by one rank.
    "many features": RFFRegressor(n_components=2000, optimizer=None, **COMMON),
    # Without noise the features need an orthogonal decomposition.
    "exact features": RFFRegressor(n_components=300, max_iter=2, alpha=1e-13, **COMMON),
    # Increments of the series, a draw of which is the exact matrix.
    "series": SSRFFRegressor(
        min_components=60, component_step=20, max_iter=3, truncation="exponential", **COMMON
    ),
    "exact series": SSRFFRegressor(min_components=2000, max_iter=2, **COMMON),
    "points": SGPRRegressor(n_inducing=40, max_iter=3, **COMMON),
    "moving points": SGPRRegressor(
        n_inducing=20, max_iter=3, optimize_inducing=True, inducing="random", **COMMON
    ),
    "all points": SGPRRegressor(n_inducing=1501, optimizer=None, **COMMON),
    "grid": KISSGPRegressor(grid_size=10, max_iter=3, **COMMON),
    "grids of columns": KISSGPRegressor(grid_size=30, structure="additive", max_iter=3, **COMMON),
    "batches": SVGPRegressor(n_inducing=30, max_iter=12, batch_size=400, **COMMON),
    "robust batches": SVGPRegressor(
        n_inducing=20, max_iter=6, batch_size=400, likelihood="student_t", **COMMON
    ),
    "steps of all rows": SVGPRegressor(
        n_inducing=20, max_iter=4, batch_size=4000, inducing="random", **COMMON
    ),
    "steps by Adam": SVGPRegressor(
        n_inducing=20, max_iter=6, variational_optimizer="adam", dtype="float64", **COMMON
    ),
    # Sums of float32 in another order would differ by more than the models may.
    "sampled functions": QSGPRegressor(
        n_components=300,
        n_dense=4,
        component_batch_size=100,
        control_variate_rank=60,
        max_iter=12,
        **STEPS,
    ),
    "sampled functions that move": QSGPRegressor(
        n_components=300,
        n_dense=4,
        component_batch_size=100,
        control_variate_rank=60,
        max_iter=8,
        freeze=0.3,
        optimizer="adam",
        learning_rate=1e-3,
        control_variate="squares",
        variational_optimizer="adagrad",
        **STEPS,
    ),
    "robust sampled functions": QSGPRegressor(
        n_components=600,
        n_dense=4,
        component_batch_size=100,
        control_variate_rank=60,
        max_iter=8,
        likelihood="laplace",
        **STEPS,
    ),
    "all functions": QSGPRegressor(n_components=80, random_state=0),
    "all robust functions": QSGPRegressor(n_components=60, likelihood="laplace", random_state=0),
    "functions at points": QSGPRegressor(
        basis=POINTS[:20],
        random_state=0,
    ),
    "functions at some rows": QSGPRegressor(
        ConstantKernel(2.0) * RBF([1.0, 1.0, 1.0]) + WhiteKernel(0.1),
        basis="rows",
        n_components=40,
        optimizer=None,
        random_state=0,
    ),
    "functions at chosen rows": QSGPRegressor(random_state=0),
    "deep": SCGDDKLRegressor(max_epochs=2, batch_size=100, **DEEP),
    "minimax": MinimaxDKLRegressor(RBF(), n_components=40, max_epochs=2, batch_size=100, **DEEP),
    "deep without held-out rows": BSGDDKLRegressor(
        max_epochs=1, batch_size=150, early_stopping=False, normalize_y=False, **DEEP
    ),
    "deep steps of all rows": SCGDDKLRegressor(
        max_epochs=2, batch_size=4000, exact_passes=False, optimizer="sgd", **DEEP
    ),
    "few rows": RFFRegressor(optimizer=None),
    "few rows in batches": SVGPRegressor(optimizer=None, random_state=0),
}
QUICK = ("features", "points", "grids of columns", "batches")
WAYS = (*QUICK, "sampled functions", "deep")


def own(*arrays):
    """The rows of this rank, of which the last one has few."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    ends = [0, *(1000 + 400 * k for k in range(size - 1)), len(arrays[0])]
    return [a[ends[rank] : ends[rank + 1]] for a in arrays]


def frame(X):
    return pd.DataFrame(X, columns=["a", "b", "c"])


def answers_of(model, X):
    """At rows without far entries, whose phases would multiply rounding errors of theta."""
    mean, std = model.predict(frame(X[1:200]), return_std=True)
    # Hyperparameters have ten times the tolerance of predictions: the likelihood hardly changes if
    # the variance and the length scales grow together, so that rounding moves both. The last test
    # here measures it.
    return np.concatenate([0.1 * model.kernel_.theta, mean.ravel(), std.ravel()])


def fitted(name, targets):
    model, (X, y, noise) = clone(ESTIMATORS[name]), table()
    y = y if targets == 1 else np.column_stack([y, X[:, 2]])
    rows, target, known = own(X, y, noise)
    warnings.simplefilter("ignore")
    with distribute(rows="own") as ranks:
        model.fit(frame(rows), target, **({"noise_variance": known} if targets == 1 else {}))
        alone = model.predict(frame(rows)).shape
    arrays = {k: v for k, v in sorted(vars(model).items()) if isinstance(v, np.ndarray)}
    data = b"".join(np.asarray(a).tobytes() for a in arrays.values() if a.dtype != object)
    hashed = md5(data + str(model.fit_report_).encode() + str(model.history_).encode())
    assert alone[0] == len(rows)  # A prediction concerns one rank.
    assert model.n_samples_seen_ == len(X) and list(model.feature_names_in_) == ["a", "b", "c"]
    largest = max(a.size for a in arrays.values())
    return answers_of(model, X), hashed.hexdigest(), ranks.bytes_sent, largest


def assert_same_fits(size, name, targets):
    answers = launch(size, fitted, name, targets)
    assert [code for code, _ in answers] == [0] * size, answers
    X, y, noise = table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = clone(ESTIMATORS[name])
        if targets == 1:
            alone.fit(frame(X), y, noise_variance=noise)
        else:
            alone.fit(frame(X), np.column_stack([y, X[:, 2]]))
        expected = answers_of(alone, X)
    for _, (numbers, *_) in answers:
        np.testing.assert_allclose(numbers, expected, rtol=0, atol=1e-6)
    assert len({hashed for _, (_, hashed, *_) in answers}) == 1


@pytest.mark.seldom(
    "3-robust batches-1", "3-series-1", "3-features-1", "3-deep-1", "2-exact series-1"
)
@pytest.mark.parametrize(
    "size, name, targets",
    [
        *((2, name, 1) for name in QUICK),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                *((3, name, 1) for name in (*WAYS, "robust batches", "series")),
                *((2, name, 2) for name in WAYS),
                *((2, name, 1) for name in ESTIMATORS if name not in (*QUICK, "robust batches")),
            ]
        ),
    ],
)
def test_fit_of_rows_at_several_ranks_is_that_of_one_process(size, name, targets):
    assert_same_fits(size, name, targets)


# ---------------------------------------------------------------- equal rows

GIVEN = ConstantKernel(1.5) * RBF([1.0, 15.0, 0.2]) + WhiteKernel(0.1)
UNTRAINED = {
    "features": RFFRegressor(GIVEN, n_components=60, optimizer=None, **COMMON),
    "points": SGPRRegressor(GIVEN, inducing=POINTS, optimizer=None, **COMMON),
    "batches": SVGPRegressor(GIVEN, inducing=POINTS, optimizer=None, **COMMON),
    "grids of columns": KISSGPRegressor(
        GIVEN, grid_size=30, structure="additive", optimizer=None, **COMMON
    ),
}


def repeated_table():
    """Rows 100 to 299 once more at the end, with the same and with other targets."""
    X, y, _ = table()
    again = np.concatenate([y[100:200], y[200:300] + 0.5])
    return np.concatenate([X, X[100:300]]), np.concatenate([y, again])


def fitted_with_repeats(name):
    model, (X, y) = clone(UNTRAINED[name]), repeated_table()
    warnings.simplefilter("ignore")
    with distribute(rows="own"):
        model.fit(*own(X, y))
    return np.concatenate(model.predict(X[:100], return_std=True))


@pytest.mark.parametrize(
    "name", ["features", *(pytest.param(k, marks=pytest.mark.slow) for k in [*UNTRAINED][1:])]
)
def test_equal_rows_of_two_ranks_count_as_in_one_process(name):
    """One process merges them, which does not change the likelihood."""
    answers = launch(2, fitted_with_repeats, name)
    assert [code for code, _ in answers] == [0, 0], answers
    X, y = repeated_table()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        alone = clone(UNTRAINED[name]).fit(X, y)
    expected = np.concatenate(alone.predict(X[:100], return_std=True))
    for _, numbers in answers:
        np.testing.assert_allclose(numbers, expected, rtol=0, atol=1e-6)


# ---------------------------------------------------------------- what travels


class Noted:
    """A callback that notes the bytes of each step, of which only rank 0 keeps the list."""

    def __init__(self):
        self.seen = []

    def __call__(self, step):
        if step.stage == "full":
            self.seen.append(leading().together(bytes_of_all))


def bytes_of_all(ranks):
    return [int(text) for text in ranks.life.gather("bytes", str(ranks.bytes_sent))]


def step_bytes(model, n):
    X, y, _ = own(*table(n))
    noted = Noted()
    warnings.simplefilter("ignore")
    with distribute(rows="own"):
        model.set_params(callbacks=noted).fit(X, y)
    m = len(model.coef_) if hasattr(model, "coef_") else len(model.inducing_points_)
    return np.diff(noted.seen, axis=0).tolist(), m, len(model.kernel_.theta)


@pytest.mark.parametrize("n", [1501, pytest.param(2700, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name", ["features", *(pytest.param(k, marks=pytest.mark.slow) for k in ("points", "batches"))]
)
def test_sums_of_the_number_of_functions_travel_and_no_rows(name, n):
    """The bytes of a step do not depend on the number of rows."""
    model = clone(ESTIMATORS[name]).set_params(optimizer="adam", max_iter=4)
    if name != "batches":
        model.set_params(n_iter_no_change=None)
    answers = launch(2, step_bytes, model, n)
    assert [code for code, _ in answers] == [0, 0], answers
    sent, m, p = answers[0][1]
    d, square = 3, m * m
    if name == "features":
        to_0, to_others = square + m + 2 + p, 2 * p + square + m
    elif name == "batches":
        # Training calls the callback at every fourth step. The constant of the latent function has
        # a value, a slope and a curvature.
        to_0 = 4 * (square + 2 * m + 2 + p + m * d)
        to_others = 4 * (square + m + 1 + p + m * d + 1 + 400)
    else:
        to_0, to_others = square + m + 5 + p + m * d, 2 * (p + m * d) + 3 * square + m
    assert {rank_1 for _, rank_1 in sent} == {8 * to_0}
    # Each task has a description, with the kernel and the frequencies of features.
    assert all(0 < rank_0 - 8 * to_others < 20_000 for rank_0, _ in sent)


# ---------------------------------------------------------------- refusals


def refused(kind):
    rank = int(os.environ["RANK"])
    X, y, _ = table(n=60)
    model, settings = RFFRegressor(n_components=20, optimizer=None, **COMMON), {}
    with distribute(rows="own"):
        if kind == "nan" and rank == 1:
            X[3, 1] = np.nan
        if kind == "columns" and rank == 1:
            X = X[:, :2]
        if kind == "lengths" and rank == 1:
            y = y[1:]
        if kind == "empty":
            X, y = X[:0], y[:0]
        if kind == "noise" and rank == 1:
            settings = {"noise_variance": 0.1 * np.ones(60)}
        if kind == "names":
            X = pd.DataFrame(X, columns=["a", "b", "c" if rank else "d"])
        if kind == "weights":
            settings = {"sample_weight": np.ones(60)}
        if kind == "checkpoint":
            model.set_params(checkpoint="folder")
        if kind == "network":
            model = KISSGPRegressor(feature_extractor=(4, 1))
        if kind in OTHERS:
            model = clone(OTHERS[kind])
        try:
            model.fit(X, y, **settings)
        except (ValueError, RuntimeError) as error:
            said = f"{type(error).__name__}: {error}"
        kept = [name for name in vars(model) if name.endswith("_") and not name.startswith("_")]
        if kind != "nan":
            return said, kept, 60
        X[3, 1] = 0.0
        model.fit(X, y)
        return said, kept, model.n_samples_seen_ / 2


OTHERS = {
    "iterative": IterativeGPRegressor(),
    "experts": PoERegressor(),
}


@pytest.mark.parametrize(
    "kind, text",
    [
        ("nan", "The rows of rank 1: Input X contains NaN"),
        ("iterative", "IterativeGPRegressor needs all rows in one process"),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in [
                ("experts", "PoERegressor needs all rows in one process"),
                ("columns", "The rows of rank 1 have 2 columns"),
                ("lengths", "The rows of rank 1: Found input variables with incons"),
                ("empty", "No rank has rows: pass each rank its part of the table"),
                ("noise", "the ranks do not make the same call: noise_variance is abs"),
                ("names", "the ranks do not make the same call: columns of X is"),
                ("weights", "The rows of rank 0: sample_weight needs all rows in one"),
                ("network", "feature_extractor needs all rows in one process"),
                ("checkpoint", "checkpoint needs all rows in one process"),
            ]
        ),
    ],
)
def test_all_ranks_refuse_what_one_refuses(kind, text):
    """A refusal leaves no fitted attributes, and later calls work."""
    answers = launch(2, refused, kind)
    assert [code for code, _ in answers] == [0, 0], answers
    for _, (said, kept, seen) in answers:
        assert text in said and not kept and seen == 60


@pytest.mark.slow
def test_rounding_moves_hyperparameters_more_than_predictions():
    """Why the hyperparameters of `answers_of` have the larger tolerance."""
    X, y, noise = table()
    found = []
    for change in (0.0, 1e-15, -1e-15):
        model = clone(ESTIMATORS["functions at chosen rows"])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(frame(X * (1 + change)), y, noise_variance=noise)
        found.append((model.kernel_.theta, model.predict(frame(X[1:200] * (1 + change)))))
    thetas, means = zip(*found, strict=True)
    of_thetas, of_means = (np.abs(np.subtract(a[1:], a[0])).max() for a in (thetas, means))
    assert of_means < of_thetas < 1e-5
    assert of_means < 1e-6
