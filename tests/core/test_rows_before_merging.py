"""Random parts of tables whose equal rows were merged, against the rows themselves."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skscalablegp import (
    BSGDDKLRegressor,
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    SCGDDKLRegressor,
    SVGPClassifier,
    SVGPRegressor,
)
from skscalablegp.core.data import (
    RowSource,
    rows_before_merging,
    whole_groups,
    with_equal_inputs,
)
from skscalablegp.models.deep import MinibatchGradient


def first(n, size):
    return np.arange(size)


def test_rows_are_drawn_as_often_as_they_count():
    counts, rng = np.array([1.0, 50.0, 3.0, 46.0]), np.random.default_rng(0)
    total = np.zeros(4)
    for _ in range(2000):
        index, drawn = rows_before_merging(counts, 3, lambda n, size: rng.permutation(n)[:size])
        assert drawn.sum() == 3 and (drawn >= 1).all() and (np.diff(index) > 0).all()
        total[index] += drawn
    assert_allclose(total / total.sum(), counts / 100, atol=0.02)


def test_no_row_is_drawn_more_often_than_it_counts():
    index, drawn = rows_before_merging(np.array([2.0, 1, 1, 1, 9]), 4, first)
    assert_array_equal(index, [0, 1, 2])
    assert_array_equal(drawn, [2, 1, 1])


@pytest.mark.parametrize("size", [5, 6, 14])
def test_all_merged_rows_stay_whole_where_there_is_room_for_each(size):
    counts = np.array([2.0, 1, 1, 1, 9])
    index, drawn = rows_before_merging(counts, size, first)
    assert_array_equal(index, np.arange(5))
    assert_array_equal(drawn, counts)


def test_tables_without_equal_rows_are_drawn_from_as_before():
    index, drawn = rows_before_merging(np.ones(9), 3, lambda n, size: np.array([7, 0, 4]))
    assert_array_equal(drawn, [1, 1, 1])
    assert_array_equal(index, [0, 4, 7])


def test_small_weights_are_drawn_in_equal_parts():
    weights = 1e-3 * np.array([1.0, 7.0, 2.0])
    index, drawn = rows_before_merging(weights, 2, first)
    assert_array_equal(index, [1])
    assert_allclose(drawn, 2 * weights.sum() / 3)


# ------------------------------------------------------------------ divisions


def few_inputs(n=60):
    """Merged rows of twenty inputs, each with three targets."""
    rng = np.random.default_rng(0)
    X = np.repeat(rng.normal(size=(n // 3, 2)), 3, axis=0)
    return X, rng.integers(1, 9, n).astype(float)


def test_rows_with_equal_inputs_follow_one_another():
    X, counts = few_inputs()
    order = np.random.default_rng(1).permutation(60)
    found, groups = with_equal_inputs(order, X, counts)
    assert_array_equal(np.sort(found), np.arange(60))
    assert_array_equal(groups, np.repeat(np.arange(20), 3))
    assert (X[found].reshape(20, 3, 2) == X[found[::3], None]).all()
    # Groups are in the order of their first rows.
    first = [np.flatnonzero((X[order] == x).all(1))[0] for x in X[found[::3]]]
    assert (np.diff(first) > 0).all()
    assert [whole_groups(groups, count) for count in (0, 1, 3, 4, 60)] == [0, 3, 3, 6, 60]


def test_rows_that_were_not_merged_keep_their_order():
    order = np.random.default_rng(1).permutation(60)
    found, groups = with_equal_inputs(order, few_inputs()[0], np.ones(len(order)))
    assert_array_equal(found, order)
    assert whole_groups(groups, 7) == 7


def inputs(X):
    return {tuple(x) for x in np.asarray(X)}


def fitted_parts(monkeypatch, model, n):
    """Inputs of n merged rows, and the parts of them that a fit has taken."""
    seen, subset = [], RowSource.subset

    def recorded(source, index):
        seen.append(index)
        return subset(source, index)

    monkeypatch.setattr(RowSource, "subset", recorded)
    X, counts = few_inputs(n)
    model.fit(X, np.tile([0.0, 1.0, 2.0], n // 3) + X[:, 0], sample_weight=counts)
    # Merging sorts the rows.
    return X[np.lexsort([*X.T[::-1]])], seen


def test_held_out_rows_of_deep_kernels_share_no_input_with_training_rows(monkeypatch):
    model = SCGDDKLRegressor(
        small_table="method", early_stopping=True, max_epochs=2, random_state=0
    )
    X, parts = fitted_parts(monkeypatch, model, 600)
    # The sample that is kept for later rows has copies.
    train = max((part for part in parts if len(np.unique(part)) == len(part)), key=len)
    held_out = np.setdiff1d(np.arange(600), train)
    assert len(train) == 540 and any(np.array_equal(held_out, part) for part in parts)
    assert not inputs(X[held_out]) & inputs(X[train])


def test_folds_of_relevance_vectors_share_no_input(monkeypatch):
    model = QSRVMRegressor(n_components=64, max_iter=5, random_state=0)
    X, parts = fitted_parts(monkeypatch, model, 150)
    parts = [part for part in parts if 100 < len(part) < 150]
    assert len(parts) == 5
    for rest in parts:
        held_out = np.setdiff1d(np.arange(150), rest)
        assert not inputs(X[held_out]) & inputs(X[rest])


@pytest.mark.slow
def test_held_out_rows_of_sampled_models_share_no_input_with_batches(stand_in):
    seen = []

    def recorded(sampler):
        seen.append((sampler.held, rows(sampler)))
        return seen[-1][-1]

    rows = stand_in("Sampler.rows", recorded)
    model = QSGPRegressor(
        inference="stochastic",
        n_components=64,
        batch_size=50,
        control_variate_rank=30,
        max_iter=20,
        random_state=0,
    )
    X, counts = few_inputs(2100)
    model.fit(X, np.tile([0.0, 1.0, 2.0], 700) + X[:, 0], sample_weight=counts)
    X = X[np.lexsort([*X.T[::-1]])]
    held_out = seen[0][0]
    assert len(held_out) >= 50
    batches = np.unique(np.concatenate([batch for held, batch in seen if len(held)]))
    # One input may be divided between support and held-out rows.
    assert len(inputs(X[held_out]) & inputs(X[batches])) <= 1


def test_probabilities_are_calibrated_on_rows_before_merging(thresholds):
    thresholds("inducing", _POWER_ROWS=50)
    settings = dict(optimizer=None, n_inducing=20, max_iter=40, random_state=0)
    logs = []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        x = rng.uniform(-2, 2, 300)
        p, heavy = 1 / (1 + np.exp(-2 * x)), np.arange(300) < 10
        # A thousand rows at each of ten inputs, and one at each other input.
        y = np.concatenate([np.where(heavy, 1, rng.random(300) < p), np.zeros(10)]).astype(int)
        counts = np.where(heavy, np.round(1000 * p), 1)
        counts = np.concatenate([counts, np.round(1000 * (1 - p[heavy]))])
        model = SVGPClassifier(ConstantKernel(4.0) * RBF(1.0), **settings)
        model.fit(np.concatenate([x, x[heavy]])[:, None], y, sample_weight=counts)
        logs.append(np.log(model.probability_power_))
    # Random merged rows lack one label of most of the ten inputs.
    assert np.sqrt(np.mean(np.square(logs))) < 0.4


# ------------------------------------------------------------------ steps


def heavy_table(n=300):
    """Rows of which few have most of the weight, and these have other labels."""
    rng = np.random.default_rng(0)
    X, counts = rng.uniform(-2, 2, (n, 2)), np.where(rng.random(n) < 0.1, 40.0, 1.0)
    p = 1 / (1 + np.exp(-2 * np.sin(2 * X[:, 0])))
    return X, np.where(counts > 1, rng.random(n) < p, rng.random(n) < 1 - p).astype(int), counts


@pytest.mark.slow
def test_steps_of_classes_end_where_all_rows_would():
    X, y, counts = heavy_table()
    settings = dict(n_inducing=40, optimizer=None, random_state=0)
    kernel = ConstantKernel(4.0) * RBF(0.7)
    whole, parts = (
        SVGPClassifier(kernel, batch_size=size, max_iter=steps, **settings)
        .fit(X, y, sample_weight=counts)
        .predict_proba(X)[:, 1]
        for size, steps in ((300, 100), (100, 600))
    )
    assert np.abs(parts - whole).max() < 0.1
    assert np.sqrt(np.mean((parts - whole) ** 2)) < 0.03


def test_steps_of_deep_kernels_stand_for_all_rows(monkeypatch):
    squares, estimate = [], MinibatchGradient.estimate

    def recorded(rule, batch, state):
        squares.append(float(batch.Y.detach().square().sum()) / len(batch.Y))
        return estimate(rule, batch, state)

    monkeypatch.setattr(MinibatchGradient, "estimate", recorded)
    X, y, counts = heavy_table()
    settings = dict(batch_size=60, max_epochs=40, early_stopping=False, small_table="method")
    BSGDDKLRegressor(random_state=0, **settings).fit(X, y.astype(float), sample_weight=counts)
    # The weighted mean square of standardised targets.
    assert len(squares) > 100
    assert abs(np.mean(squares) - 1) < 0.02


# ------------------------------------------------------------------ models


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
        pytest.param(
            QSGPClassifier(n_components=256, max_iter=60, inference="stochastic", random_state=0),
            marks=pytest.mark.slow,
        ),
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
