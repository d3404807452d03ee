"""benchmarks/suite.py: its tables have halves, its lines are true, its ranks right."""

import json
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("suite", "suite_report", "suite_scores", "suite_goals", "suite_tables", "suite_rivals")
NAMES += (
    "compare",
    "compare_report",
    "compare_baselines",
    "rival_models",
    "starts",
    "starts_problems",
    "starts_reference",
    "uci",
)

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def suite(monkeypatch, data_folder):
    """The script; its cells run in processes of their own."""
    for name, value in {"SKSCALABLEGP_DATA": data_folder, "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import suite

    yield suite
    for name in NAMES:
        sys.modules.pop(name, None)


def test_thirty_tables_in_halves(suite, capsys):
    tables = suite.TABLES.values()
    assert len(tables) == 30 and sum(table.classes for table in tables) == 8
    assert Counter((t.part, t.classes) for t in tables) == {
        ("choice", False): 11,
        ("kept", False): 11,
        ("choice", True): 4,
        ("kept", True): 4,
    }
    choice = {table.name for table in tables if table.part == "choice"}
    assert {"pol", "elevators", "bike", "kin40k", "protein", "keggdirected"} <= choice
    assert {"drawn-series", "drawn-sparse32", "drawn-graph"} <= choice
    suite.main(["--list"])
    listed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in listed] == [table.name for table in tables]
    suite.main(["--list", "--part", "kept"])
    assert len(capsys.readouterr().out.splitlines()) == 15


@pytest.mark.parametrize(
    "name", ["drawn-series", "drawn-sparse32", "drawn-wide128", "drawn-heavy", "drawn-steps"]
)
def test_drawn_tables(suite, name):
    table, tests = suite.TABLES[name], []
    for split in range(3):
        X, Xt, y, yt = suite.load(name, split)
        assert np.isfinite(X).all() and np.isfinite(Xt).all()
        assert len(X) + len(Xt) == len(y) + len(yt) == table.rows
        assert len(Xt) == table.rows // 10 and X.shape[1] == Xt.shape[1] == table.columns
        tests.append(Xt)
        if not table.classes:
            assert abs(y.mean()) < 1e-9 and y.std() == pytest.approx(1)
    # Test parts do not overlap, and a name always gives the same rows.
    assert len(np.unique(np.vstack(tests), axis=0)) == sum(map(len, tests))
    np.testing.assert_array_equal(suite.load(name, 2)[1], tests[2])


def test_the_six_sets_have_validation_parts_only(suite, monkeypatch):
    from skscalablegp import datasets

    def fetch(name, split=None, return_X_y=False):
        assert split is not None  # the whole table has the test rows, too
        rows = np.arange(100.0)[:, None]
        return rows, rows + 1000, rows[:, 0], rows[:, 0] + 1000

    monkeypatch.setattr(datasets, "fetch_uci", fetch)
    X, Xt, _, _ = suite.load("pol", 1)
    assert len(X) == 90 and len(Xt) == 10 and max(X.max(), Xt.max()) < 100


def test_mixed_columns_become_numbers(suite):
    import pandas as pd
    import suite_rivals

    X, Xt, y, _ = suite.load("drawn-levels", 0)
    X, y = X.assign(day=pd.Timestamp(2020, 5, 1)), y
    Xt = Xt.assign(day=pd.Timestamp(2020, 5, 2))

    class Seen:
        def fit(self, Z, y):
            self.Z = Z

        def predict(self, Z, return_std=True):
            return Z, Z

    wrapped = suite_rivals.Encoded(Seen()).fit(X, y)
    # Five numbers and an indicator, the boolean, the day, and two columns of target codes.
    assert wrapped.model.Z.shape == (len(X), 10) and np.isfinite(wrapped.model.Z).all()
    assert np.isfinite(wrapped.distribution(Xt)["mean"]).all()
    assert suite_rivals.named(X)["shop"].dtype == object


def test_scores_of_classes(suite):
    from sklearn.metrics import log_loss

    y = np.array([0, 2, 1, 2])
    proba = np.array([[0.8, 0.2], [0.3, 0.7], [0.5, 0.5], [0.1, 0.9]])
    found = suite.class_scores(y, proba, np.array([0, 2]))
    full = np.insert(proba, 1, 0.0, axis=1)
    assert found["log_loss"] == pytest.approx(
        log_loss(y, np.clip(full, 1e-15, 1), labels=[0, 1, 2]), abs=1e-4
    )
    assert found["brier"] == pytest.approx(((full - np.eye(3)[y]) ** 2).sum(1).mean(), abs=1e-5)
    # Four bins of one row each.
    assert found["ece"] == pytest.approx((0.2 + 0.3 + 0.5 + 0.1) / 4)
    assert found["accuracy"] == 0.75


def made_up(dataset, estimator, nll, seconds=None, **more):
    line = dict(dataset=dataset, estimator=estimator, split=0, seed=0, max_seconds=seconds)
    line |= dict(
        clock="wall",
        n_test=300,
        threads=1,
        busy=0,
        classes=False,
        status="ok",
        nll=nll,
        crps=nll,
        coverage95=0.95,
    )
    return line | more


CATBOOST = "CatBoostUncertainty"


def test_ranks_of_made_up_lines(suite, tmp_path, capsys):
    lines = [
        made_up("pol", "CatBoostUncertainty", 1.0),
        made_up("bike", "CatBoostUncertainty", 0.5),
        made_up("kin40k", "CatBoostUncertainty", 0.0),
        made_up("pol", "AutoGPRegressor", 9.0, 10.0),
        # The last line counts.
        made_up("pol", "AutoGPRegressor", 0.2, 10.0, coverage95=0.91),
        made_up("bike", "AutoGPRegressor", 0.9, 10.0),
        made_up("pol", "NNGPRegressor", None, 10.0, status="failed", coverage95=None),
        made_up("bike", "NNGPRegressor", 0.7, 10.0),
        # Of another budget and of other circumstances.
        made_up("bike", "AutoGPRegressor", -5.0, 60.0),
        made_up("bike", "AutoGPRegressor", -5.0, 10.0, busy=3),
        made_up("bike", "AutoGPRegressor", -5.0, 10.0, clock="cpu"),
        # Of the other half.
        made_up("yacht", "AutoGPRegressor", -5.0, 10.0),
    ]
    out = tmp_path / "suite.jsonl"
    out.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    suite.main(["--report", "--out", str(out), "--max-seconds", "10"])
    text = capsys.readouterr().out
    assert "Ranks of 3 estimators on 2 tables; without: kin40k." in text
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line[:2] == "| "]
    rows = [row for row in rows if row[0] in ("AutoGPRegressor", "NNGPRegressor", CATBOOST)]
    ranks = {row[0]: row[1] for row in rows}
    assert ranks == {
        "AutoGPRegressor": "2.00 ± 1.00",
        "NNGPRegressor": "2.50 ± 0.50",
        "CatBoostUncertainty": "1.50 ± 0.50",
    }
    auto = next(row for row in rows if row[0] == "AutoGPRegressor")
    assert auto[3:8] == ["0.50", "+0.400", "+0.200", "0.50", "0.910 to 0.950"] and auto[-1] == "0"
    failed = next(row for row in rows if row[0] == "NNGPRegressor")
    assert failed[3:5] == ["0.00", "+inf"] and failed[-1] == "1"


def test_estimators_are_compared_on_splits_that_all_of_them_have(suite, tmp_path, capsys):
    lines = [
        *(made_up("pol", CATBOOST, 1.0, split=k) for k in (0, 1)),
        *(
            made_up("pol", "AutoGPRegressor", nll, 10.0, split=k)
            for k, nll in enumerate([2.0, 0.0])
        ),
        *(made_up("bike", CATBOOST, 1.0, split=k) for k in (0, 1)),
        made_up("bike", "AutoGPRegressor", 0.5, 10.0, split=1),
        # Budgets have one split in common.
        made_up("pol", "AutoGPRegressor", 2.5, 60.0, split=0),
    ]
    out = tmp_path / "suite.jsonl"
    out.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    suite.main(["--report", "--each", "--out", str(out)])
    text = capsys.readouterr().out
    assert "| bike | **0.500** | 1.000 |" in text and "| pol | **1.000** | **1.000** |" in text
    assert "Largest rise of the NLL from 10 to 60 s: AutoGPRegressor +0.500 (pol)" in text


def test_scores_of_each_table_rises_and_the_picture(suite, tmp_path, capsys):
    lines = [
        made_up("pol", "CatBoostUncertainty", 1.0),
        made_up("pol", "AutoGPRegressor", 0.2, 10.0, coverage95=0.5, n_test=299),
        made_up("pol", "AutoGPRegressor", 0.1, 60.0),
        made_up("bike", "AutoGPRegressor", 0.9, 10.0),
        made_up("bike", "AutoGPRegressor", 0.95, 60.0),
        made_up("bike", "CatBoostUncertainty", None, status="failed"),
    ]
    out, picture = tmp_path / "suite.jsonl", tmp_path / "ranks.png"
    out.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    suite.main(["--report", "--each", "--out", str(out), "--figure", str(picture)])
    text = capsys.readouterr().out
    assert "| bike | **0.900** | failed |" in text and "| pol | **0.200** | 1.000 |" in text
    assert "from 10 to 60 s: AutoGPRegressor +0.050 (bike)." in text
    # Coverage of few rows says nothing.
    assert "0.500" not in text and "0.950 to 0.950" in text
    assert picture.stat().st_size > 10_000
    suite.main(["--report", "--out", str(out), "--clock", "cpu"])
    assert "no lines" in capsys.readouterr().out


def test_goals_beside_what_was_measured(suite):
    from suite_goals import goals

    lines = []
    for table, auto, single, catboost in (
        ("pol", (0.1, 0.0), 0.2, 1.0),
        ("bike", (0.6, 0.65), 0.5, 0.5),
        ("kin40k", (-1.0, -1.0), -0.98, -0.5),
    ):
        lines.append(made_up(table, "CatBoostUncertainty", catboost))
        for seconds, nll in zip((10.0, 60.0), auto, strict=True):
            took = {"fit_seconds": 1.15 * seconds, "n_test": 400, "coverage95": nll / 10 + 0.9}
            lines.append(made_up(table, "AutoGPRegressor", nll, seconds, **took))
            lines.append(made_up(table, "NNGPRegressor", single, seconds))
    # A single estimator without lines on two of the tables says nothing about these.
    lines.append(made_up("pol", "SVGPRegressor", -9.0, 60.0))
    header, rows = goals(lines, False, [10.0, 60.0], ["NNGPRegressor"])
    assert header == ["goal", "asked", "at 10 s", "at 60 s"]
    found = {row[0]: row[2:] for row in rows}
    assert found["mean rank in NLL"] == ["1.67 (place 1 of 3)", "1.67 (place 1 of 3)"]
    assert found["tables below CatBoost in NLL"] == ["0.67 of 3, missed"] * 2
    assert found["largest excess over CatBoost"] == ["+0.100", "+0.150, missed"]
    assert found["tables within 0.03 of the best single estimator"] == ["0.67 of 3, missed"] * 2
    largest = found["largest excess over the best single estimator"]
    assert largest == ["+0.100", "+0.150, missed"]
    assert found["coverage of 95 % intervals"][0] == "0.800 to 0.960, missed"
    assert found["largest rise between the budgets"] == ["", "+0.050, missed"]
    assert found["longest fit"] == ["11.5 s", "69.0 s, missed"]
    _, rows = goals(lines, False, [10.0, 60.0], ["NNGPRegressor", "SVGPRegressor"])
    found = {row[0]: row[2:] for row in rows}
    assert found["tables within 0.03 of the best single estimator"][1] == "0.00 of 1, missed"
    assert goals(lines, True, [10.0, 60.0], []) is None


def test_goals_of_classes(suite):
    from suite_goals import goals

    lines = []
    for name, loss, ece, seconds in (
        ("AutoGPClassifier", 0.3, 0.02, 10.0),
        ("AutoGPClassifier", 0.3, 0.04, 60.0),
        ("CatBoostClassifier", 0.2, 0.01, None),
    ):
        scores = dict(classes=True, log_loss=loss, brier=loss, ece=ece, n_test=1000, fit_seconds=1)
        lines.append(made_up("credit", name, None, seconds, **scores))
    _, rows = goals(lines, True, [10.0, 60.0], [])
    assert [row[0] for row in rows] == [
        "mean rank in log loss",
        "largest calibration error",
        "longest fit",
    ]
    assert rows[0][2] == "2.00 (place 2 of 2), missed"
    assert rows[1][2:] == ["0.020", "0.040, missed"]


def test_the_documentations_table_and_picture(suite, tmp_path):
    facts = dict(date="2026-01-02", machine="2-core CPU", load=1.0, versions={"torch": "2"})
    lines = [
        made_up("pol", "CatBoostUncertainty", 1.0, **facts),
        made_up("bike", "CatBoostUncertainty", 0.5, **facts),
        *(made_up("pol", "AutoGPRegressor", 0.2, s, fit_seconds=1, **facts) for s in (10.0, 60.0)),
        *(made_up("bike", "AutoGPRegressor", 0.7, s, fit_seconds=1, **facts) for s in (10.0, 60.0)),
        made_up("pol", "NNGPRegressor", 0.3, 60.0, **facts),
    ]
    out = tmp_path / "suite.jsonl"
    out.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    suite.main(["--out", str(out), "--doc", str(tmp_path)])
    text = (tmp_path / "suite_table.inc").read_text("utf-8")
    assert "Measured 2026-01-02 on a 2-core CPU, one thread, split 0" in text
    assert "Ranks of 2 estimators on 2 tables; not on all of them: NNGPRegressor." in text
    each = text[text.index("each table") :]
    rows = {line.split()[0]: line.split()[1:] for line in each.splitlines() if line[:1].isalpha()}
    assert rows["AutoGPRegressor"] == ["0.700", "**0.200**"]  # bike, pol
    assert rows["NNGPRegressor"] == ["..", "0.300"]
    assert (tmp_path / "suite_ranks.png").stat().st_size > 10_000


def test_processor_seconds_are_the_clock_of_budgets(suite):
    from inside import now

    cell = dict(estimator="SVGPRegressor", dataset="yacht", seed=3, max_seconds=2.0, clock="cpu")
    assert suite.make(cell, None).get_params()["max_seconds"] == 2.0
    with suite.budgets_of("cpu"):
        begun = now()
        time.sleep(0.3)
        assert now() - begun < 0.2


def test_unknown_names_are_refused_before_any_work(suite, tmp_path):
    out = tmp_path / "lines.jsonl"
    for asked in ("--tables", "--estimators"):
        with pytest.raises(SystemExit, match="Unknown"):
            suite.main([asked, "Nothing", "--out", str(out)])
    assert not out.exists()


def test_a_table_without_its_package_says_so(suite, monkeypatch):
    table = suite.TABLES["credit"]._replace(package="no_such_package")
    monkeypatch.setitem(suite.TABLES, "credit", table)
    with pytest.raises(ModuleNotFoundError, match="credit needs the package no_such_package"):
        suite.make(dict(estimator="LogisticRegression", dataset="credit"), None)
    assert "needs no_such_package" in suite.described(table)


@pytest.mark.night
def test_cells(suite, tmp_path, capsys):
    out = tmp_path / "lines.jsonl"
    asked = ["--tables", "breast-cancer", "--splits", "1", "--out", str(out)]
    asked += [
        "--max-seconds",
        "2",
        "--estimators",
        "LogisticRegression",
        "SVGPClassifier",
        "--busy",
        "1",
        "--clock",
        "cpu",
    ]
    suite.main(asked)
    suite.main(asked)
    lines = suite.read(out)
    assert [line["estimator"] for line in lines] == ["SVGPClassifier", "LogisticRegression"]
    assert [line["max_seconds"] for line in lines] == [2.0, None]
    for line in lines:
        assert line["status"] == "ok" and line["part"] == "choice" and line["n_test"] == 56
        assert line["log_loss"] < 0.5 and line["fit_cpu_seconds"] >= 0
        assert "--busy 1" in line["command"] and str(ROOT) not in json.dumps(line)
    suite.main([*asked, "--report"])
    assert "Classification, 2 processor seconds" in capsys.readouterr().out
