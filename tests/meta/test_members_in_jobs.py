"""Members of stacks and of automatic estimators in joblib's jobs."""

import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from skscalablegp import (
    AutoGPClassifier,
    AutoGPRegressor,
    NNGPRegressor,
    StackedGPRegressor,
    SVGPClassifier,
    SVGPRegressor,
)


class Failing(RegressorMixin, BaseEstimator):
    def fit(self, X, y):
        raise ValueError("this member cannot be fitted")

    def predict(self, X):
        return np.zeros(len(X))


POINTS = SVGPRegressor(n_inducing=10, max_iter=3, small_table="method")
NEAR = NNGPRegressor(n_neighbors=8, n_centers=20)
SEVERAL = [("line", make_pipeline(StandardScaler(), Ridge())), ("failing", Failing())]
SEVERAL += [("points", make_pipeline(StandardScaler(), POINTS)), ("near", NEAR)]
CLASSES = [
    ("line", LogisticRegression()),
    ("points", SVGPClassifier(n_inducing=10, max_iter=3)),
]
ESTIMATORS = {
    "stack": StackedGPRegressor(SEVERAL, random_state=0),
    "auto": AutoGPRegressor(SEVERAL, random_state=0),
    "classes": AutoGPClassifier(CLASSES, random_state=0),
    "held out": AutoGPRegressor(
        ["linear", "exact", "neighbors", "trained_neighbors"], random_state=0
    ),
}
ROWS = {"held out": 2200}


def table(name):
    rng, n = np.random.default_rng(0), ROWS.get(name, 240)
    X = rng.uniform(-2, 2, size=(n, 2))
    y = np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n)
    # Heavy tails, of which processes take normal scores.
    X = np.column_stack([X[:, 0], np.sinh(3 * X[:, 1]) ** 3]) if name == "held out" else X
    return X, y > 0 if name == "classes" else y


def fitted(name, **settings):
    model = clone(ESTIMATORS[name]).set_params(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(*table(name))


@pytest.fixture
def parts_in_jobs(stand_in):
    """Numbers of the parts that jobs have done, in all fits so far."""
    done = []

    def noted(self, number):
        done.append(number)
        return call(self, number)

    call = stand_in("PartFits.__call__", noted)
    return done


def assert_equal_fits(name, together, alone):
    X, _ = table(name)
    if name == "classes":
        np.testing.assert_array_equal(together.predict_proba(X), alone.predict_proba(X))
    else:
        found, expected = (model.predict(X, return_std=True) for model in (together, alone))
        np.testing.assert_array_equal(found, expected)
    np.testing.assert_array_equal(together.weights_, alone.weights_)
    assert together.n_iter_ == alone.n_iter_
    for found, expected in zip(together.history_["theta"], alone.history_["theta"], strict=True):
        np.testing.assert_array_equal(found, expected)
    for each in ("status", "stop_reason", "warnings"):
        assert getattr(together.fit_report_, each) == getattr(alone.fit_report_, each)
    assert set(together.fit_report_.seconds) == set(alone.fit_report_.seconds)
    notes = [[(row.member, row.note) for row in model.leaderboard_] for model in (together, alone)]
    assert notes[0] == notes[1]


@pytest.mark.seldom("held out")
@pytest.mark.parametrize(
    "name",
    [pytest.param(k, marks=[] if k == "stack" else pytest.mark.slow) for k in ESTIMATORS],
)
def test_members_in_jobs_are_those_of_this_process(name, parts_in_jobs):
    alone = fitted(name)
    assert not parts_in_jobs
    with joblib.parallel_config("threading"):
        together = fitted(name, n_jobs=2)
    assert len(parts_in_jobs) >= 2
    assert_equal_fits(name, together, alone)


@pytest.mark.exact_input
@pytest.mark.slow
@pytest.mark.seldom("held out", "auto")
@pytest.mark.parametrize("name", ESTIMATORS)
def test_members_in_other_processes(name):
    with joblib.parallel_config("loky", inner_max_num_threads=1):
        together = fitted(name, n_jobs=2)
    assert_equal_fits(name, together, fitted(name))


@pytest.mark.parametrize("settings", [{"max_seconds": 1000.0}, {"callbacks": lambda step: False}])
def test_members_that_something_looks_at_stay_in_this_process(settings, parts_in_jobs):
    with joblib.parallel_config("threading"):
        fitted("stack", n_jobs=2, **settings)
    assert not parts_in_jobs


def test_the_report_says_that_jobs_have_no_effect():
    for model, told in (
        (AutoGPRegressor(["linear", "exact"], n_jobs=2, max_seconds=1e4), True),
        (AutoGPRegressor(["linear", "exact"], max_seconds=1e4), False),
        (StackedGPRegressor(n_jobs=2, callbacks=lambda step: None), True),
    ):
        X = np.random.default_rng(0).standard_normal((60, 2))
        report = model.set_params(random_state=0).fit(X, X[:, 0]).fit_report_
        assert ("n_jobs" in report.ignored) == told


def test_an_error_of_all_members_is_raised(parts_in_jobs):
    model = StackedGPRegressor([("a", Failing()), ("b", Failing())], n_jobs=2, random_state=0)
    with joblib.parallel_config("threading"), pytest.raises(ValueError, match="cannot be fitted"):
        model.fit(*table("stack"))
    assert sorted(parts_in_jobs) == [0, 1]


def test_a_single_member_stays_in_this_process(parts_in_jobs):
    model = StackedGPRegressor([("line", LinearRegression())], n_jobs=2, random_state=0)
    with joblib.parallel_config("threading"):
        model.fit(*table("stack"))
    assert not parts_in_jobs
