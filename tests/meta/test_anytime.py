"""What time cannot break: the model of an automatic fit that ends between any two of its steps."""

import numpy as np
import pytest
from inside import clock as read_clock
from numpy.testing import assert_allclose, assert_array_equal
from scipy.stats import norm
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin

from skscalablegp import AutoGPClassifier, AutoGPRegressor
from skscalablegp.core.training import Budget, StopTraining
from skscalablegp.meta import Errors, mixed, noise_features, pool_weights
from skscalablegp.meta._division import DividedTable
from skscalablegp.solvers import End

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
    weights = pool_weights(y[held], np.stack(predicted), np.stack(errors))
    assert_allclose(model.weights_, weights[weights > 0])
    assert model.fit_report_.status == "completed"


def test_a_fit_that_will_not_end_is_fitted_to_fewer_rows(clock):
    """Measured costs grow a fit from 2,000 rows; predictions of held-out rows count."""
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


@pytest.mark.slow
def test_cut_predictions_are_compared_on_common_rows(clock):
    """Members that have predicted different numbers of rows are compared on the same ones."""
    X, y = table(MANY)
    named = [("line", Toy(0)), ("slow", Toy(1, row_seconds=5.4e-2))]
    model = auto(named, 60.0, MANY_HELD).fit(X, y)
    done = int(
        model.leaderboard_["slow"].note.split("evaluated on ")[1].split(" ")[0].replace(",", "")
    )
    assert 500 <= done < 600 and len(model.held_out_) == done
    assert np.isfinite([each.nll for each in model.leaderboard_]).all()
    assert set(model.members_) == {"line", "slow"}


@pytest.mark.slow
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


@pytest.mark.parametrize("kind", [AutoGPRegressor, AutoGPClassifier])
def test_the_first_answer_is_calibrated(kind, monkeypatch):
    """All time passes when the first member has been weighed."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 10))
    y = X[:, 0] + np.sin(2 * X[:, 1]) + 0.3 * rng.standard_normal(20_000)
    y = y if kind is AutoGPRegressor else (y > 0).astype(int)
    own, answers = kind._weigh, []

    def weighed(self, rows):
        own(self, rows)
        answers.append(len(self._members))

    monkeypatch.setattr(kind, "_weigh", weighed)
    with read_clock(lambda: 1e6 * len(answers)):
        model = kind(max_seconds=10, random_state=0).fit(X[:15_000], y[:15_000])
    assert answers == [1] and model.fit_report_.status == "max_seconds"
    if kind is AutoGPRegressor:
        low, high = model.predict_interval(X[15_000:]).T
        assert 0.91 < np.mean((low <= y[15_000:]) & (y[15_000:] <= high)) < 0.985
    else:
        found = model.predict_proba(X[15_000:])[:, 1]
        bins = np.minimum((10 * found).astype(int), 9)
        gaps = np.bincount(bins, y[15_000:], 10) - np.bincount(bins, found, 10)
        assert np.abs(gaps).sum() / 5000 < 0.03


def with_varying_errors(n, seed):
    """Columns are predictions of y: one is good for half of the rows, one equally good for all."""
    rng = np.random.default_rng(seed)
    at, y = rng.uniform(-1, 1, n), rng.standard_normal(n)
    varying = y + np.where(at > 0, 0.05, 1.0) * rng.standard_normal(n)
    return np.column_stack([at, varying, y + 0.5 * rng.standard_normal(n)]), y


class Column(RegressorMixin, BaseEstimator):
    """Predicts a column, with a standard deviation that is too small."""

    def __init__(self, of=1):
        self.of = of

    def fit(self, X, y):
        self.n_features_in_ = X.shape[1]
        return self

    def predict(self, X, return_std=False):
        return (X[:, self.of], np.full(len(X), 0.1)) if return_std else X[:, self.of]


COLUMNS = [("varying", Column(1)), ("equal", Column(2))]


@pytest.mark.slow
def test_members_have_noise_models_of_their_own():
    """At constant noise the member that is better in half of the rows has less weight."""
    X, y = with_varying_errors(600, 0)
    squares = np.square(y - X[:, 1:].T).mean(axis=1)
    variances = np.repeat(squares[:, None], 600, axis=1)
    assert pool_weights(y, X[:, 1:].T, variances)[0] < 0.5
    model = AutoGPRegressor(COLUMNS, random_state=0).fit(X, y)
    assert "noise models of the members" in model.explain_
    assert dict(zip(model.members_, model.weights_, strict=True))["varying"] > 0.9
    X, y = with_varying_errors(4000, 1)
    mean, std = model.predict(X, return_std=True)
    assert_allclose(np.mean(((y - mean) / std) ** 2), 1, atol=0.15)
    low, high = model.predict_interval(X).T
    assert 0.93 < np.mean((low <= y) & (y <= high)) < 0.97
    # The density of new rows is higher than with the equally good member alone.
    new = norm.logpdf(y, mean, std).mean()
    assert new > norm.logpdf(y, X[:, 2], 0.5).mean() + 0.2
    # It is what the held-out rows have promised, above that of a constant standard deviation.
    assert -model.leaderboard_["varying"].nll < new + 0.1


@pytest.mark.exact_input
@pytest.mark.slow
def test_noise_models_of_members_learn_from_held_out_rows(stand_in):
    """From the errors of rows that the member has not seen, and without the rows themselves."""
    X, y = with_varying_errors(BIG, 0)
    learned = []

    def best_noise(F, squares, *args):
        learned.append((F, squares, *own(F, squares, *args)))
        return learned[-1][2:]

    own = stand_in("meta.best_noise", best_noise)
    model = AutoGPRegressor(COLUMNS, random_state=0).fit(X, y)
    held = model.held_out_
    assert model.members_ == ["varying"]
    scaled = model._learned.inner._members[0]
    F, squares, noise, logs = next(each for each in learned if each[2].parts is scaled.noise.parts)
    # Of the mixture, and of each member.
    assert len(learned) == 3 and len(F) == len(held) < BIG / 2
    assert_array_equal(F[:, :4], X[held][:, [0, 1, 2, 1]])
    assert_allclose(squares, np.square(y[held] - X[held, 1]) / np.exp(2 * F[:, -1]))
    # Each row is predicted with the noise model that has not seen its error.
    assert_array_equal(model.held_out_mean_, X[held, 1])
    assert_allclose(2 * np.log(model.held_out_std_), 2 * F[:, -1] + logs)


@pytest.mark.slow
def test_copies_of_fitted_rows_may_only_raise_the_noise():
    """A memory is sure of copies; most are exact, and a few are far away."""
    rng = np.random.default_rng(0)
    n = 1000
    X, mean, std = rng.standard_normal((n, 1)), np.zeros(n), np.ones(n)
    scored, far = np.arange(n) < 600, np.arange(n) >= 980
    std[~scored] = 0.01
    y = np.where(scored, rng.standard_normal(n), 0.0)
    y[far] = 1.0
    rows = DividedTable(X, y, None, None, [], np.arange(n), scored, np.arange(n), np.arange(n))
    errors = Errors.of(rows, np.arange(n), scored)
    noise, logs = errors.model(mean, std**2, 0.0, 0, Budget())
    total = std * np.exp(0.5 * logs)
    assert_allclose(np.mean(y[scored] ** 2 / total[scored] ** 2), 1)
    # A twentieth of the copies is a hundred standard deviations away.
    assert 0.1 < np.median(total[~scored]) < 0.5
    # Without those, exact copies leave the standard deviations of copies as they are.
    errors.y[far] = 0.0
    logs = errors.model(mean, std**2, 0.0, 0, Budget())[1]
    assert_allclose(np.median(np.exp(0.5 * logs[~scored])), 1, atol=0.2)


def test_a_noise_model_of_fewer_rows_is_kept_if_time_ends_that_of_all(stand_in):
    X, y = with_varying_errors(6000, 0)
    sizes = []

    def cut(F, *args):
        sizes.append(len(F))
        if len(sizes) > 1:
            raise StopTraining(End.MAX_SECONDS)
        return own(F, *args)

    own = stand_in("meta.best_noise", cut)
    model = AutoGPRegressor(COLUMNS[:1], random_state=0, max_seconds=1e6).fit(X, y)
    assert sizes == [1000, 1200] and model.noise_gain_ > 0.1
    assert "too short for all work on the noise model" in model.explain_


def test_errors_of_zero_leave_a_least_variance():
    rng = np.random.default_rng(0)
    n = 1000
    X = rng.uniform(size=(n, 1))
    y = np.where(X[:, 0] < 0.5, 0.0, rng.standard_normal(n))
    every = np.arange(n)
    rows = DividedTable(X, y, None, None, [], every, np.ones(n, bool), every, every)
    errors = Errors.of(rows, every, rows.scored)
    noise, logs = errors.model(np.zeros(n), np.full(n, 1e-3), 0.0, 0, Budget())
    least = 0.5 * np.mean(y**2) / n
    assert_allclose(np.exp(logs[X[:, 0] < 0.4]) * 1e-3, least)
    new = noise_features(np.array([[0.1], [0.9]]), np.zeros(2), np.full(2, 1e-3))
    found = noise.factor(new) ** 2 * 1e-3
    assert_allclose(found[0], least)
    assert_allclose(found[1], 1, rtol=0.5)
    assert_allclose(np.mean(y[X[:, 0] > 0.5] ** 2 / np.exp(logs[X[:, 0] > 0.5]) * 1e3), 1, atol=0.1)


@pytest.mark.slow
def test_a_noise_model_is_kept_if_time_leaves_out_those_of_members(stand_in):
    X, y = with_varying_errors(600, 0)

    def cut(*args):
        if len(calls) > most:
            raise StopTraining(End.MAX_SECONDS)
        calls.append(1)
        return own(*args)

    own = stand_in("meta.best_noise", cut)
    for most in (0, 1):
        calls = []
        model = AutoGPRegressor(COLUMNS[:1] + ["linear"], random_state=0, max_seconds=1e6)
        model.fit(X, y)
        assert len(calls) == most + 1 and model.noise_gain_ > 0.1
        assert "noise models of the members" not in model.explain_
        assert "too short for all work on the noise model" in model.explain_
