"""What time cannot break: the model of an automatic fit that ends between any two of its steps."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from skscalablegp import AutoGPClassifier, AutoGPRegressor
from skscalablegp._clock import clock as read_clock
from skscalablegp.meta._pool import mixed, pool_weights

# Tables with one held-out part, which has `HELD` of the rows, and with folds.
# So few held-out rows give no noise model, which would take most of the tests' time.
BIG, SMALL, HELD = 2100, 150, 0.045
# A table to which fits grow in three steps, and shares of 90 and of 600 held-out rows.
MANY, FEW_HELD, MANY_HELD = 12_000, 0.0075, 0.05


class Clock:
    """A clock that fits and predictions of the toys move; past `stop` it jumps far ahead."""

    def __init__(self, stop=np.inf):
        self.now, self.work, self.stop = 0.0, 0.0, stop

    def takes(self, seconds):
        self.work += seconds
        self.now += seconds if self.work < self.stop else 1e6


CLOCK = [Clock()]


@pytest.fixture
def clock():
    CLOCK[0] = Clock()
    with read_clock(lambda: CLOCK[0].now):
        yield CLOCK[0]


class Toy(RegressorMixin, BaseEstimator):
    """A line on one column, whose fits and predictions take time, and which knows its rows."""

    def __init__(self, column=0, fit_seconds=0.0, row_seconds=0.0):
        self.column, self.fit_seconds, self.row_seconds = column, fit_seconds, row_seconds

    def fit(self, X, y):
        CLOCK[0].takes(self.fit_seconds * len(X))
        self.rows_ = {row.tobytes() for row in np.ascontiguousarray(X)}
        self.line_ = np.polyfit(X[:, self.column], y, 1)
        return self

    def predict(self, X):
        CLOCK[0].takes(self.row_seconds * len(X))
        return np.polyval(self.line_, X[:, self.column])


class ToyClasses(ClassifierMixin, Toy):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return super().fit(X, y == self.classes_[-1])

    def predict_proba(self, X):
        p = np.clip(self.predict(X), 0.01, 0.99)
        return np.column_stack([1 - p, p])


def table(n, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, size=(n, 3))
    return X, X[:, 0] + X[:, 1] + 0.1 * rng.standard_normal(n)


def members(**first):
    """Two lines of which each knows half of the function, and one that knows nothing."""
    cost = {"fit_seconds": 1e-3, "row_seconds": 1e-4}
    return [(name, Toy(k, **(cost | first))) for k, name in enumerate(("one", "two", "none"))]


def auto(named, max_seconds=None, held=HELD, kind=AutoGPRegressor):
    return kind(named, validation_fraction=held, random_state=0, max_seconds=max_seconds)


def unseen_of(model, X, y):
    """Assert that the weights and the calibration are those of rows that the members lack."""
    held = model.held_out_
    assert 0 < len(held) < len(X)
    means, variances = [], []
    for estimator in model.estimators_:
        mean = estimator.predict(X[held])
        means.append(mean)
        variances.append(np.full(len(held), np.mean((y[held] - mean) ** 2)))
    refitted = [len(estimator.rows_) == len(X) for estimator in model.estimators_]
    seen = [[row.tobytes() in e.rows_ for row in X[held]] for e in model.estimators_]
    if not any(refitted):
        assert not np.any(seen)
        mean, variance = mixed(model.weights_, np.stack(means), np.stack(variances))
        assert_allclose(model.held_out_mean_, mean)
        assert_allclose(model.held_out_std_, np.sqrt(variance))
        # The mixture itself is calibrated, too, where errors of its members cancel.
        mean, std = model.predict(X[held], return_std=True)
        assert_allclose(np.mean(((y[held] - mean) / std) ** 2), 1, atol=0.15)
    assert_allclose(model.weights_.sum(), 1)


def test_the_clock_may_stop_between_any_two_steps(clock):
    """What was validated last predicts, with weights that its own unseen rows give."""
    X, y = table(BIG)
    named = members()

    def fitted(stop):
        CLOCK[0] = Clock(stop)
        return auto(named, 1000.0).fit(X, y)

    whole = fitted(np.inf)
    work = CLOCK[0].work
    assert all(len(each.rows_) == BIG for each in whole.estimators_)
    assert set(whole.members_) == {"one", "two"}
    shares = np.round(whole.weights_, 1)
    kinds = set()
    # A stop in each fit, each block of predictions, and each refit.
    for stop in np.linspace(1e-6, work, 14):
        model = fitted(stop)
        unseen_of(model, X, y)
        mean, std = model.predict(X, return_std=True)
        assert np.isfinite(mean).all() and (std > 0).all()
        assert_allclose(np.sqrt(np.mean(((y - mean) / std) ** 2)), 1, atol=0.2)
        refits = sum(len(each.rows_) == BIG for each in model.estimators_)
        kinds.add((len(model.members_), refits))
        if len(model.members_) == 2:
            assert_allclose(model.weights_, shares, atol=0.1)
    # One member, both, and a refit of one of them.
    assert {(1, 0), (2, 0), (2, 1)} <= kinds


def test_weights_come_from_unseen_rows(clock):
    X, y = table(BIG)
    model = auto(members()).fit(X, y)
    held = model.held_out_
    rest = np.setdiff1d(np.arange(BIG), held)
    predicted = [np.polyval(np.polyfit(X[rest, k], y[rest], 1), X[held, k]) for k in range(3)]
    errors = [np.full(len(held), np.mean((y[held] - mean) ** 2)) for mean in predicted]
    weights = pool_weights(y[held], np.stack(predicted), np.stack(errors))[0]
    assert_allclose(model.weights_, weights[weights > 0])
    assert model.fit_report_.status == "completed"


def test_a_fit_that_will_not_end_is_fitted_to_fewer_rows(clock):
    """Measured costs grow a fit from 2,000 rows; predictions that judge it count."""
    X, y = table(MANY)
    quick = [("line", Toy(0, 2.5e-3))]
    model = auto(quick, 60.0, FEW_HELD)
    model.fit(X, y)
    assert len(model.estimators_[0].rows_) == 8000
    assert "fitted to 8,000 of 11,910 rows" in model.leaderboard_["line"].note
    # A fit to all rows would take 30 seconds more, and end too late for the members' 36 seconds.
    assert CLOCK[0].now <= 36


def test_predictions_count_in_the_growth_of_a_fit(clock):
    X, y = table(MANY)

    class Slower(Toy):
        """Predictions take a time for each of its rows, as those of neighbours do."""

        def predict(self, X):
            CLOCK[0].takes(1e-5 * len(X) * len(self.rows_) / 2000)
            return super().predict(X)

    named = [("line", Toy(0)), ("slower", Slower(1))]
    model = auto(named, 0.01, FEW_HELD).fit(X, y)
    note = model.leaderboard_["slower"].note
    assert note.startswith("fitted to 2,000 of 11,910 rows") and "slower" in model.members_


def test_a_member_without_time_for_predictions_is_dropped(clock):
    X, y = table(BIG)
    named = [("line", Toy(0)), ("late", Toy(1, row_seconds=0.1))]
    model = auto(named, 60.0, 0.15).fit(X, y)
    assert model.members_ == ["line"]
    assert "time sufficed to predict" in model.leaderboard_["late"].note


def test_cut_predictions_judge_by_common_rows(clock):
    """Members that have predicted different numbers of rows are compared on the same ones."""
    X, y = table(MANY)
    named = [("line", Toy(0)), ("slow", Toy(1, row_seconds=5.4e-2))]
    model = auto(named, 60.0, MANY_HELD).fit(X, y)
    judged = int(
        model.leaderboard_["slow"].note.split("evaluated on ")[1].split(" ")[0].replace(",", "")
    )
    assert 500 <= judged < 600 and len(model.held_out_) == judged
    assert set(model.members_) == {"line", "slow"}


def test_a_slow_member_without_weight_does_not_limit_the_rows_of_others(clock):
    X, y = table(MANY)
    named = [("line", Toy(0)), ("slow", Toy(2, row_seconds=5.4e-2))]
    model = auto(named, 60.0, MANY_HELD).fit(X, y)
    assert "of 600 held-out rows" in model.leaderboard_["slow"].note
    assert model.members_ == ["line"] and "density of 600 of 12,000 rows" in model.explain_


@pytest.mark.parametrize("seconds", [3.0, 4.0])
def test_time_for_one_fold_only(clock, seconds):
    """The fit without the first fold predicts, or one to all rows where there is time for it."""
    X, y = table(SMALL)
    named = [("slow", Toy(0, fit_seconds=1e-2))]
    model = auto(named, seconds).fit(X, y)
    assert len(model.held_out_) == SMALL // 5
    refitted = seconds == 4.0
    assert len(model.estimators_[0].rows_) == (SMALL if refitted else SMALL - SMALL // 5)
    unseen_of(model, X, y)
    note = "fitted on all rows" if refitted else "fitted without the held-out rows"
    assert model.leaderboard_["slow"].note == note and "30 of 150 rows" in model.explain_


def test_no_member_begins_without_time(clock):
    X, y = table(BIG)
    # The first member takes all of the time that members have, and its refit would not end.
    named = [("first", Toy(0, fit_seconds=2.95e-2)), ("second", Toy(1))]
    model = auto(named, 100.0).fit(X, y)
    assert "not begun" in model.leaderboard_["second"].note and model.members_ == ["first"]


def test_a_refit_that_is_cut_does_not_predict(clock):
    X, y = table(BIG)

    class Cut(Toy):
        def fit(self, X, y):
            self.cut_ = len(X) == BIG
            return super().fit(X, y)

    model = auto([("cut", Cut(0))], 1000.0).fit(X, y)
    assert model.leaderboard_["cut"].note == "fitted without the held-out rows"
    assert len(model.estimators_[0].rows_) < BIG
    unseen_of(model, X, y)


@pytest.mark.parametrize("n", [SMALL, BIG])
def test_a_clock_that_stops_at_once(clock, n):
    X, y = table(n)
    CLOCK[0] = Clock(0.0)
    model = auto(members(), 0.5).fit(X, y)
    assert model.members_ == ["one"]
    unseen_of(model, X, y)


def test_classes_when_the_clock_stops(clock):
    X, y = table(BIG)
    y = np.where(y > 0, "b", "a")
    cost = {"fit_seconds": 1e-3, "row_seconds": 1e-4}
    named = [(name, ToyClasses(k, **cost)) for k, name in enumerate(("one", "two"))]

    def fitted(stop):
        CLOCK[0] = Clock(stop)
        return auto(named, 1000.0, kind=AutoGPClassifier).fit(X, y)

    fitted(np.inf)
    for stop in np.linspace(1e-6, CLOCK[0].work, 6):
        model = fitted(stop)
        held = model.held_out_
        if all(len(each.rows_) < BIG for each in model.estimators_):
            pairs = zip(model.weights_, model.estimators_, strict=True)
            pooled = sum(w * each.predict_proba(X[held]) for w, each in pairs)
            assert_allclose(model.held_out_proba_, pooled)
            assert not any(row.tobytes() in e.rows_ for e in model.estimators_ for row in X[held])
        found = model.predict_proba(X)
        right = found[np.arange(BIG), np.searchsorted(model.classes_, y)]
        assert -np.log(right).mean() < np.log(2)


def test_tails_are_learned_without_time_for_a_noise_model():
    """Uniform errors: with normal tails an interval of 95 % would hold every row."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(BIG, 2))
    y = X[:, 0] + rng.uniform(-1, 1, BIG)
    time = {"now": 0.0, "step": 0.0, "left": 0.4 * BIG}

    class Last(Toy):
        """Once it has predicted all held-out rows, each look at the clock takes long."""

        def predict(self, X):
            time["left"] -= len(X)
            time["step"] = 20.0 if time["left"] <= 0 else 0.0
            return super().predict(X)

    def read():
        time["now"] += time["step"]
        return time["now"]

    with read_clock(read):
        model = auto([("last", Last())], 100.0, 0.4).fit(X, y)
    assert "the noise model" in model.explain_ and model.noise_gain_ == 0
    low, high = model.predict_interval(X).T
    assert 0.93 < np.mean((low <= y) & (y <= high)) < 0.975
