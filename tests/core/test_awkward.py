"""Far targets, and the columns that matter."""

import warnings

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from sklearn.compose import TransformedTargetRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, WhiteKernel
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import QuantileTransformer, StandardScaler

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    NNGPRegressor,
    QSGPRegressor,
    RFFRegressor,
    SCGDDKLRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.core._awkward import assumes_normal_noise, far_targets
from skscalablegp.core.data import column_spread
from skscalablegp.kernels import Columns

ORDINARY = {
    "normal": lambda rng, n: rng.standard_normal(n),
    "far from zero": lambda rng, n: 1e9 + rng.standard_normal(n),
    "uniform": lambda rng, n: rng.uniform(size=n),
    "log-normal": lambda rng, n: rng.lognormal(0, 1, n),
    "student": lambda rng, n: rng.standard_t(3, n),
    "exponential": lambda rng, n: rng.exponential(1, n),
    "with zeros": lambda rng, n: rng.lognormal(0, 1, n) * (rng.uniform(size=n) < 0.2),
    "counts": lambda rng, n: rng.poisson(3, n),
    "rare counts": lambda rng, n: rng.poisson(0.05, n),
    "overdispersed counts": lambda rng, n: rng.negative_binomial(0.3, 0.05, n),
    "two values": lambda rng, n: 1000.0 * (rng.uniform(size=n) < 0.02),
    "two groups": lambda rng, n: rng.standard_normal(n) + 1e3 * (rng.uniform(size=n) < 0.2),
    "constant": lambda rng, n: np.full(n, 7.0),
}


@pytest.mark.parametrize("n", [50, 200, 1000, 5000, 20_000])
@pytest.mark.parametrize("kind", ORDINARY)
def test_ordinary_targets_are_not_far(kind, n):
    for seed in range(60 if n <= 1000 else 15):
        y = np.asarray(ORDINARY[kind](np.random.default_rng(seed), n), dtype=float)
        assert len(far_targets(y)) == 0, seed


@pytest.mark.parametrize("n", [200, 1000, 20_000])
@pytest.mark.parametrize("kind", ["normal", "uniform", "exponential", "with zeros", "counts"])
def test_far_targets_are_found(kind, n):
    rng = np.random.default_rng(n)
    y = np.asarray(ORDINARY[kind](rng, n), dtype=float)
    rows = np.sort(rng.permutation(n)[: max(1, n // 500)])
    # Both signs, of different sizes; one is at the edge of what a number can hold.
    y[rows] += rng.choice([-1, 1], len(rows)) * rng.uniform(1e4, 1e6, len(rows))
    assert_array_equal(far_targets(y), rows)
    y[rows[0]] = 1e300
    assert rows[0] in far_targets(y)


def test_far_targets_that_hold_little_of_the_variance_do_no_harm():
    # A fifth of the targets is a group of its own, and has nearly all of the variance.
    rng = np.random.default_rng(0)
    y = rng.standard_normal(1000) + 1e3 * (rng.uniform(size=1000) < 0.2)
    y[0] = 2e3
    assert len(far_targets(y)) == 0


def test_few_targets_are_not_checked():
    y = np.r_[np.arange(10.0), 1e9]
    assert len(far_targets(y)) == 0


NORMAL, STUDENT = NNGPRegressor(), SVGPRegressor(likelihood="student_t")
CASES = {
    "regressor": (NORMAL, True),
    "normal": (SVGPRegressor(), True),
    "student": (STUDENT, False),
    "laplace": (QSGPRegressor(likelihood="laplace"), False),
    "classifier": (SVGPClassifier(), False),
    "below": (HeteroscedasticRegressor(STUDENT), False),
    "default below": (HeteroscedasticRegressor(), True),
    "another package below": (HeteroscedasticRegressor(Ridge()), True),
    "in a pipeline": (HeteroscedasticRegressor(make_pipeline(StandardScaler(), STUDENT)), False),
    "twice below": (HeteroscedasticRegressor(HeteroscedasticRegressor(STUDENT)), False),
    "one of two": (StackedGPRegressor([("a", STUDENT), ("b", NORMAL)]), True),
    "none of two": (StackedGPRegressor([("a", STUDENT), ("b", STUDENT)]), False),
    "transformed": (
        HeteroscedasticRegressor(TransformedTargetRegressor(NORMAL, transformer=StandardScaler())),
        False,
    ),
    "one transformed": (
        StackedGPRegressor([("a", TransformedTargetRegressor(NORMAL)), ("b", NORMAL)]),
        True,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_who_assumes_normal_noise(name):
    estimator, expected = CASES[name]
    assert assumes_normal_noise(estimator) == expected


def problem(n=60, d=3):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, d))
    return X, np.sin(2 * X[:, 1]) + 0.3 * X[:, 0] + 0.1 * rng.standard_normal(n)


def messages(model, X, y):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    return [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


def test_the_warning_names_rows_values_and_remedies():
    X, y = problem(200)
    rows = [3, 17, 40, 90, 120, 150, 199]
    y[rows] = 1e5 + np.arange(7)
    (said,) = messages(RFFRegressor(max_iter=2), X, y)
    assert "y has 7 targets far from all others" in said
    assert "100000 in row 3, 100001 in row 17" in said and "100004 in row 120 and 2 more" in said
    assert "row 150" not in said
    assert "QuantileTransformer" in said and "likelihood=" not in said
    others = np.delete(y, rows)
    assert f"between {others.min():.6g} and {others.max():.6g}" in said
    (said,) = messages(SVGPRegressor(max_iter=2), X, y)
    assert "likelihood='student_t'" in said
    (said,) = messages(QSGPRegressor(max_iter=2), X, y)
    assert "likelihood='laplace'" in said


def test_the_advice_helps():
    X, y = problem(150)
    X_new, truth = problem(400)
    truth = np.sin(2 * X_new[:, 1]) + 0.3 * X_new[:, 0]
    y[[5, 70]] += 1e4
    quantiles = QuantileTransformer(n_quantiles=150, output_distribution="normal")
    for model in (
        SVGPRegressor(likelihood="student_t", random_state=0),
        QSGPRegressor(likelihood="laplace", random_state=0),
        TransformedTargetRegressor(IterativeGPRegressor(), transformer=quantiles),
    ):
        warned = messages(model, X, y)
        assert not any("far from all others" in said for said in warned)
        assert np.mean((model.predict(X_new) - truth) ** 2) < 0.1 * truth.var()


def test_of_several_targets_each_is_checked():
    X, y = problem()
    Y = np.c_[y, y]
    Y[7, 1] = -1e6
    (said,) = messages(IterativeGPRegressor(), X, Y)
    assert "-1e+06 in row 7" in said and "Column 1 of y has 1 target far" in said


def test_columns_have_names_and_are_sorted():
    X, y = problem(100)
    frame = pd.DataFrame(X * [1.0, 1e6, 1.0], columns=["angle", "time", "nothing"])
    model = IterativeGPRegressor().fit(frame, y)
    columns = model.fit_report_.columns
    assert list(columns)[0] == "time" and list(columns.values()) == sorted(columns.values())
    length = model.kernel_.get_params()["k1__k2__length_scale"]
    spread = column_spread(frame.to_numpy())
    assert_allclose(columns["time"], length[1] / spread[1], rtol=1e-6)
    ratio = columns["time"] / columns["angle"]
    assert ratio < 1
    line = f"columns that matter most: time 1, angle {ratio:.2g}"
    assert line in str(model.fit_report_)
    # A column that does not matter is not listed.
    limit = 10 * np.sqrt(3) * max(1, columns["time"])
    assert ("nothing" in columns) == (length[2] / spread[2] <= limit)


def test_at_most_five_columns_and_no_constant_one():
    rng = np.random.default_rng(0)
    X = np.c_[rng.uniform(size=(150, 7)), np.full(150, 3.0)]
    y = np.sin(4 * X[:, :7]).sum(1)
    columns = IterativeGPRegressor().fit(X, y).fit_report_.columns
    assert len(columns) == 5 and "x7" not in columns


@pytest.mark.parametrize(
    "wrap",
    [lambda m: m, pytest.param(HeteroscedasticRegressor, marks=pytest.mark.slow)],
    ids=["itself", "below"],
)
@pytest.mark.parametrize("model", [SCGDDKLRegressor(), QSGPRegressor(), SVGPRegressor()])
def test_length_scales_in_other_units_are_converted(model, wrap):
    X, y = problem(100)
    model = wrap(clone(model).set_params(random_state=0))
    found, scaled = (model.fit(rows, y).fit_report_.columns for rows in (X, X * [1e-3, 1e3, 1.0]))
    assert list(found)[0] == "x1" and list(found) == list(scaled)
    assert_allclose(list(found.values()), list(scaled.values()), rtol=0.1)


def test_a_kernel_that_has_learned_nothing_lists_no_columns():
    X, y = problem(100)
    kernel = RBF([1e5, 1e6, 1e7], "fixed") + WhiteKernel()
    assert IterativeGPRegressor(kernel).fit(X, y).fit_report_.columns == {}


@pytest.mark.parametrize(
    "model",
    [
        IterativeGPRegressor(RBF(1.0) + WhiteKernel()),
        IterativeGPRegressor(RBF([1.0, 1.0, 1.0]), optimizer=None),
        SVGPRegressor(feature_extractor=[3], max_iter=2),
        SCGDDKLRegressor(feature_extractor=(3,), max_epochs=2),
    ],
    ids=["one length scale", "untrained", "network", "deep"],
)
def test_without_length_scales_of_columns_there_is_no_list(model):
    X, y = problem()
    assert model.fit(X, y).fit_report_.columns == {}
    assert "columns that matter" not in str(model.fit_report_)


def test_kernels_of_some_columns():
    X, y = problem(100)
    kernel = Columns(RBF(1.0), [1]) + Columns(RBF([1.0, 1.0]), [0, 2]) + WhiteKernel(0.1)
    columns = IterativeGPRegressor(kernel).fit(X, y).fit_report_.columns
    assert list(columns)[0] == "x1"


def test_one_column_is_not_listed():
    X, y = problem()
    assert IterativeGPRegressor().fit(X[:, :1], y).fit_report_.columns == {}
