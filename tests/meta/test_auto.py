"""AutoGPRegressor: validated at every moment, weights and noise from rows that were not seen."""

import sys
from html import unescape
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from scipy.optimize import minimize
from scipy.stats import norm
from sklearn import config_context
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsRegressor

from skscalablegp import AutoGPRegressor
from skscalablegp.core.data import numbered
from skscalablegp.meta import Scaled, TargetCodes, mixed, pool_weights
from skscalablegp.meta._boosters import BoosterRegressor
from skscalablegp.meta._division import DividedTable
from skscalablegp.meta._members import class_candidates
from skscalablegp.meta._pool import (
    calibrated,
    mean_crps,
    mixture_weights,
    moment_weights,
    negative_log_density,
    occur_once,
    scaled_mixture,
)
from skscalablegp.metrics import crps, nlpd


def table(n=300, d=3, noise=0.1, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, d))
    return X, np.sin(4 * X[:, 0]) + X[:, 1] + noise * rng.standard_normal(n)


class Wrong(RegressorMixin, BaseEstimator):
    """A regressor that fails, or predicts NaN or a constant."""

    def __init__(self, how="raise"):
        self.how = how

    def fit(self, X, y):
        if self.how == "raise":
            raise RuntimeError("this member cannot be fitted\nsecond line")
        self.value_ = np.nan if self.how == "nan" else 1e3
        return self

    def predict(self, X):
        return np.full(len(X), self.value_)


class Memory(RegressorMixin, BaseEstimator):
    """Predicts the target of a row that it has seen, and zero otherwise."""

    def fit(self, X, y):
        self.seen_ = {row.tobytes(): value for row, value in zip(X, y, strict=True)}
        return self

    def predict(self, X):
        return np.array([self.seen_.get(row.tobytes(), 0.0) for row in np.ascontiguousarray(X)])


class TestPool:
    def members(self, m=400):
        rng = np.random.default_rng(1)
        y = rng.standard_normal(m)
        means = np.stack([y + 0.3 * rng.standard_normal(m), y + 0.4 * rng.standard_normal(m)])
        return y, means, np.stack([np.full(m, 0.09), np.full(m, 0.16)])

    def test_the_mixture_has_the_largest_density(self):
        y, means, variances = self.members()
        rows = np.stack(
            [norm.logpdf(y, a, np.sqrt(v)) for a, v in zip(means, variances, strict=True)]
        )
        found = mixture_weights(rows)

        def loss(w):
            return -np.log(w * np.exp(rows[0]) + (1 - w) * np.exp(rows[1])).mean()

        best = minimize(lambda w: loss(w[0]), [0.5], bounds=[(0, 1)]).x[0]
        assert_allclose(found, [best, 1 - best], atol=1e-3)
        assert_allclose(found.sum(), 1)

    def test_equal_and_independent_members_share(self):
        rng = np.random.default_rng(0)
        y = rng.standard_normal(2000)
        means = y + 0.5 * rng.standard_normal((2, 2000))
        weights = pool_weights(y, means, np.full((2, 2000), 0.25))
        assert_allclose(weights, 0.5, atol=0.1)

    def test_a_far_better_member_has_all_the_weight(self):
        y, means, variances = self.members()
        means[1] += 5
        variances[1] += 25
        assert_array_equal(pool_weights(y, means, variances), [1, 0])

    def test_a_mixture_that_gains_little_has_weight(self):
        """By less than a standard error of the gain, which the rows here do not show clearly."""
        y, means, variances = self.members(40)
        means[1] = y + 0.7 * np.random.default_rng(4).standard_normal(40)
        variances[1] = 0.49
        weights = pool_weights(y, means, variances)
        both = np.eye(2)[0], weights
        scaled = [scaled_mixture(w, y, means, variances)[:2] for w in both]
        losses = [negative_log_density(y, *moments) for moments in scaled]
        gains = losses[0] - losses[1]
        assert (weights > 0).all() and 1e-3 < gains.mean() < gains.std() / np.sqrt(40)

    def test_weights_have_the_largest_density_of_the_moments(self):
        """With the factor of all variances that suits the weights; one member is too sure."""
        y, means, variances = self.members()
        variances[0] /= 4

        def loss(w):
            mean, variance = mixed(np.array([w, 1 - w]), means, variances)
            factor = np.mean((y - mean) ** 2 / variance)
            return -norm.logpdf(y, mean, np.sqrt(factor * variance)).mean()

        grid = np.linspace(0, 1, 1001)
        best = grid[np.argmin([loss(w) for w in grid])]
        assert 0.1 < best < 0.9
        assert_allclose(moment_weights(y, means, variances), [best, 1 - best], atol=2e-3)

    def test_the_single_member_wins_ties(self):
        y, means, variances = self.members()
        twice = np.stack([means[0], means[0]]), np.stack([variances[0], variances[0]])
        assert sorted(pool_weights(y, *twice)) == [0, 1]

    def test_moments_of_the_mixture(self):
        y, means, variances = self.members()
        weights = np.array([0.3, 0.7])
        mean, variance = mixed(weights, means, variances)
        rng = np.random.default_rng(0)
        which = rng.choice(2, 200_000, p=weights)
        draws = means[which, 0] + np.sqrt(variances[which, 0]) * rng.standard_normal(200_000)
        assert_allclose(mean[0], draws.mean(), atol=0.01)
        assert_allclose(variance[0], draws.var(), rtol=0.02)

    def test_scores_are_those_of_metrics(self):
        y, means, variances = self.members()
        std = np.sqrt(variances[0])
        assert_allclose(negative_log_density(y, means[0], std**2).mean(), nlpd(y, means[0], std))
        assert_allclose(mean_crps(y, means[0], std**2), crps(y, means[0], std))

    def test_calibration_restores_the_size_of_errors(self):
        rng = np.random.default_rng(0)
        errors, every = 0.5 * rng.standard_normal(5000), np.ones(5000, bool)
        _, variance = calibrated(Scaled(None), errors, 0 * errors, np.full(5000, 4.0), every)
        assert_allclose(variance, 0.25, rtol=0.1)
        scaled, variance = calibrated(Scaled(None), errors, 0 * errors, None, every)
        assert_allclose(variance, np.mean(errors**2))
        assert_allclose(scaled.extra, np.mean(errors**2))

    def test_calibration_leaves_known_noise_out(self):
        rng = np.random.default_rng(0)
        errors, every = np.sqrt(1.25) * rng.standard_normal(20_000), np.ones(20_000, bool)
        known = np.ones(20_000)
        scaled, variance = calibrated(Scaled(None), errors, 0 * errors, None, every, known)
        assert_allclose(variance, 0.25, atol=0.1)
        own = np.full(20_000, 4.0)
        _, variance = calibrated(Scaled(None), errors, 0 * errors, own, every, known)
        assert_allclose(variance, 0.25, atol=0.1)
        _, closed = calibrated(Scaled(None), errors, 0 * errors, own, every)
        _, sought = calibrated(Scaled(None), errors, 0 * errors, own, every, 0 * known)
        assert_allclose(closed, sought, rtol=1e-4)

    def test_rows_that_occur_once(self):
        X = np.arange(60.0)[:, None]
        X[40:] = 3.0
        X[7] = -0.0
        X[0] = 0.0
        once = occur_once(numbered(X), np.arange(60))
        assert_array_equal(np.flatnonzero(~once), [0, 3, 7, *range(40, 60)])

    def test_equal_rows_have_equal_numbers(self):
        rng = np.random.default_rng(0)
        X = rng.integers(0, 7, size=(4000, 4)).astype(float)
        expected = np.unique(X, axis=0, return_inverse=True)[1].ravel()
        found = numbered(X)
        assert len(np.unique(np.column_stack([expected, found]), axis=0)) == expected.max() + 1
        assert found.max() == expected.max()


@pytest.fixture(scope="module")
def small():
    X, y = table()
    return AutoGPRegressor(random_state=0).fit(X, y), X, y


@pytest.fixture(scope="module")
def large():
    # With seed 0 a noise model is as good as the threshold, and last digits decide.
    X, y = table(2600, seed=1)
    members = ["linear", "trees", "exact", "neighbors"]
    return AutoGPRegressor(members, random_state=0).fit(X, y), X, y


class TestAutoGPRegressor:
    def test_it_is_calibrated(self, small):
        model, _, _ = small
        X, y = table(2000, seed=1)
        interval = model.predict_interval(X)
        inside = np.mean((interval[..., 0] <= y) & (y <= interval[..., 1]))
        assert 0.9 < inside < 0.99
        assert model.score(X, y) > 0.95

    @pytest.mark.slow
    def test_held_out_errors_belong_to_what_predicts(self, large):
        """The held-out predictions are those of the members fitted without these rows."""
        model, X, y = large
        held = model.held_out_
        assert len(held) == 520
        rest = np.setdiff1d(np.arange(len(X)), held)
        line = LinearRegression().fit(X[rest], y[rest])
        errors = y[held] - line.predict(X[held])
        expected = 0.5 * (np.log(2 * np.pi * np.mean(errors**2)) + 1)
        assert_allclose(model.leaderboard_["linear"].nll, expected, rtol=1e-3)
        assert np.std(y[held] - model.held_out_mean_) < 0.5 * np.std(errors)

    @pytest.mark.slow
    def test_the_leaderboard(self, large):
        model, _, _ = large
        board = model.leaderboard_
        assert [row.nll for row in board] == sorted(row.nll for row in board)
        assert_allclose(sum(row.weight for row in board), 1)
        assert {row.member for row in board} == {"linear", "trees", "exact", "neighbors"}
        assert "held-out NLL" in repr(board) and "<table>" in board._repr_html_()
        assert set(board.to_dict()) == {"member", "nll", "crps", "weight", "seconds", "note"}
        assert model.explain_ in unescape(model._repr_html_())
        names = [row.member for row in board if row.weight > 0]
        assert sorted(names) == sorted(model.members_)

    @pytest.mark.slow
    def test_seconds_have_the_names_of_members(self, large):
        """Not of the classes inside them, such as Pipeline; their time is that of the member."""
        model, _, _ = large
        stages = model.fit_report_.seconds
        assert {row.member for row in model.leaderboard_} <= set(stages)
        assert not [name for name in stages if name[0].isupper()]

    @pytest.mark.slow
    @pytest.mark.exact_input  # the first fit is that of a fixture, which is not perturbed
    def test_refits_repeat(self, small):
        model, X, y = small
        again = clone(model).fit(X, y)
        assert_array_equal(again.predict(X), model.predict(X))
        assert again.members_ == model.members_

    @pytest.mark.parametrize("how", ["raise", "nan", "far"])
    def test_a_bad_member_is_dropped_with_a_reason(self, how):
        X, y = table(120)
        model = AutoGPRegressor(["linear", ("wrong", Wrong(how))], random_state=0).fit(X, y)
        assert model.members_ == ["linear"]
        note = model.leaderboard_["wrong"].note
        assert {"raise": "cannot be fitted", "nan": "not finite", "far": ""}[how] in note
        assert "second line" not in note

    def test_a_single_bad_member_raises(self):
        with pytest.raises(RuntimeError, match="cannot be fitted"):
            AutoGPRegressor([("wrong", Wrong())]).fit(*table(50))

    @pytest.mark.slow
    def test_copies_of_rows_do_not_let_a_memory_win(self):
        X, y = table(2200)
        X[1000:], y[1000:] = X[:1200], y[:1200]
        X[:200] += 1e-9
        members = ["linear", ("memory", Memory())]
        model = AutoGPRegressor(members, random_state=0).fit(X, y)
        assert model.members_ == ["linear"]

    def test_variances_of_zero_do_not_decide(self):
        """A floor that the other rows give: a few rows without any variance have one, too."""
        rng = np.random.default_rng(0)
        y, variance = rng.standard_normal(400), np.ones(400)
        variance[:2] = 0.0
        scored = np.ones(400, bool)
        _, found = calibrated(Scaled(None), y, np.zeros(400), variance, scored)
        loss = negative_log_density(y, np.zeros(400), found)
        assert found.min() > 0.5 and loss.mean() < 1.6

    @pytest.mark.slow
    def test_other_targets_of_equal_rows_are_held_out_rows_like_all(self):
        covered = []
        for seed in range(3):
            rng = np.random.default_rng(seed)
            places, values = rng.standard_normal((300, 2)), rng.standard_normal(300)
            at = rng.integers(300, size=4800)
            X, y = places[at], values[at] + 0.1 * rng.standard_normal(4800)
            members = ["linear", ("nearest", KNeighborsRegressor(8))]
            model = AutoGPRegressor(members, random_state=0).fit(X[:2400], y[:2400])
            assert model.members_ == ["nearest"]
            assert "density of 480 of 2,400 rows" in model.explain_
            low, high = model.predict_interval(X[2400:]).T
            covered.append(np.mean((low <= y[2400:]) & (y[2400:] <= high)))
        assert 0.92 < np.mean(covered) < 0.98 and min(covered) > 0.9

    def test_copies_stay_together_where_targets_repeat_by_chance(self):
        rng = np.random.default_rng(0)
        places = rng.standard_normal((300, 2))
        at = rng.integers(300, size=2400)
        X, y = places[at], np.round(2 * rng.standard_normal(2400))
        model = AutoGPRegressor(["linear"], random_state=0).fit(X, y)
        held = np.zeros(2400, bool)
        held[model.held_out_] = True
        assert not np.intersect1d(at[held], at[~held]).size

    @pytest.mark.slow
    def test_mixed_columns(self):
        pd = pytest.importorskip("pandas")
        rng = np.random.default_rng(0)
        X, y = table(400)
        shift = rng.standard_normal(60)
        levels = rng.integers(60, size=400)
        frame = pd.DataFrame(X, columns=["a", "b", "c"])
        frame["many"] = [f"level {k}" for k in levels]
        frame["few"] = np.where(X[:, 2] > 0, "up", "down")
        frame["when"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(np.arange(400), unit="D")
        frame.loc[3, "a"] = np.nan
        y = y + shift[levels]
        train, test, y_train, y_test = train_test_split(frame, y, random_state=0)
        model = AutoGPRegressor(random_state=0).fit(train, y_train)
        assert list(model.feature_names_in_) == list(frame.columns)
        assert model.score(test, y_test) > 0.6
        assert any("many" in text for text in model.encoding_)
        test = test.copy()
        test.loc[test.index[0], "many"] = "never seen"
        assert np.isfinite(model.predict(test, return_std=True)).all()
        with pytest.raises(ValueError, match="yet now missing:\n- few") as caught:
            model.predict(test.drop(columns="few"))
        assert "Encoder" not in str(caught.value)

    @pytest.mark.slow
    @pytest.mark.parametrize("seed", [0, 1, 2])
    def test_pure_noise_has_no_noise_model(self, seed):
        pd = pytest.importorskip("pandas")
        rng = np.random.default_rng(seed)
        frame = pd.DataFrame({"a": rng.choice(list("xyz"), 300), "b": rng.random(300)})
        y = rng.standard_normal(300)
        model = AutoGPRegressor(random_state=0).fit(frame, y)
        assert np.std(model.predict(frame)) < 0.3
        # What the deviations cost on fresh noise of this size, in nats: on seed 2 chance finds a
        # noise model.
        ratio = y.std() / model.predict_std(frame)
        assert np.mean(0.5 * ratio**2 - 0.5 - np.log(ratio)) < 0.05

    def test_relevance(self, small):
        model, X, y = small
        found = model.permutation_relevance(X[:80], y[:80], n_repeats=2)
        assert found.importances_mean[0] > 1 > found.importances_mean[2] + 0.5

    def test_few_rows_and_equal_targets(self):
        X, y = table(4)
        model = AutoGPRegressor().fit(X, y)
        assert model.members_ == ["exact"] and "too few" in model.explain_
        model = AutoGPRegressor().fit(*(table(50)[0], np.ones(50)))
        assert "equal" in model.explain_
        assert_allclose(model.predict(X), 1)

    @pytest.mark.parametrize(
        "members, message",
        [
            ([], "an empty list"),
            (["linear", "linear"], "'linear' twice"),
            (["bagging"], "'bagging'"),
            ([("own", 3)], "'own'"),
        ],
    )
    def test_wrong_members(self, members, message):
        with pytest.raises(ValueError, match=message):
            AutoGPRegressor(members).fit(*table(50))

    def test_known_noise(self):
        X, y = table(150, noise=0.05)
        noise = np.where(np.arange(150) % 2, 4.0, 1e-4)
        y = y + np.sqrt(noise) * np.random.default_rng(3).standard_normal(150)
        model = AutoGPRegressor(["exact", "linear"], random_state=0)
        model.fit(X, y, noise_variance=noise)
        std = model.predict_std(X, noise_variance=0)
        assert std.mean() < 0.6
        assert_allclose(model.predict_std(X, noise_variance=noise) ** 2, std**2 + noise)


class Deaf(RegressorMixin, BaseEstimator):
    """A line that takes any keyword for its predictions, and ignores it, as LightGBM does."""

    def fit(self, X, y):
        self.line_ = LinearRegression().fit(X, y)
        return self

    def predict(self, X, **ignored):
        return self.line_.predict(X)


def test_a_member_may_ignore_return_std():
    model = AutoGPRegressor([("deaf", Deaf())], random_state=0).fit(*table(100))
    assert model.members_ == ["deaf"] and np.isfinite(model.leaderboard_["deaf"].nll)


@pytest.mark.parametrize("name", ["catboost", "lightgbm"])
def test_boosters_join_by_name(name, monkeypatch):
    """A toy stands for the package, which the tests do not need."""

    class Toy(Deaf):
        def __init__(self, verbose=None, **settings):
            self.verbose, self.settings = verbose, settings

        def fit(self, X, y, sample_weight=None):
            return super().fit(X, y)

        def predict(self, X, **ignored):
            mean = super().predict(X)
            wide = "loss_function" in self.settings
            return np.column_stack([mean, np.full(len(X), 0.25)]) if wide else mean

        def get_params(self, deep=True):
            return {"verbose": self.verbose, **self.settings}

    toys = SimpleNamespace(CatBoostRegressor=Toy, LGBMRegressor=Toy)
    monkeypatch.setitem(sys.modules, name, toys)
    model = AutoGPRegressor([name], random_state=0).fit(*table(100))
    assert model.members_ == [name] and model.leaderboard_[name].note == ""


@pytest.mark.parametrize(
    "name, word", [("catboost", "cat_features"), ("lightgbm", "categorical_feature")]
)
def test_boosters_are_told_of_categories(name, word, monkeypatch):
    told = {}

    class Toy:
        def __init__(self, random_state=0, **quiet):
            pass

        def fit(self, X, y, **categories):
            told.update(categories, X=X)

    monkeypatch.setitem(sys.modules, name, SimpleNamespace(LGBMRegressor=Toy))
    X, y = table(50)
    X[:, 0] = np.arange(50) % 4 - 1.0
    BoosterRegressor(name, "LGBMRegressor", 0, [0]).fit(X, y)
    assert told[word] == [0]
    missing = told["X"][::4, 0]
    # CatBoost has whole numbers, and LightGBM missing entries.
    assert set(missing) == {-1} if name == "catboost" else np.isnan(missing.astype(float)).all()


@pytest.mark.parametrize("name", ["catboost", "lightgbm"])
def test_a_booster_that_is_not_installed(name, monkeypatch):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        AutoGPRegressor(["linear", name]).fit(*table(100))


@pytest.mark.slow
@pytest.mark.parametrize("n, parts", [(600, 5), (2400, 1)])
def test_held_out_rows_are_encoded_once(n, parts, monkeypatch):
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 30, n)
    X = np.column_stack([rng.uniform(size=n).astype(object), [f"town {k}" for k in levels]])
    y = X[:, 0].astype(float) + levels % 5
    sizes, found, transform, unseen = [], [], TargetCodes.transform, DividedTable.unseen

    def counted(self, X):
        sizes.append(len(X))
        return transform(self, X)

    def kept(self, inner, new):
        found.append((inner, self.X[new], *unseen(self, inner, new)))
        return found[-1][2:]

    monkeypatch.setattr(TargetCodes, "transform", counted)
    monkeypatch.setattr(DividedTable, "unseen", kept)
    members = ["linear", "trees", ("nearest", KNeighborsRegressor(8))]
    model = AutoGPRegressor(members, random_state=0).fit(X, y)
    assert sizes.count(len(model.held_out_) // parts) == parts
    for inner, rows, last, encoded in found:
        assert last is inner[-1]
        assert_array_equal(last.predict(encoded), inner.predict(rows))


def test_many_levels_under_metadata_routing():
    rng = np.random.default_rng(0)
    levels = np.array([f"town {k}" for k in range(25)])[rng.integers(0, 25, 200)]
    X = np.column_stack([rng.uniform(size=200).astype(object), levels.astype(object)])
    y = X[:, 0].astype(float)
    models = [AutoGPRegressor(["linear"], random_state=0) for _ in range(2)]
    with config_context(enable_metadata_routing=True):
        routed = models[0].fit(X, y).predict(X)
    assert_array_equal(routed, models[1].fit(X, y).predict(X))


def test_boosted_trees_of_a_part_of_the_rows_stop_growing():
    """A budget begins with fits to few rows, whose cost and loss stand for those of all rows."""
    (trees,) = class_candidates(["trees"], 20_000)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 5))
    y = rng.random(2000) < 1 / (1 + np.exp(3 - X[:, 0]))
    model = trees.make(None).set_params(random_state=0).fit(X, y)
    assert len(model.trees_) == 5 and all(each.n_iter_ < 100 for each in model.trees_)
