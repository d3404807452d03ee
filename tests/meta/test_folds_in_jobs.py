"""Folds of estimators over estimators in joblib's jobs."""

import warnings

import joblib
import numpy as np
import pytest
from sklearn.base import clone
from sklearn.ensemble import HistGradientBoostingRegressor

from skscalablegp import (
    HeteroscedasticRegressor,
    MeanFunctionRegressor,
    NNGPRegressor,
    StackedGPRegressor,
    SVGPRegressor,
)

POINTS = SVGPRegressor(n_inducing=10, max_iter=3, small_table="method", random_state=0)
NEAR = NNGPRegressor(n_neighbors=8, optimizer=None, random_state=0)
ESTIMATORS = {
    "noise": HeteroscedasticRegressor(POINTS, random_state=0),
    "noise of closed forms": HeteroscedasticRegressor(NEAR, random_state=0),
    "stack": StackedGPRegressor([("points", POINTS)], random_state=0),
    "trees": MeanFunctionRegressor(
        NEAR, HistGradientBoostingRegressor(max_iter=5), weight=0.5, random_state=0
    ),
}
QUICK = ("noise", "trees")


def table(n=160):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, size=(n, 2))
    return X, np.sin(2 * X[:, 0]) + X[:, 1] + 0.2 * rng.normal(size=n), np.linspace(0.01, 0.1, n)


def fitted(name, **settings):
    X, y, noise = table()
    model = clone(ESTIMATORS[name]).set_params(**settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y, noise_variance=noise)


@pytest.fixture
def folds_in_jobs(stand_in):
    """How many folds were fitted in jobs, in all fits so far."""
    counts = []

    def counted(self, numbers):
        counts.append(len(numbers))
        return by_jobs(self, numbers)

    by_jobs = stand_in("FoldFits.some", counted)
    return counts


@pytest.mark.parametrize(
    "name",
    [pytest.param(k, marks=[] if k in QUICK else pytest.mark.slow) for k in ESTIMATORS],
)
def test_folds_in_jobs_are_those_of_this_process(name, folds_in_jobs):
    X, *_ = table()
    alone = fitted(name)
    assert not folds_in_jobs
    with joblib.parallel_config("threading"):
        together = fitted(name, n_jobs=2)
    assert sum(folds_in_jobs) >= 4 and len(folds_in_jobs) > 1
    expected, found = (model.predict(X, return_std=True) for model in (alone, together))
    np.testing.assert_array_equal(found, expected)
    assert together.n_iter_ == alone.n_iter_
    assert together.fit_report_.status == alone.fit_report_.status


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_folds_in_other_processes(name):
    X, *_ = table()
    alone = fitted(name)
    # A context alone says as much as n_jobs.
    with joblib.parallel_config("loky", n_jobs=2, inner_max_num_threads=1):
        together = fitted(name)
    np.testing.assert_array_equal(together.predict(X), alone.predict(X))


@pytest.mark.parametrize("settings", [{"max_seconds": 1000.0}, {"callbacks": lambda step: False}])
def test_fits_that_something_looks_at_stay_in_this_process(settings, folds_in_jobs):
    with joblib.parallel_config("threading", n_jobs=2):
        fitted("trees", **settings)
    assert not folds_in_jobs
