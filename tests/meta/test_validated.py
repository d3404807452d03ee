"""Estimators over estimators are validated whenever they end, between any two steps.

What predicts, its weights and its noise are computed again from independent fits and from rows that
these fits have not seen.
"""

import warnings

import numpy as np
import pytest
from inside import clock
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.tree import DecisionTreeRegressor

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    MeanFunctionRegressor,
    StackedGPRegressor,
)
from skscalablegp.core import fitted_process

N = 80


def table(n=N, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, 3 * X[:, 0] + np.sin(9 * X[:, 1]) + 0.2 * rng.standard_normal(n)


class Recorded:
    """Keeps the rows of its fits."""

    def fit(self, X, y):
        self.log.append(X[:, 0].copy())
        self.seen_ = X[:, 0].copy()
        return super().fit(X, y)


class Line(Recorded, Ridge):
    log = []


class Tree(Recorded, DecisionTreeRegressor):
    log = []

    def __init__(self, max_depth=3, random_state=0):
        super().__init__(max_depth=max_depth, random_state=random_state)


class Jump:
    """A clock that stands still, and jumps far ahead after some readings."""

    def __init__(self, last=None):
        self.last, self.readings = last, 0

    def __call__(self):
        self.readings += 1
        return 0.0 if self.last is None or self.readings <= self.last else 1e9 + self.readings


def ended_everywhere(make, many=12):
    """The model, fitted with a clock that ends the budget between any two of some readings."""
    still = Jump()
    X, y = table()
    for last in [None, *np.unique(np.linspace(1, 1000, many))]:
        jump = still if last is None else Jump(int(last * still.readings / 1000))
        Line.log.clear()
        Tree.log.clear()
        with clock(jump), warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            yield make().set_params(max_seconds=1e6, random_state=0).fit(X, y)


def unseen(fits, kind, X, y):
    """The prediction of each row by an independent fit to the rows of a fit without it."""
    found = np.full(len(X), np.nan)
    for rows in fits:
        new = ~np.isin(X[:, 0], rows)
        if new.any():
            found[new] = kind().fit(X[~new], y[~new]).predict(X[new])
    return found


@pytest.mark.exact_input
def test_a_stack():
    X, y = table()
    X_new = table(20, seed=1)[0]
    ends = set()
    for model in ended_everywhere(lambda: StackedGPRegressor([("a", Line()), ("b", Tree())])):
        left = fitted_process(model).left_out(X, y, None, None)
        kinds, logs = (
            (Ridge, lambda: DecisionTreeRegressor(max_depth=3, random_state=0)),
            (
                Line.log,
                Tree.log,
            ),
        )
        k = len(model.weights_)
        found = np.stack([unseen(logs[j], kinds[j], X, y) for j in range(k)])[:, left.rows]
        errors = y[left.rows] - found
        assert np.isfinite(errors).all()
        expected = np.ones(1)
        if k == 2:
            a, b = errors
            w = np.clip(np.sum(b * (b - a)) / np.sum((b - a) ** 2), 0, 1)
            expected = np.array([w, 1 - w])
            expected[expected < 0.02] = 0
            expected /= expected.sum()
        assert_allclose(model.weights_, expected, atol=1e-6)
        assert_allclose(left.mean, expected @ found, atol=1e-6)
        extra = np.mean(errors**2, axis=1)
        assert_allclose(left.std**2, expected @ (extra[:, None] + (found - left.mean) ** 2))
        # What predicts has seen all rows, or those of the first fold.
        for inner, kind, log in zip(model.estimators_, kinds, logs, strict=False):
            rows = np.isin(X[:, 0], inner.seen_)
            assert rows.all() or np.array_equal(inner.seen_, log[0])
            again = kind().fit(X[rows], y[rows])
            assert_allclose(inner.predict(X_new), again.predict(X_new), atol=1e-9)
        ends.add((k, len(left.rows), all(len(i.seen_) == N for i in model.estimators_)))
    # One or two regressors, evaluated on a fold or on all rows, fitted without them or to all rows.
    assert {k for k, *_ in ends} == {1, 2} and {m for _, m, _ in ends} >= {N // 5, N}
    assert {whole for *_, whole in ends} == {True, False}


@pytest.mark.exact_input
def test_noise_over_a_regressor_of_another_package():
    X, y = table()
    sizes = set()
    for model in ended_everywhere(lambda: HeteroscedasticRegressor(Line())):
        found = unseen(Line.log, Ridge, X, y)
        predicted = np.isfinite(found)
        # Later folds may have been fitted too late to count.
        parts = [~np.isin(X[:, 0], rows) for rows in Line.log if len(rows) < N]
        counted = np.any(parts[: max(1, round(5 * model.n_residuals_ / N))], axis=0)
        assert model.n_residuals_ == counted.sum() <= predicted.sum()
        errors = (y - found)[counted]
        assert_allclose(model.predict_std(X[:1]) ** 2, np.mean(errors**2))
        sizes.add((model.n_residuals_, len(model.estimator_.seen_)))
    assert {(N // 5, 4 * N // 5), (N, N)} <= sizes


def test_noise_over_a_process():
    """Leave-one-out errors of the very process that predicts, however it was cut."""
    X, y = table()
    X_new = table(20, seed=1)[0]

    def make():
        slow = IterativeGPRegressor(optimizer="adam", max_iter=30, random_state=0)
        return HeteroscedasticRegressor(slow)

    kernels = set()
    for model in ended_everywhere(make, many=6):
        inner = model.estimator_
        K = inner.kernel_(X)
        inverse = np.linalg.inv(K)
        z = (y - y.mean()) / y.std()
        squares = np.square(inverse @ z) / np.diag(inverse)
        ratio = model.predict_std(X_new) / inner.predict_std(X_new)
        assert_allclose(ratio**2, squares.mean(), rtol=1e-4)
        kernels.add(str(inner.kernel_))
    assert len(kernels) > 1


def test_a_mean_function():
    """Without a comparison the process is alone; trees need one, which they win here."""
    X, y = table()
    process = IterativeGPRegressor(optimizer=None, random_state=0)
    whys = set()
    for model in ended_everywhere(lambda: MeanFunctionRegressor(process, n_folds=2), many=6):
        why = model.fit_report_.choices["weight"].reason
        whys.add(why.split(":")[0])
        assert model.weight_ == (why != "no other fit was made")
        if model.weight_ == 0:
            assert_allclose(model.predict(X), clone(process).fit(X, y).predict(X))
    assert whys == {"no other fit was made", "mean log density of held-out rows"}


class Wrong(RegressorMixin, BaseEstimator):
    """A regressor that fails in a fit to all rows or in any, or that predicts NaN."""

    def __init__(self, how="raise"):
        self.how = how

    def fit(self, X, y):
        if self.how == "raise" or (self.how == "whole" and len(X) == N):
            raise RuntimeError("this one cannot be fitted\nsecond line")
        self.line_ = LinearRegression().fit(X, y)
        return self

    def predict(self, X):
        return self.line_.predict(X) + (np.nan if self.how == "nan" else 0)


@pytest.mark.parametrize(("how", "said"), [("raise", "cannot be fitted"), ("nan", "not finite")])
def test_a_bad_member_is_dropped_with_a_reason(how, said):
    X, y = table()
    model = StackedGPRegressor([("wrong", Wrong(how)), ("line", Ridge())], random_state=0)
    model.fit(X, y)
    note = model.leaderboard_["wrong"].note
    assert note.startswith("dropped: ") and said in note and "second line" not in note
    assert [type(one) for one in model.estimators_] == [Ridge] and model.weights_ == [1.0]
    with pytest.raises((RuntimeError, ArithmeticError), match=said):
        StackedGPRegressor([("wrong", Wrong(how))]).fit(X, y)


def test_a_refit_that_fails_leaves_the_validated_fit():
    X, y = table()
    model = StackedGPRegressor([("wrong", Wrong("whole"))], random_state=0)
    with pytest.warns(ConvergenceWarning, match="Wrong was not fitted to all rows: this one"):
        model.fit(X, y)
    assert "without held-out rows" in model.leaderboard_["wrong"].note
    assert np.isfinite(model.predict(X)).all()


class Rough(RegressorMixin, BaseEstimator):
    """The truth with errors of its own at each row."""

    def fit(self, X, y):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X):
        return X[:, 0] + 0.4 * np.sin(1e4 * X[:, 1])


def test_a_far_better_member_has_all_the_weight():
    X, y = table()
    y = X[:, 0] + 0.05 * np.random.default_rng(8).standard_normal(N)
    # An average with independent errors of ten times the size would gain a little.
    named = [("rough", Rough()), ("line", Ridge(1e-6))]
    model = StackedGPRegressor(named, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.weights_, [0, 1])


def test_a_callback_ends_the_folds():
    X, y = table()
    steps = []
    below = IterativeGPRegressor(optimizer="adam", max_iter=3, random_state=0)
    model = HeteroscedasticRegressor(
        below, residuals=4, callbacks=lambda s: steps.append(s) or True
    )
    model.fit(X, y)
    assert len(steps) == 1 and model.n_residuals_ == N // 4


def test_a_refit_that_is_cut_leaves_the_validated_fit():
    """Training on all rows is cut at its second step."""
    X, y = table()
    now, sizes = [0.0], []

    class Watched(IterativeGPRegressor):
        def fit(self, X, y, noise_variance=None):
            sizes.append(len(X))
            return super().fit(X, y, noise_variance)

    def late(step):
        now[0] += 1.0 if len(sizes) <= 5 else 600.0

    below = Watched(optimizer="adam", max_iter=3, random_state=0)
    model = HeteroscedasticRegressor(below, residuals=5, max_seconds=1000.0, callbacks=late)
    with clock(lambda: now[0]), pytest.warns(ConvergenceWarning, match="Watched on all rows"):
        model.set_params(random_state=0).fit(X, y)
    assert sizes == [64, 64, 64, 64, 64, 80]
    assert model.n_residuals_ == N and model.estimator_.n_samples_seen_ == 64


def test_a_stack_in_a_stack_is_evaluated_on_the_same_rows():
    X, y = table(200)
    inner = StackedGPRegressor([("a", Ridge()), ("b", DecisionTreeRegressor(max_depth=2))])
    model = StackedGPRegressor([("inner", inner), ("line", Ridge())], random_state=0).fit(X, y)
    left = fitted_process(model).left_out(X, y, None, None)
    assert model.n_held_out_ == 200 and np.mean((y - left.mean) ** 2) < np.var(y)
    assert np.isfinite(model.predict_std(X)).all()
