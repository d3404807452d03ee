"""The contract of awkward tables: far entries of columns, far targets, and what a report says.

Each row is an estimator whose settings reach its real path on a small table.
"""

import warnings

import numpy as np
import pytest
from contracts.estimator_contract import Row, table
from contracts.test_fit_contract import FIT_ROWS
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning

import skscalablegp

REGRESSORS = [row for row in FIT_ROWS if not row.classifier]
N, FAR = 120, 1e6
# After a few steps of random batches, and with hyperparameters of its own for each dozen of rows,
# the smallest change leads to another model.
UNSTABLE = ("kissgp-network", "scgd", "minimax", "bsgd", "svgp-batches", "poe-separate")
# A linear mean function that a user gives follows a far entry wherever it is.
INSTEAD = {"mean-function": {"mean_function": None}}


def fitted(row: Row, X, y):
    """The fitted model, and its ConvergenceWarnings."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = row.new(random_state=0, **INSTEAD.get(row.name, {})).fit(X, row.target(y))
    return model, [str(w.message) for w in caught if issubclass(w.category, ConvergenceWarning)]


def loss(row: Row, model, seed: int) -> float:
    """The share of the variance of new rows' function values, or of their labels, that is lost."""
    X = np.random.default_rng(seed).uniform(-2, 2, (300, 2))
    truth = row.target(np.sin(2 * X[:, 0]) + 0.5 * X.sum(1))
    if row.classifier:
        return float(np.mean(model.predict(X) != truth))
    return float(np.mean((model.predict(X) - truth) ** 2) / truth.var())


@pytest.mark.slow
@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_one_far_entry_does_not_decide_a_fit(row):
    X, y, _ = table(0, n=N)
    spoiled = X.copy()
    spoiled[17, 0] = FAR
    clean, far = (loss(row, fitted(row, rows, y)[0], seed=9) for rows in (X, spoiled))
    assert far < clean + (0.25 if row.name in UNSTABLE else 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("row", FIT_ROWS, ids=lambda row: row.name)
def test_far_new_rows_get_finite_predictions(row):
    X, y, _ = table(0, n=N)
    spoiled = X.copy()
    spoiled[17, 0] = FAR
    model = fitted(row, spoiled, y)[0]
    new = np.array([[FAR, 0.0], [-FAR, 0.0], [1e3, 1e3], [0.0, -1e9]])
    predicted = model.predict_proba(new) if row.classifier else model.predict(new)
    assert np.isfinite(predicted).all()
    if not row.classifier:
        # No network continues in straight lines.
        assert (np.abs(predicted - y.mean()) < 100 * y.std()).all()


@pytest.mark.slow
@pytest.mark.parametrize("row", REGRESSORS, ids=lambda row: row.name)
def test_far_targets_are_named_once(row):
    X, y, _ = table(0, n=N)
    before, quiet = fitted(row, X, y)
    y[[17, 80]] += [1e5, -1e5]
    model, said = fitted(row, X, y)
    assert not any("far from all others" in message for message in quiet)
    assert before.fit_report_.far_targets == ""
    assert sum(message.count("far from all others") for message in said) == 1
    (message,) = [message for message in said if "far from all others" in message]
    assert f"{y[17]:.6g} in row 17, {y[80]:.6g} in row 80" in message
    assert model.fit_report_.far_targets in message
    assert model.fit_report_.far_targets in str(model.fit_report_)


@pytest.mark.slow
@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=() if row.stands_for_its_class else pytest.mark.night)
        for row in FIT_ROWS
    ],
    ids=lambda row: row.name,
)
def test_the_report_lists_columns_in_their_own_units(row):
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (N, 3))
    y = np.sin(2 * X[:, 1])
    units = np.array([1.0, 1e-6, 1e6])
    first, second = (fitted(row, rows, y)[0].fit_report_ for rows in (X, X * units))
    for report in (first, second):
        scales = list(report.columns.values())
        assert scales == sorted(scales) and len(scales) <= 3
        assert ("columns that matter most" in str(report)) == bool(scales)
    if row.name == "svgp-classes":
        # Labels without errors; ten steps from where length scales fall without end.
        return
    assert set(first.columns) == set(second.columns)
    for name, scale in first.columns.items():
        assert 1 / 3 < second.columns[name] / scale < 3


# Friedman's function, whose columns are uniform, with a noise of one; without noise the share of
# the variance that these tests compare would be all of the loss.
DEFAULTS = {
    "IterativeGPRegressor": {},
    "NNGPRegressor": {"n_centers": 200, "n_neighbors": 50, "max_iter": 10},
    "SVGPRegressor": {"n_inducing": 100},
    "PoERegressor": {},
    "SGPRRegressor": {"n_inducing": 100, "max_iter": 20},
    "QSGPRegressor": {},
    "RFFRegressor": {"max_iter": 20},
    "KISSGPRegressor": {"max_iter": 20},
    "SCGDDKLRegressor": {"feature_extractor": (64, 32), "max_epochs": 30},
    "MinimaxDKLRegressor": {"feature_extractor": (64, 32), "max_epochs": 30},
    "BSGDDKLRegressor": {"feature_extractor": (64, 32), "max_epochs": 30},
}


@pytest.mark.slow
@pytest.mark.seldom(
    "IterativeGPRegressor",
    "NNGPRegressor",
    "MinimaxDKLRegressor",
    "QSGPRegressor",
    "RFFRegressor",
    "SCGDDKLRegressor",
    "BSGDDKLRegressor",
    "SGPRRegressor",
    "SVGPRegressor",
    "PoERegressor",
)
@pytest.mark.parametrize("name", DEFAULTS)
def test_one_far_entry_of_friedmans_function(name):
    """In a column that matters, and in one that does not."""
    X, y = make_friedman1(3100, noise=1.0, random_state=0)
    scores = []
    for column, entry in ((0, X[17, 0]), (0, FAR), (7, FAR)):
        rows = X[:2100].copy()
        rows[17, column] = entry
        model = getattr(skscalablegp, name)(**DEFAULTS[name], max_seconds=30, random_state=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            scores.append(model.fit(rows, y[:2100]).score(X[2100:], y[2100:]))
    assert min(scores) > scores[0] - 0.02
