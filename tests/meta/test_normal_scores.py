"""Columns with heavy tails as normal scores, against ranks, and where a fit chooses them."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtri
from scipy.stats import rankdata

from skscalablegp import AutoGPRegressor, load, save, to_torch
from skscalablegp.export import ScoresModule
from skscalablegp.meta._normal_scores import NormalScores, ScoredColumns, heavy_columns

RNG = np.random.default_rng(0)
Z = RNG.standard_normal((400, 3))
HEAVY = np.exp(1.5 * Z)
Y = np.sin(2 * Z[:, 0]) + Z[:, 1] + 0.1 * RNG.standard_normal(400)
NEW = np.exp(1.5 * RNG.standard_normal((50, 3)))


def test_scores_are_normal_quantiles_of_the_ranks():
    x = RNG.standard_cauchy(20_000)
    expected = ndtri((rankdata(x) - 0.5) / len(x))
    found = NormalScores.of(x)(x)
    inside = np.abs(expected) < 3
    np.testing.assert_allclose(found[inside], expected[inside], atol=0.05)


@pytest.mark.parametrize(
    "x",
    [
        HEAVY[:, 0],
        RNG.poisson(3, 500) ** 3.0,
        np.append(np.zeros(500), [1.0, 1e9]),
        1e-9 * RNG.standard_cauchy(300),
    ],
)
def test_entries_keep_their_order_and_distinct_ones_remain_distinct(x):
    score, rows = NormalScores.of(x), np.unique(np.concatenate([x, 3 * x, -x]))
    assert (np.diff(score(rows)) > 0).all()
    # The module is the same function, beyond the outermost quantiles, too.
    found = ScoresModule(score)(torch.as_tensor(rows)).numpy()
    np.testing.assert_allclose(found, score(rows), rtol=1e-9, atol=1e-9)


def test_the_outermost_slopes_continue():
    score = NormalScores(np.array([0.0, 1.0, 3.0]), np.array([-1.0, 1.0, 2.0]))
    np.testing.assert_allclose(score(np.array([-1.0, 0.5, 2.0, 5.0])), [-3.0, 0.0, 1.5, 3.0])


def test_which_columns_have_heavy_tails():
    n = 20_000
    columns = {
        "normal": RNG.standard_normal(n),
        "exponential": RNG.exponential(size=n),
        "log-normal": np.exp(RNG.standard_normal(n)),
        "negative": -np.exp(RNG.standard_normal(n)),
        "cauchy": RNG.standard_cauchy(n),
        "mostly zero": np.where(RNG.random(n) < 0.9, 0.0, RNG.random(n)),
        "few counts": RNG.choice([0.0, 1.0, 2.0, 500.0], n, p=[0.5, 0.3, 0.19, 0.01]),
        "constant": np.ones(n),
    }
    found = heavy_columns(np.column_stack([*columns.values()]))
    assert [[*columns][j] for j in found] == ["log-normal", "negative", "cauchy"]


def fitted(X=HEAVY, y=Y, members=("exact",), **params):
    """Scores are compared before the first member that is a process."""
    return AutoGPRegressor(list(members), random_state=0, **params).fit(X, y)


@pytest.fixture(scope="module")
def process():
    return fitted()


def test_scores_are_kept_where_the_likelihood_gains(process):
    model = process
    assert model.encoding_ == ["heavy tails, as normal scores for processes: x0, x1 and x2"]
    assert "heavy tails, as normal scores" in model.explain_
    # Scores find the columns as they were before these were made heavy.
    z = np.log(NEW) / 1.5
    inside = (np.abs(z) < 2).all(axis=1)
    error = (model.predict(NEW) - np.sin(2 * z[:, 0]) - z[:, 1])[inside]
    assert np.sqrt(np.mean(error**2)) < 0.12
    assert model.fit_report_.status == "completed"


@pytest.mark.slow
def test_columns_stay_where_the_likelihood_gains_nothing():
    X = np.exp(Z)
    assert fitted(X, X[:, 0] + 0.5 * X[:, 1] + 0.1 * Z[:, 2]).encoding_ == []
    # An irrelevant column changes nothing.
    assert fitted(np.column_stack([Z[:, :2], HEAVY[:, 2]])).encoding_ == []


def test_short_budgets_and_few_rows_compare_nothing():
    assert fitted(max_seconds=19.0).encoding_ == []
    assert fitted(HEAVY[:190], Y[:190]).encoding_ == []


@pytest.mark.slow
def test_an_interrupt_leaves_the_columns():
    seen = []

    def interrupt(step):
        seen.append(step)
        if len(seen) == 2:
            raise KeyboardInterrupt

    model = fitted(callbacks=interrupt)
    assert model.fit_report_.status == "interrupted"
    assert model.encoding_ == [] and np.isfinite(model.predict(NEW)).all()


@pytest.mark.slow
def test_missing_entries_and_categories_beside_them():
    X = pd.DataFrame(HEAVY, columns=["a", "b", "c"])
    X.insert(0, "city", np.where(Z[:, 2] > 0, "Rome", "Oslo"))
    X.loc[::9, "a"] = np.nan
    y = Y + np.where(X["city"] == "Rome", 1.0, 0.0)
    model = AutoGPRegressor(["exact"], random_state=0).fit(X, y)
    assert model.encoding_[-1] == "heavy tails, as normal scores for processes: a, b and c"
    assert np.isfinite(model.predict(X[:20])).all()


@pytest.mark.night
@pytest.mark.slow
def test_many_levels_beside_them():
    """Held-out rows, whose levels are encoded once for all members, have scores, too."""
    X = pd.DataFrame(HEAVY, columns=["a", "b", "c"])
    X["place"] = [f"place {k}" for k in RNG.integers(30, size=len(X))]
    model = AutoGPRegressor(["exact"], random_state=0).fit(X, Y)
    assert model.encoding_[-1] == "heavy tails, as normal scores for processes: a, b and c"
    assert model.leaderboard_["exact"].nll < 0.3
    new = X.assign(place="another place")
    assert np.corrcoef(model.predict(new), Y)[0, 1] > 0.9


@pytest.mark.slow
def test_other_members_keep_the_columns():
    model = fitted(members=["exact", "linear"])
    assert model.encoding_
    alone = fitted(members=["linear"])
    assert model.leaderboard_["linear"].nll == alone.leaderboard_["linear"].nll


def test_a_step_copies_the_table():
    step = ScoredColumns({1: NormalScores.of(HEAVY[:, 1])})
    found, before = step.fit(HEAVY).transform(HEAVY), HEAVY.copy()
    np.testing.assert_array_equal(found[:, [0, 2]], HEAVY[:, [0, 2]])
    np.testing.assert_array_equal(found[:, 1], NormalScores.of(HEAVY[:, 1])(HEAVY[:, 1]))
    np.testing.assert_array_equal(HEAVY, before)


@pytest.mark.slow
def test_files_and_modules_have_the_scores(process, tmp_path):
    model = process
    save(model, tmp_path / "model")
    again = load(tmp_path / "model")
    np.testing.assert_array_equal(again.predict(NEW), model.predict(NEW))
    # The noise model has trees, which are no torch modules.
    mean = to_torch(model, return_std=False)(torch.as_tensor(NEW))
    np.testing.assert_allclose(mean.numpy(), model.predict(NEW), atol=1e-6)
