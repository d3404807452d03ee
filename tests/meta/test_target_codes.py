"""Categories with many levels as numbers: means, slopes and trees that have not seen the row."""

from typing import ClassVar

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.linear_model import LinearRegression

from skscalablegp import AutoGPClassifier, AutoGPRegressor
from skscalablegp.meta import TargetCodes
from skscalablegp.meta._target_codes import level_slopes, slopes_that_differ


def coded(n=900, levels=30, noise=0.3, seed=0):
    """A column of codes, another one without effect, and two numbers; slopes differ by level."""
    rng = np.random.default_rng(seed)
    a, b = rng.integers(levels, size=n), rng.integers(8, size=n)
    u = rng.uniform(-1, 1, (n, 2))
    effect, slope = rng.standard_normal((2, levels))
    X = np.column_stack([u[:, 0], a, b, u[:, 1]]).astype(float)
    return X, effect[a] + 2 * slope[a] * u[:, 1] + noise * rng.standard_normal(n), slope


def test_slopes_are_shrunk_lines_of_each_level():
    X, y, _ = coded(300, 12)
    levels, x = X[:, 1].astype(int), X[:, 3]
    found = level_slopes(levels, x, y, 13)
    lines, squares, rest = [], [], 0.0
    for k in range(12):
        at = levels == k
        slope, offset = np.polyfit(x[at], y[at], 1)
        lines.append(slope)
        squares.append(np.sum((x[at] - x[at].mean()) ** 2))
        rest += np.sum((y[at] - offset - slope * x[at]) ** 2)
    lines, squares = np.array(lines), np.array(squares)
    noise = rest / (300 - 24)
    common = np.average(lines, weights=squares)
    spread = np.sum(squares * (lines - common) ** 2) / noise
    between = noise * (spread - 11) / (squares.sum() - np.sum(squares**2) / squares.sum())
    expected = common + between / (between + noise / squares) * (lines - common)
    assert_allclose(found.slopes[:12], expected)
    assert_allclose(found.slopes[12], common)
    assert_allclose(found.excess, (spread - 11) / np.sqrt(22))


def test_slopes_of_many_rows_are_the_true_ones():
    X, y, slope = coded(60_000, 30)
    found = level_slopes(X[:, 1].astype(int), X[:, 3], y, 31)
    assert_allclose(found.slopes[:30], 2 * slope, atol=0.06)


def test_only_slopes_that_differ_are_columns():
    X, y, _ = coded()
    assert slopes_that_differ(X, y, [1, 2]) == [(1, 3)]
    noise = np.random.default_rng(1).standard_normal(len(X))
    assert slopes_that_differ(X, noise + 3 * X[:, 0], [1, 2]) == []


@pytest.mark.parametrize("row", [0, 411])
def test_a_row_is_encoded_without_its_own_target(row):
    X, y, _ = coded()
    fresh = TargetCodes([1, 2], [(1, 3)], 500, kept=True)
    before = fresh.fit_transform(X, y)
    other = y.copy()
    other[row] += 100
    after = fresh.fit_transform(X, other)
    assert_array_equal(after[row], before[row])
    # Others of its level have seen it.
    assert np.abs(after - before).max() > 1


def test_the_columns():
    X, y, _ = coded()
    codes = TargetCodes([1, 2], [(1, 3)], 500, kept=True).fit(X, y)
    new = X[:4].copy()
    new[0, 1], new[1, 1] = -1, 77
    found = codes.transform(new)
    assert found.shape == (4, 2 + 4 + 1 + 1) and np.isfinite(found).all()
    assert_array_equal(found[:2, 0], [-1, -1])
    assert_allclose(found[:2, 3], y.mean())
    assert_array_equal(found[:, [2, 5]], X[:4][:, [0, 3]])
    assert_array_equal(codes.keeping(False).transform(new), found[:, 2:])
    # The trees know a function that no mean of a level tells.
    found = codes.transform(X)
    assert np.corrcoef(found[:, -1], y)[0, 1] > 0.9 > 0.85 > np.corrcoef(found[:, 3], y)[0, 1]


def test_rare_levels_count_as_missing_categories():
    rng = np.random.default_rng(0)
    codes = np.concatenate([np.arange(400), rng.integers(0, 100, 3000)]).astype(float)
    X = np.column_stack([codes, rng.standard_normal(len(codes))])
    found = TargetCodes([0], kept=True).fit(X, X[:, 1]).transform(X)
    kept = found[:, 0]
    assert len(np.unique(kept)) == 255 and kept.min() == -1 and kept.max() == 253
    # The numbers are ranks: the first one belongs to the most frequent level.
    assert np.bincount(codes.astype(int)).argmax() == codes[kept == 0][0]


class Told(RegressorMixin, BaseEstimator):
    """A line that remembers the categories that it is told of."""

    def __init__(self, categorical_features=None):
        self.categorical_features = categorical_features

    def fit(self, X, y):
        columns = self.categorical_features or []
        self.codes_, self.width_ = X[:, columns], X.shape[1]
        self.line_ = LinearRegression().fit(X, y)
        return self

    def predict(self, X):
        return self.line_.predict(X)


def frame(n=900):
    X, y, _ = coded(n)
    table = X.astype(object)
    table[:, 1] = [f"town {k:.0f}" for k in X[:, 1]]
    return table, X, y


def test_members_that_know_categories_get_codes():
    # So few rows have no noise model, which would take most of the time.
    table, X, y = frame(95)
    towns = np.arange(len(np.unique(X[:, 1])))

    def only(member, X):
        model = AutoGPRegressor([("only", member)], random_state=0).fit(X, y)
        return model.estimators_[0]

    told = only(Told(), table)[-1]
    assert_array_equal(np.unique(told.codes_), towns)
    assert only(LinearRegression(), table)[-1].n_features_in_ == told.width_ - 1
    assert only(Told([2]), table)[-1].categorical_features == [2]
    assert only(Told(), X[:, [0, 3]]).categorical_features is None


@pytest.mark.parametrize("member", ["trees", pytest.param("exact", marks=pytest.mark.slow)])
def test_trees_and_processes_learn_slopes_by_level(member):
    table, _, y = frame(900)
    model = AutoGPRegressor([member], random_state=0, max_seconds=100).fit(table[:600], y[:600])
    assert model.score(table[600:], y[600:]) > 0.85


@pytest.mark.slow
def test_trees_of_classes_know_categories():
    rng = np.random.default_rng(0)
    town, u = rng.integers(40, size=1500), rng.uniform(-1, 1, 1500)
    # The side of u that is "high" depends on the town, so that no town has a mean of its own.
    high = (u > 0) == rng.choice([False, True], 40)[town]
    table = np.column_stack([u.astype(object), np.array([f"town {k}" for k in town], object)])
    model = AutoGPClassifier(["trees"], random_state=0).fit(table[:1200], high[:1200])
    assert model.score(table[1200:], high[1200:]) > 0.85


class Recorded(LinearRegression):
    """A line that keeps the rows of all its fits."""

    fits: ClassVar[list] = []

    def fit(self, X, y):
        self.fits.append((X.copy(), y.copy()))
        return super().fit(X, y)


def recorded_fits(X, y):
    Recorded.fits.clear()
    AutoGPRegressor([("line", Recorded())], random_state=0).fit(X, y)
    return [fit for fit in Recorded.fits if len(fit[0]) < len(X)]


def test_targets_of_held_out_rows_change_nothing_that_their_fold_learns_from():
    """Slopes were once chosen by the rows of the first fold, which are held out of the others."""
    fold, (table, X, _) = 4, frame(300)
    y = np.random.default_rng(3).standard_normal(300)
    before = recorded_fits(table, y)
    assert len(before) == 5
    # Numbers that no two rows have in common.
    held = ~np.isin(X[:, 0], before[fold][0])
    assert held.sum() == 60
    slope = np.random.default_rng(4).standard_normal(31)
    moved = y + held * 30 * slope[X[:, 1].astype(int)] * X[:, 3]
    after = recorded_fits(table, moved)
    assert_array_equal(after[fold][0], before[fold][0])
    assert_array_equal(after[fold][1], before[fold][1])
    # The other folds have learned slopes, as a further column.
    widths = [len(rows[0]) for rows, _ in after]
    assert [w - widths[fold] for w in widths] == [int(k != fold) for k in range(5)]


@pytest.mark.night
@pytest.mark.slow
def test_processes_of_folds_with_other_columns_have_kernels_of_their_own():
    table, X, _ = frame(300)
    y = np.random.default_rng(3).standard_normal(300)
    rows = recorded_fits(table, y)[1][0]
    held = ~np.isin(X[:, 0], rows)
    slope = np.random.default_rng(4).standard_normal(31)
    moved = y + held * 30 * slope[X[:, 1].astype(int)] * X[:, 3]
    model = AutoGPRegressor(["linear", "exact", "neighbors"], random_state=0).fit(table, moved)
    assert np.isfinite(model.predict(table)).all()
    assert "exact" in model.members_ and "no kernel to share" in str(model.fit_report_)
