"""TableEncoder: tables with columns of all kinds against columns worked out by hand."""

import datetime
import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from skscalablegp import AutoGPClassifier, AutoGPRegressor
from skscalablegp.meta._encoding import TableEncoder

DAYS = [datetime.datetime(2024, 1, 1), datetime.datetime(2024, 1, 3), None]
DAYS += [datetime.datetime(2024, 2, 1)]
MIXED = {
    "size": [1.0, 2.0, 4.0, 8.0],
    "age": [3, None, 5, 10],
    "new": [True, False, False, True],
    "city": ["Rome", "Oslo", None, "Bern"],
    "sex": ["m", "f", "f", "m"],
    "sold": DAYS,
    "took": [datetime.timedelta(seconds=s) for s in (1, 60, 2, 86400)],
}
NAMES = ["size", "age", "age missing", "new", "city=Bern", "city=Oslo", "city=Rome"]
NAMES += ["city missing", "sex=m", "sold.days", "sold.day of year", "sold.weekday"]
NAMES += ["sold missing", "took"]
ENCODED = [
    [1, 3, 0, 1, 0, 0, 1, 0, 1, 0, 1, 0, 0, 1],
    [2, 5, 1, 0, 0, 1, 0, 0, 0, 2, 3, 2, 0, 60],
    [4, 5, 0, 0, 0, 0, 0, 1, 0, 2, 3, 2, 1, 2],
    [8, 10, 0, 1, 1, 0, 0, 0, 1, 31, 32, 3, 0, 86400],
]


def polars_frame(data):
    return pytest.importorskip("polars").DataFrame(data)


def objects(data):
    frame = pd.DataFrame({name: pd.Series(column, dtype=object) for name, column in data.items()})
    return frame.to_numpy()


def nullable(data):
    return pd.DataFrame(data).convert_dtypes()


CONTAINERS = [pd.DataFrame, nullable, polars_frame, objects]


@pytest.mark.parametrize("make", CONTAINERS)
def test_all_kinds_in_all_containers(make):
    encoder = TableEncoder().fit(make(MIXED))
    names = NAMES
    if make is objects:
        positions = {name: f"x{j}" for j, name in enumerate(MIXED)}
        for name, position in positions.items():
            names = [position + n[len(name) :] if n.startswith(name) else n for n in names]
    assert encoder.names_ == names
    assert encoder.source_ == [0, 1, 1, 2, 3, 3, 3, 3, 4, 5, 5, 5, 5, 6]
    assert encoder.codes_ == []
    encoded = encoder.transform(make(MIXED))
    assert encoded.dtype == np.float64
    np.testing.assert_array_equal(encoded, ENCODED)


@pytest.mark.parametrize("fitted", CONTAINERS)
@pytest.mark.parametrize("given", CONTAINERS)
def test_columns_are_known_by_position(fitted, given):
    encoder = TableEncoder().fit(fitted(MIXED))
    np.testing.assert_array_equal(encoder.transform(given(MIXED)), ENCODED)


def test_lists_of_numbers_and_texts():
    encoder = TableEncoder().fit([["a", 1.5], ["b", 2.5], ["c", 3.5]])
    assert encoder.names_ == ["x0=a", "x0=b", "x0=c", "x1"]
    np.testing.assert_array_equal(encoder.transform([["c", 7]]), [[0, 0, 1, 7]])


def test_unknown_and_newly_missing_entries():
    fit = pd.DataFrame({"n": [1.0, 2.0, 6.0], "c": ["a", "b", "c"], "two": ["y", "n", "y"]})
    encoder = TableEncoder().fit(fit)
    new = pd.DataFrame({"n": [None, 5.0], "c": ["z", None], "two": [None, "y"]})
    np.testing.assert_array_equal(encoder.transform(new), [[2, 0, 0, 0, 0], [5, 0, 0, 0, 1]])


def test_all_entries_missing():
    frame = pd.DataFrame({"a": [np.nan] * 3, "b": [None] * 3, "c": pd.to_datetime([None] * 3)})
    frame["d"] = pd.Categorical([None] * 3)
    encoder = TableEncoder().fit(frame)
    assert encoder.names_ == ["a", "a missing", "b", "b missing", "c", "c missing", "d missing"]
    np.testing.assert_array_equal(encoder.transform(frame), [[0, 1, 0, 1, 0, 1, 1]] * 3)


def test_kinds_whose_entries_are_all_missing_later():
    encoder = TableEncoder().fit(pd.DataFrame(MIXED))
    empty = encoder.transform(pd.DataFrame({name: [None, None] for name in MIXED}))
    np.testing.assert_array_equal(empty[0], [3, 5, 1, 0.5, 0, 0, 0, 1, 0, 2, 3, 2, 1, 31])


@pytest.mark.parametrize("make", [pd.DataFrame, polars_frame])
def test_many_levels_become_codes(make):
    levels = [f"town {k:02}" for k in range(30)]
    encoder = TableEncoder().fit(make({"a": np.arange(31.0), "town": [*levels[::-1], None]}))
    assert encoder.names_ == ["a", "town"]
    assert encoder.codes_ == [1]
    encoded = encoder.transform(make({"a": [0.0] * 4, "town": ["town 00", "town 29", "?", None]}))
    np.testing.assert_array_equal(encoded[:, 1], [0, 29, -1, -1])
    how = "encoded by the targets of their rows, and as categories for trees"
    assert encoder.describe() == [f"town: 30 categories, {how}"]


@pytest.mark.parametrize("n_levels, n_encoded", [(1, 1), (2, 1), (3, 3), (20, 20), (21, 1)])
def test_number_of_encoded_columns(n_levels, n_encoded):
    column = [f"{k}" for k in range(n_levels)]
    encoder = TableEncoder().fit(pd.DataFrame({"c": column}))
    assert len(encoder.names_) == n_encoded
    assert bool(encoder.codes_) == (n_levels > 20)


def test_categories_that_are_numbers():
    frame = pd.DataFrame({"c": pd.Categorical([3, 1, 2, 3])})
    encoder = TableEncoder().fit(frame)
    assert encoder.names_ == ["c=1", "c=2", "c=3"]
    for same in (frame, np.array([[3.0], [1], [2], [3]]), np.array([[3], [1], [2], [3]])):
        np.testing.assert_array_equal(encoder.transform(same)[:, 2], [1, 0, 0, 1])


@pytest.mark.parametrize("zone", [None, "America/New_York"])
@pytest.mark.parametrize("make", [lambda frame: frame, lambda frame: frame.astype(object), "p"])
def test_dates_with_hours(zone, make):
    times = pd.date_range("2023-12-31 22:30", periods=5, freq="45min", tz=zone)
    frame = pd.DataFrame({"t": times})
    if make == "p":
        polars = pytest.importorskip("polars")
        naive = polars.Series("t", frame["t"].dt.tz_localize(None).to_numpy())
        frame = polars.DataFrame({"t": naive.dt.replace_time_zone(zone)})
    else:
        frame = make(frame)
    encoder = TableEncoder().fit(frame)
    assert encoder.names_ == ["t.days", "t.day of year", "t.weekday", "t.hour"]
    days, day, weekday, hour = encoder.transform(frame).T
    np.testing.assert_allclose(days, np.arange(5) * 45 / 1440)
    np.testing.assert_array_equal(day, times.day_of_year)
    np.testing.assert_array_equal(weekday, times.day_of_week)
    np.testing.assert_array_equal(hour, times.hour)


def test_python_dates():
    dates = [datetime.date(2024, 3, 1), datetime.date(2023, 3, 1), datetime.date(1960, 3, 1)]
    encoder = TableEncoder().fit(np.array(dates, dtype=object)[:, None])
    expected = pd.to_datetime(dates)
    got = encoder.transform(pd.DataFrame({"d": expected})).T
    np.testing.assert_array_equal(got[0], (expected - expected.min()).days)
    np.testing.assert_array_equal(got[1], expected.day_of_year)
    np.testing.assert_array_equal(got[2], expected.day_of_week)


def test_numbers_are_not_copied():
    X = np.random.default_rng(0).normal(size=(20, 3))
    encoder = TableEncoder().fit(X)
    assert encoder.names_ == ["x0", "x1", "x2"]
    assert encoder.describe() == []
    assert encoder.transform(X) is X
    frame = pd.DataFrame(X, columns=list("abc"))
    encoder = TableEncoder().fit(frame)
    assert encoder.names_ == ["a", "b", "c"]
    assert np.shares_memory(encoder.transform(frame), frame.to_numpy())
    np.testing.assert_array_equal(
        encoder.transform(polars_frame({n: X[:, j] for j, n in enumerate("abc")})), X
    )
    X = X.copy()
    X[0, 1] = np.nan
    given = X.copy()
    assert encoder.transform(X)[0, 1] == np.median(frame["b"])
    np.testing.assert_array_equal(X, given)
    np.testing.assert_array_equal(encoder.transform(X.astype(object)), encoder.transform(X))


@pytest.mark.parametrize(
    "dtype", [np.int8, np.uint16, np.float32, bool, object, "Int64", "Float32"]
)
def test_types_of_numbers(dtype):
    X = pd.DataFrame(np.array([[0, 1], [1, 0], [1, 1]])).astype(dtype)
    encoded = TableEncoder().fit(X).transform(X)
    assert encoded.dtype == np.float64
    np.testing.assert_array_equal(encoded, [[0, 1], [1, 0], [1, 1]])


@pytest.mark.parametrize(
    "X, error, match",
    [
        (sparse.csr_array(np.eye(3)), TypeError, "[Ss]parse"),
        (np.eye(3) * 1j, ValueError, "Complex data not supported"),
        (pd.DataFrame({"a": [1j, 2]}), ValueError, "Complex data not supported"),
        (np.array([[1j, "a"]], dtype=object), ValueError, "Complex data not supported"),
        (np.arange(3.0), ValueError, "Reshape your data"),
        (pd.Series([1.0, 2.0]), ValueError, "Reshape your data|2-dimensional"),
        (np.empty((0, 3)), ValueError, "0 sample"),
        (np.empty((3, 0)), ValueError, "0 feature"),
        (pd.DataFrame({"a": []}), ValueError, "0 sample"),
        (pd.DataFrame(index=[1, 2]), ValueError, "0 feature"),
        (np.array([[1.0, np.inf]]), ValueError, "'x1'.*inf"),
        (np.array([[1.0, -np.inf], [np.nan, 1]]), ValueError, "'x1'.*inf"),
        (pd.DataFrame({"a": ["x", "y"], "b": [1, np.inf]}), ValueError, "'b'.*inf"),
        (np.array([["x", 10**400]], dtype=object), ValueError, "'x1'.*inf"),
        (np.array([[1.0, {"a": 1}]], dtype=object), TypeError, "argument must be .* string.* num"),
        (pd.DataFrame({"a": [[1], [2]]}), TypeError, "argument must be .* string.* number.*'a'"),
        (np.array([["x", object()]], dtype=object), TypeError, "must be .* string.* number.*'x1'"),
    ],
)
def test_errors_of_fit(X, error, match):
    with pytest.raises(error, match=match):
        TableEncoder().fit(X)


@pytest.mark.parametrize("make", [pd.DataFrame, polars_frame])
@pytest.mark.parametrize(
    "name, column, match",
    [
        ("size", ["big"] * 4, "'size' .* numbers in fit.*'big'.*Convert"),
        ("age", [1.0, 2.0, np.inf, 3.0], "'age'.*inf"),
        ("city", [1, 2, None, 3], "'city' .* categories in fit.*'1.*Convert"),
        ("city", DAYS, "'city' .* categories in fit.*'2024.*Convert"),
        ("sold", [1.0, 2.0, 3.0, 4.0], "'sold' .* dates in fit.*'1.0'.*Convert"),
        ("sold", ["2024-01-01"] * 4, "'sold' .* dates in fit.*'2024-01-01'.*Convert"),
        ("took", [1.0, 2.0, 3.0, 4.0], "'took' .* durations in fit.*'1.0'.*Convert"),
        ("new", ["yes"] * 4, "'new' .* booleans in fit.*'yes'.*Convert"),
    ],
)
def test_errors_of_transform(make, name, column, match):
    encoder = TableEncoder().fit(make(MIXED))
    with pytest.raises(ValueError, match=match):
        encoder.transform(make({**MIXED, name: column}))


def test_the_entry_that_does_not_belong_is_named():
    encoder = TableEncoder().fit(np.arange(6.0).reshape(3, 2))
    with pytest.raises(ValueError, match="'x1' .*numbers.*'n/a'"):
        encoder.transform(np.array([[1.0, 2.0], [3.0, "n/a"]], dtype=object))
    with pytest.raises(ValueError, match="X has 3 columns, but the model was fitted with 2"):
        encoder.transform(np.eye(3))


def test_descriptions():
    assert TableEncoder().fit(pd.DataFrame(MIXED)).describe() == [
        "age: missing entries are replaced by the median and marked in a further column",
        "new: a boolean, as 0 and 1",
        "city: 3 categories and missing entries, with a column each",
        "sex: 2 categories, in one column",
        "sold: a date, as days, day of year and weekday; missing entries are replaced by the median"
        " and marked in a further column",
        "took: a duration, as seconds",
    ]
    many = pd.DataFrame({f"c{k}": ["a", "b", "c"] for k in range(12)})
    many["new"], many["n"] = [True, False, True], [1.0, 2.0, 3.0]
    assert TableEncoder().fit(many).describe() == [
        "12 columns of at most 20 categories, with 0 and 1: c0, c1, c2 and 9 more",
        "new: a boolean, as 0 and 1",
    ]


def test_pickling():
    encoder = TableEncoder().fit(pd.DataFrame(MIXED))
    again = pickle.loads(pickle.dumps(encoder))
    assert again.names_ == encoder.names_
    np.testing.assert_array_equal(again.transform(pd.DataFrame(MIXED)), ENCODED)


def test_names_that_repeat_and_names_that_are_numbers():
    frame = pd.DataFrame([[1.0, "a", True], [2.0, "b", False], [3.0, "c", True]])
    assert TableEncoder().fit(frame).names_ == ["x0", "x1=a", "x1=b", "x1=c", "x2"]
    frame.columns = ["same", "same", "same"]
    encoder = TableEncoder().fit(frame)
    assert encoder.source_ == [0, 1, 1, 1, 2]
    np.testing.assert_array_equal(encoder.transform(frame)[1], [2, 0, 1, 0, 0])


class TestUnseen:
    """What the fitted table does not have, in each kind of column."""

    @pytest.mark.parametrize("make", CONTAINERS)
    def test_columns_and_entries_are_named_once(self, make):
        seen = {
            name: [column[0], column[1], column[1], column[0]] for name, column in MIXED.items()
        }
        seen |= {"age": MIXED["age"], "many": [f"level {k}" for k in range(4)]}
        encoder = TableEncoder().fit(make(seen))
        new = seen | {
            "size": [1.0, None, 4.0, 8.0],
            "age": [3, None, None, 10],
            "city": ["Rome", "Oslo", "Paris", None],
            "sold": DAYS,
        }
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            encoder.transform(make(seen))
            encoder.transform(make(new))
        (said,) = heard
        names = [f"x{list(seen).index(name)}" if make is objects else name for name in seen]
        size, age, _, city, _, sold = (repr(name) for name in names[:6])
        assert f"missing entries in column {size}" in str(said.message)
        assert f"'Paris' and missing entries in column {city}" in str(said.message)
        assert f"missing entries in column {sold}" in str(said.message)
        assert age not in str(said.message) and "Rome" not in str(said.message)

    def test_many_levels(self):
        levels = [f"level {k}" for k in range(30)]
        encoder = TableEncoder().fit(pd.DataFrame({"many": levels}))
        with pytest.warns(UserWarning, match="'other' and missing entries in column 'many'"):
            encoder.transform(pd.DataFrame({"many": ["level 1", "other", None]}))

    def test_what_a_later_table_may_have(self):
        said = TableEncoder().fit(pd.DataFrame(MIXED)).may_meet()
        assert "other categories in city and sex" in said
        assert "missing entries in size, new, sex and took" in said
        assert TableEncoder().fit(np.eye(3)).may_meet() == ""
        assert TableEncoder().fit([[1.0, np.nan], [np.nan, 2.0]]).may_meet() == ""

    @pytest.mark.parametrize(
        ("entries", "dates"),
        [
            (["2024-01-31", "2024-2-1", None], True),
            (["2024-01-31T10:00", "2024-02-01 11:00:02"], True),
            (["31.01.2024", "1.2.2024"], True),
            (["31/01/24", "1/2/24 10:30"], True),
            (["20240131", "20240201"], True),
            (["Jan 31, 2024", "February 1, 2024"], True),
            (["31 Jan 2024", "1-Feb-24"], True),
            (["20241331", "20240201"], False),
            (["May 5", "June 7"], False),
            (["2024-01-31", "none"], False),
            (["1-2", "3-4"], False),
        ],
    )
    def test_dates_as_text(self, entries, dates):
        encoder = TableEncoder().fit(pd.DataFrame({"size": 1.0, "day": entries}))
        assert encoder.dates_as_text() == ["day"] * dates


@pytest.mark.parametrize("kind", [AutoGPRegressor, AutoGPClassifier])
def test_models_tell_what_their_fit_has_not_seen(kind):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.standard_normal(60), "city": ["Rome", "Oslo", "Bern"] * 20})
    table["day"] = ["2024-01-01", "2024-01-02"] * 30
    y = (table["a"] > 0) if kind is AutoGPClassifier else table["a"]
    with pytest.warns(UserWarning, match="Dates are text in day.*pandas.to_datetime"):
        model = kind(["linear"], random_state=0).fit(table, y)
    assert "other categories in city and day" in model.fit_report_.unseen
    assert model.fit_report_.unseen in str(model.fit_report_)
    before = dict(vars(model))
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        model.predict(table)
        model.predict(table.assign(city="Paris"))
    assert len(heard) == 1 and "'Paris' in column 'city'" in str(heard[0].message)
    assert vars(model) == before
