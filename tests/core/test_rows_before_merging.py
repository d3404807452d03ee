"""Random parts of tables whose equal rows were merged, against the rows themselves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from skscalablegp import QSGPClassifier, SVGPClassifier, SVGPRegressor
from skscalablegp.core.data import rows_before_merging


def first(n, size):
    return np.arange(size)


def test_rows_are_drawn_as_often_as_they_count():
    counts, rng = np.array([1.0, 50.0, 3.0, 46.0]), np.random.default_rng(0)
    total = np.zeros(4)
    for _ in range(2000):
        index, drawn = rows_before_merging(4, counts, 3, lambda n, size: rng.permutation(n)[:size])
        assert drawn.sum() == 3 and (drawn >= 1).all() and (np.diff(index) > 0).all()
        total[index] += drawn
    assert_allclose(total / total.sum(), counts / 100, atol=0.02)


def test_no_row_is_drawn_more_often_than_it_counts():
    index, drawn = rows_before_merging(5, np.array([2.0, 1, 1, 1, 9]), 4, first)
    assert_array_equal(index, [0, 1, 2])
    assert_array_equal(drawn, [2, 1, 1])


@pytest.mark.parametrize("size", [5, 6, 14])
def test_all_merged_rows_stay_whole_where_there_is_room_for_each(size):
    counts = np.array([2.0, 1, 1, 1, 9])
    index, drawn = rows_before_merging(5, counts, size, first)
    assert_array_equal(index, np.arange(5))
    assert_array_equal(drawn, counts)


def test_tables_without_equal_rows_are_drawn_from_as_before():
    index, drawn = rows_before_merging(9, None, 3, lambda n, size: np.array([7, 0, 4]))
    assert drawn is None
    assert_array_equal(index, [0, 4, 7])


def test_small_weights_are_drawn_in_equal_parts():
    weights = 1e-3 * np.array([1.0, 7.0, 2.0])
    index, drawn = rows_before_merging(3, weights, 2, first)
    assert_array_equal(index, [1])
    assert_allclose(drawn, 2 * weights.sum() / 3)


def copies(n=6000):
    """Rows of few different entries, and labels that disagree on most of them."""
    rng = np.random.default_rng(0)
    X = np.column_stack([rng.integers(0, 2, (n, 3)), rng.integers(0, 15, (n, 2))]).astype(float)
    p = 1 / (1 + np.exp(0.6 - 0.5 * X[:, 0] - 0.1 * (X[:, 3] - 7)))
    return X, p, (rng.random(n) < p).astype(int)


@pytest.mark.parametrize(
    "model",
    [
        SVGPClassifier(n_inducing=50, max_iter=60, random_state=0),
        QSGPClassifier(n_components=256, max_iter=60, inference="stochastic", random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
def test_classifiers_learn_from_copies_with_different_labels(model):
    X, p, y = copies()
    found = model.fit(X[:5000], y[:5000]).predict_proba(X[5000:])[:, 1]
    # A probability of one half for all rows has an error of 0.14.
    assert np.sqrt(np.mean((found - p[5000:]) ** 2)) < 0.07


def test_regressors_learn_from_copies_with_different_targets():
    X, p, y = copies()
    model = SVGPRegressor(n_inducing=50, max_iter=60, random_state=0).fit(X[:5000], y[:5000])
    assert np.sqrt(np.mean((model.predict(X[5000:]) - p[5000:]) ** 2)) < 0.07
