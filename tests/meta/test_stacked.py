"""Stacks: weights against a general optimiser, moments against the regressors one by one."""

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from inside import clock as read_clock
from scipy.optimize import minimize
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.ensemble import ExtraTreesRegressor, HistGradientBoostingRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from skscalablegp import (
    HeteroscedasticRegressor,
    IterativeGPRegressor,
    NNGPRegressor,
    RFFRegressor,
    StackedGPRegressor,
)
from skscalablegp.core import FitRun, fitted_process
from skscalablegp.meta import BoostedTrees, RandomizedTrees
from skscalablegp.meta._below import noise_weights
from skscalablegp.meta._stacked import stacking_weights

KERNEL = ConstantKernel(1.0) * RBF(0.3) + WhiteKernel(0.05)


def table(n=120, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(size=(n, 2))
    return X, 5 * X[:, 0] + np.sin(9 * X[:, 1]) + 0.2 * rng.standard_normal(n)


def process():
    return IterativeGPRegressor(KERNEL, optimizer=None, random_state=0)


def features():
    return RFFRegressor(KERNEL, optimizer=None, n_components=40, random_state=0)


def stack(*regressors, **params):
    named = [(f"r{k}", regressor) for k, regressor in enumerate(regressors)]
    return StackedGPRegressor(named, random_state=0, **params)


class Remembers(RegressorMixin, BaseEstimator):
    """Knows the targets of rows that it was fitted to, and counts its fits."""

    fits = 0

    def fit(self, X, y):
        type(self).fits += 1
        self.seen_ = {tuple(row): value for row, value in zip(X, y, strict=True)}
        return self

    def predict(self, X):
        return np.array([self.seen_.get(tuple(row), 0.0) for row in X])


@pytest.mark.parametrize("seed", range(5))
def test_weights_are_the_best_average(seed):
    rng = np.random.default_rng(seed)
    k = 4
    errors = rng.standard_normal((k, k)) @ rng.standard_normal((k, 200)) + rng.uniform(
        -1, 1, (k, 1)
    )
    counts = rng.uniform(0.1, 2, 200)
    weights = stacking_weights(errors * 10.0 ** (3 * seed - 6), counts)
    expected = minimize(
        lambda w: np.mean(counts * (w @ errors) ** 2),
        np.full(k, 1 / k),
        method="SLSQP",
        bounds=[(0, 1)] * k,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1},
        options={"ftol": 1e-14},
    ).x
    assert weights.sum() == pytest.approx(1) and weights.min() >= 0
    np.testing.assert_allclose(weights, expected, atol=1e-4)


def test_moments_are_the_mixtures():
    X, y = table()
    X_new, _ = table(6, seed=1)
    model = stack(process(), features(), Ridge(30.0)).fit(X, y)
    weights = np.array([0.5, 0.3, 0.2])
    model._finish(model._members, weights)
    *gps, linear = model.estimators_
    means = np.stack([one.predict(X_new) for one in (*gps, linear)])
    mean = weights @ means
    np.testing.assert_allclose(model.predict(X_new), mean)
    cov = np.einsum("k,ki,kj", weights, means - mean, means - mean)
    latent = [one.predict_std(X_new, include_noise=False) ** 2 for one in gps]
    held = model._members[2].extra
    noise = [one.predict_std(X_new[:1])[0] ** 2 - v[0] for one, v in zip(gps, latent, strict=True)]
    for weight, one, v in zip(weights, gps, latent, strict=False):
        full = one.predict(X_new, return_cov=True)[1]
        np.fill_diagonal(full, v)
        cov = cov + weight * full
    extra = weights @ [*noise, held]
    np.testing.assert_allclose(model.predict_std(X_new, include_noise=False) ** 2, np.diag(cov))
    np.testing.assert_allclose(model.predict_std(X_new) ** 2, np.diag(cov) + extra)
    joint = model.predict(X_new, return_cov=True)[1]
    np.testing.assert_allclose(joint, cov + extra * np.eye(6), rtol=1e-6, atol=1e-9)
    draws = model.sample_y(X_new, 20_000)
    np.testing.assert_allclose(np.cov(draws), joint, atol=0.05 * joint.max())
    np.testing.assert_allclose(draws.mean(1), mean, atol=0.03)


def test_weights_come_from_rows_that_were_not_seen():
    X, y = table()
    model = stack(Remembers(), LinearRegression()).fit(X, y - y.mean())
    assert model.weights_[0] < 0.01 and model.n_held_out_ == len(X)
    unseen = np.mean((y - y.mean()) ** 2)
    assert model._members[0].extra == pytest.approx(unseen)


def test_closed_forms_and_held_out_rows():
    """Above 10,000 rows a fifth is held out; nearest neighbours are fitted once."""
    X, y = table(10_100)
    Remembers.fits = 0
    neighbors = NNGPRegressor(KERNEL, optimizer=None, n_neighbors=5)
    model = stack(neighbors, KNeighborsRegressor(5), Remembers())
    noisy = HeteroscedasticRegressor(model, LinearRegression(), random_state=0).fit(X, y)
    # Without weight it is not fitted to all rows.
    assert Remembers.fits == 1
    inner = noisy.estimator_
    assert inner.n_held_out_ == noisy.n_residuals_ == 2020
    held = fitted_process(inner).left_out(X, y, None, None)
    rows, mean, std = held.rows, held.mean, held.std
    assert held.how == "held_out"
    choice = noisy.fit_report_.choices["residuals"]
    assert choice == ("held_out", "StackedGPRegressor keeps held-out rows of its own")
    kept = np.setdiff1d(np.arange(len(X)), rows)
    own = KNeighborsRegressor(5).fit(X[kept], y[kept]).predict(X[rows])
    alone = fitted_process(inner.estimators_[0]).left_out(X, y, None, rows)
    assert alone.how == "leave_one_out"
    expected = inner.weights_[:2] @ np.stack([alone.mean, own])
    np.testing.assert_allclose(mean, expected, rtol=1e-9)
    assert inner.weights_[2] == 0 and np.mean(((y[rows] - mean) / std) ** 2) < 1.2


def test_known_noise():
    X, y = table(200)
    noise = np.where(np.arange(200) < 100, 400.0, 1e-3)
    y = y + np.sqrt(noise) * np.random.default_rng(1).standard_normal(200)
    model = stack(process(), LinearRegression(), KNeighborsRegressor(100)).fit(X, y, noise)
    assert model.weights_[0] > 0.9
    gp = process().fit(X, y, noise)
    np.testing.assert_allclose(model.estimators_[0].predict(X), gp.predict(X))
    weights = 1 / (noise + 0.1 * noise.mean())
    linear = LinearRegression().fit(X, y, sample_weight=weights)
    alone = stack(LinearRegression()).fit(X, y, noise)
    np.testing.assert_allclose(alone.estimators_[0].predict(X), linear.predict(X))


def test_known_noise_is_not_part_of_errors():
    """Of a regressor without standard deviations, which predictions add it to."""
    X, y = table(400)
    noise = np.where(np.arange(400) < 200, 9.0, 0.01)
    y = y + np.sqrt(noise) * np.random.default_rng(1).standard_normal(400)
    line = LinearRegression().fit(X, y, 1 / (noise + 0.1 * noise.mean()))
    truth = np.mean((line.predict(X) - table(400)[1]) ** 2)
    model = stack(LinearRegression(), KNeighborsRegressor(100)).fit(X, y, noise)
    model._finish(model._members, np.array([1.0, 0.0]), model._held)
    std = model.predict_std(X, noise_variance=0.0)
    np.testing.assert_allclose(std**2, truth, rtol=0.15)
    np.testing.assert_allclose(model.predict_std(X, noise_variance=9.0) ** 2, truth + 9, rtol=0.01)
    first = stack(LinearRegression()).fit(X, y, noise)
    std = first.predict_std(X, noise_variance=0.0)
    np.testing.assert_allclose(std**2, truth, rtol=0.15)


def test_rows_are_left_out_with_the_noise_that_was_told():
    """A pipeline takes no noise; its process has been fitted without."""
    X, y = table()
    model = stack(make_pipeline(FunctionTransformer(), process()), LinearRegression())
    held = fitted_process(model.fit(X, y, 0.5)).left_out(X, y, None, None)
    rows, mean, std = held.rows, held.mean, held.std
    weights = model.weights_
    own = fitted_process(process().fit(X, y)).left_out(X, y, None, rows)
    assert weights[0] > 0.9
    line = (mean - weights[0] * own.mean) / weights[1] if weights[1] > 0 else own.mean
    spread = weights[0] * weights[1] * (line - own.mean) ** 2
    extra = model._members[1].extra
    expected = weights[0] * own.variance + weights[1] * extra + spread + 0.5
    np.testing.assert_allclose(std**2, expected)


def test_the_report_has_every_ending():
    X, y = table(40)
    slow = IterativeGPRegressor(optimizer="adam", max_iter=3)
    model = stack(slow, process(), Ridge())
    with pytest.warns(UserWarning, match="raise max_iter"):
        report = model.fit(X, y).fit_report_
    assert report.status == "max_iter" and "max_iter=3 ended training" in report.stop_reason
    assert "IterativeGPRegressor (max_iter)" in report.summary
    notes = {row.member: row.note for row in model.leaderboard_}
    assert notes["r0"] == "fitted to all rows" and "without held-out rows" in notes["r2"]
    assert stack(process(), process()).fit(X, y).fit_report_.status == "converged"


@pytest.mark.slow
@pytest.mark.filterwarnings("error")
def test_advice_to_use_another_model_is_for_single_regressors(monkeypatch):
    """Weights decide between several; other warnings of a member are passed on."""

    def advise(model, problem, run):
        run.advise_other_model("use another model.")

    monkeypatch.setattr(RFFRegressor, "_check_roughness", advise)
    X, y = table()
    few = RFFRegressor(n_components=40)
    stack(few, Ridge()).fit(X, y)
    with pytest.warns(UserWarning, match="RFFRegressor: use another model") as warned:
        model = stack(few).fit(X, y)
    assert len(warned) == 1 and model.fit_report_.remark == "RFFRegressor: use another model."
    assert model.fit_report_.warnings == ()
    # The advice passes through reports, whose readers decide.
    stack(model, Ridge()).fit(X, y)
    with pytest.warns(UserWarning, match="raise max_iter.$"):
        stack(RFFRegressor(n_components=40, max_iter=1), Ridge()).fit(X, y)


def test_trees_on_a_line():
    """They follow a slope where trees alone end in a step, and both have the weights of rows."""
    rng = np.random.default_rng(0)
    X = rng.standard_t(2, size=(300, 2))
    y = 10 * X[:, 0] + (X[:, 1] > 0)
    model = BoostedTrees(random_state=0).fit(X, y)
    np.testing.assert_allclose(model.predict([[100.0, 1.0], [-100.0, -1.0]]), [1001, -1000], atol=2)
    seen = np.arange(300) < 200
    y[~seen] = 1e6 + 7 * X[~seen, 1]
    model.fit(X, y, seen.astype(float))
    alone = BoostedTrees(random_state=0).fit(X[seen], y[seen])
    np.testing.assert_allclose(model.line_.coef_, alone.line_.coef_)
    np.testing.assert_allclose(model.predict(X[seen]), y[seen], atol=1.0)


@pytest.mark.parametrize("compared", [10_000, 400])
@pytest.mark.parametrize("order", [1, -1])
def test_held_out_rows_choose_the_trees(thresholds, compared, order):
    """Two leaves cannot hold a product of columns; more of them cost a sum of columns precision."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (1000, 4))
    candidates = [(2, False), (60, False)][::order]
    thresholds("meta", _CANDIDATES=candidates, _COMPARED=compared)
    functions = {2: X.sum(1) + rng.standard_normal(1000), 60: 9 * X[:, 0] * X[:, 1]}
    for leaves, y in functions.items():
        model = BoostedTrees(random_state=0).fit(X, y)
        assert model.trees_.max_leaf_nodes == leaves and model.line_ is None
        same = BoostedTrees(random_state=0).fit(X, y).predict(X)
        np.testing.assert_array_equal(model.predict(X), same)
        # Nine tenths of all rows are in the first tree.
        assert model.trees_._predictors[0][0].nodes["count"][0] == 900


@pytest.mark.parametrize(
    ("make", "compared"),
    [
        (BoostedTrees, 1000),
        (BoostedTrees, 100),
        (partial(BoostedTrees, False), 1000),
        (RandomizedTrees, 1000),
    ],
)
@pytest.mark.parametrize("max_seconds", [0.0, 1.0, 7.0, 300.0])
def test_trees_keep_to_their_time(thresholds, stand_in, make, compared, max_seconds):
    """Ten boosted trees of 31 leaves, or ten random ones, take some three seconds."""

    clock = SimpleNamespace(now=0.0)

    class Boosting(HistGradientBoostingRegressor):
        def fit(self, X, y, sample_weight=None):
            before = getattr(self, "n_iter_", 0)
            super().fit(X, y, sample_weight)
            clock.now += (self.n_iter_ - before) * self.max_leaf_nodes / 120
            return self

    class Random(ExtraTreesRegressor):
        def fit(self, X, y, sample_weight=None):
            before = len(getattr(self, "estimators_", []))
            super().fit(X, y, sample_weight)
            clock.now += (len(self.estimators_) - before) / 4
            return self

    stand_in("_trees.HistGradientBoostingRegressor", Boosting)
    stand_in("_trees.ExtraTreesRegressor", Random)
    thresholds("meta", _COMPARED=compared)
    X = np.random.default_rng(0).uniform(-1, 1, (300, 2))
    y = np.sin(5 * X).sum(1)
    with read_clock(lambda: clock.now):
        model = make(random_state=0).fit(X, y, max_seconds=max_seconds)
    # The first five trees take up to 1.3 seconds.
    assert clock.now <= max(max_seconds, 1.5)
    many = getattr(model.trees_, "n_iter_", None) or len(model.trees_)
    assert max_seconds > 1 or many == 5
    assert max_seconds < 100 or many > 20
    assert np.isfinite(model.predict(X)).all()
    if max_seconds == 300.0 and make is not BoostedTrees:
        np.testing.assert_array_equal(model.predict(X), make(random_state=0).fit(X, y).predict(X))


def test_trees_of_small_tables_are_scikit_learns():
    X, y = table()
    plain = HistGradientBoostingRegressor().fit(X, y)
    model = BoostedTrees(compared=False, random_state=0).fit(X, y)
    np.testing.assert_array_equal(model.predict(X), plain.predict(X))
    assert model.line_ is None


def test_the_spread_of_randomized_trees():
    """Full trees of distinct rows predict one of the targets each."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 1))
    noise = np.where(X[:, 0] > 0, 1.0, 0.1)
    y = noise * rng.standard_normal(4000)
    model = RandomizedTrees(random_state=0).fit(X, y)
    new = np.linspace(-0.9, 0.9, 400)[:, None]
    mean, std = model.predict(new, return_std=True)
    np.testing.assert_allclose(mean, model.predict(new))
    each = [tree.predict(new) for tree in model.trees_.estimators_]
    np.testing.assert_allclose(std**2, np.var(each, axis=0) + 0.01 * y.var())
    assert len(each) == 50 and np.isin(each, y).all()
    assert std[300:].mean() > 3 * std[:100].mean()
    assert len(RandomizedTrees().fit(X, y, max_seconds=0.0).trees_.estimators_) == 5


@pytest.mark.parametrize(("right", "counts"), [(True, True), (False, False)])
def test_randomized_trees_count_where_densities_gain(thresholds, stand_in, right, counts):
    """Their mean is best in both cases; deviations that are large in wrong places do harm."""

    class Knows(LinearRegression):
        def predict(self, X, return_std=False):
            mean = np.sign(X[:, 0] * X[:, 1])
            std = np.where((X[:, 0] > 0.9) | right, 0.3, 100.0)
            return (mean, std) if return_std else mean

    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(300, 2))
    y = np.sign(X[:, 0] * X[:, 1]) + 0.3 * rng.standard_normal(300)
    stand_in("RandomizedTrees", Knows)
    thresholds("_stacked", _CHOSEN_TREES=200, _MOST_RANDOMIZED=400)
    model = StackedGPRegressor(random_state=0).fit(X, y)
    assert type(model.estimators_[-1]) is Knows and len(model.weights_) == 3
    assert (model.weights_[-1] > 0.5) == counts and (model.weights_[-1] > 0) == counts
    np.testing.assert_allclose(model.weights_.sum(), 1)


class Told(LinearRegression):
    """Remembers the budgets that its fits receive."""

    budgets = []

    def fit(self, X, y, sample_weight=None, max_seconds=None):
        self.budgets.append(max_seconds)
        return super().fit(X, y, sample_weight)


def test_members_receive_their_share_of_the_time():
    X, y = table()[:2]
    model = stack(Told(), Told(), max_seconds=1000)
    model.fit(X, y)
    # Five folds of each, and the fits to all rows. The first one may take 0.7 of two thirds of 0.7
    # of the time, and the second one 0.7 of all of it.
    assert len(Told.budgets) in (11, 12)
    assert 300 < Told.budgets[0] <= 327 and 450 < Told.budgets[5] <= 490
    Told.budgets.clear()
    stack(Told()).fit(X, y)
    assert Told.budgets == [None] * 6


@pytest.mark.parametrize(
    ("n", "compared", "many"),
    [(2000, False, 2), (10_000, False, 3), (10_001, True, 4), (50_001, True, 3)],
)
def test_default_members(n, compared, many):
    model = StackedGPRegressor()
    members = dict(model._given(n, FitRun(model)))
    assert list(members) == ["trees", "neighbors", "deep", "randomized_trees"][:many]
    assert members["trees"].compared == compared


def test_names_are_parameters():
    model = stack(process(), Ridge())
    model.set_params(r1__alpha=3.0, r0=features())
    assert model.get_params()["r1__alpha"] == 3.0 and model.estimators[0][1].n_components == 40
    X, y = table(60)
    for wrong in ([], [Ridge()], [("a", Ridge()), ("a", Ridge())], [("a", 3)], [("a__b", Ridge())]):
        with pytest.raises(ValueError, match=r"estimators|[Nn]ames"):
            StackedGPRegressor(wrong).fit(X, y)


def test_without_time_the_first_regressor_predicts():
    """It has been evaluated; the others have no weight without an evaluation."""
    X, y = table()
    model = stack(Ridge(), process(), max_seconds=1e-9)
    with pytest.warns(UserWarning, match="No time was left for r1, r0"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.weights_, [1.0])
    assert model.n_held_out_ == 24 and np.isfinite(model.predict_std(X)).all()
    assert model.leaderboard_["r1"].note == "not begun: no time was left for it"


@pytest.mark.parametrize("noise", [np.zeros(5), np.full(5, 1e-300), np.full(5, 2.0)], ids=str)
def test_equal_noise_is_no_noise_to_weights(noise):
    np.testing.assert_allclose(noise_weights(noise), 1.0)


def test_weights_follow_the_inverse_noise_whatever_its_unit():
    noise = np.array([1.0, 2.0, 4.0])
    np.testing.assert_allclose(noise_weights(noise), noise_weights(1e-200 * noise))
    inverse = 1 / (noise + 0.1 * noise.mean())
    np.testing.assert_allclose(noise_weights(noise), inverse / inverse.mean())
