"""benchmarks/compare.py: every cell becomes a line, whatever happens in it."""

import json
import time
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def compare(monkeypatch, data_folder):
    """The script; its cells run in processes of their own."""
    for name, value in {"SKSCALABLEGP_DATA": data_folder, "PYTHONPATH": ROOT}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return import_module("compare")


def lines_of(compare, out, *arguments):
    common = ["--datasets", "yacht", "--n-train", "80", "--out", str(out), "--clock", "cpu"]
    compare.main([*common, *arguments])
    return [json.loads(text) for text in out.read_text().splitlines()]


@pytest.mark.night
def test_lines_and_report(compare, tmp_path):
    out = tmp_path / "lines.jsonl"
    estimators = ["--estimators", "PoERegressor", "GPyTorchSVGP"]
    lines = lines_of(compare, out, *estimators, "--max-seconds", "30")
    assert [line["estimator"] for line in lines] == ["PoERegressor", "GPyTorchSVGP"]
    good = lines[0]
    assert good["status"] == "ok" and good["n_train"] == good["n_used"] == 80
    for key in (
        *("rmse", "nll", "crps", "coverage95", "fit_seconds", "fit_cpu_seconds"),
        *("predict_seconds", "predict_cpu_seconds", "peak_rss_mb", "date", "versions"),
    ):
        assert good[key] is not None, key
    assert str(ROOT) not in json.dumps(lines)
    # What is there is not measured again; what was not installed is asked for again.
    again = lines_of(compare, out, *estimators, "--max-seconds", "30")
    if find_spec("gpytorch") is None:
        assert lines[1]["status"] == "not installed"
        assert len(again) == 3
    else:
        assert lines[1]["status"] == "ok"
        assert len(again) == 2
    # A cell that outlasts the limit is a line like the others.
    cut = lines_of(
        *(compare, out, "--estimators", "GaussianProcessRegressor"),
        *("--max-seconds", "30", "--cut-seconds", "0.01", "--datasets", "airfoil"),
        *("--n-train", "1300"),
    )[-1]
    assert cut["status"] == "cut" and "during: fit" in cut["error"] and "rmse" not in cut

    same = {"cut_seconds": 60.0, "n_train_asked": 80}
    out.write_text("\n".join(json.dumps(line | same) for line in [*lines, cut]))
    raced = ("--lines", str(out), "--rivals", str(out))
    import_module("compare_report").main([*raced, "--out", str(tmp_path)])
    tables = (tmp_path / "comparison_tables.inc").read_text()
    assert f"{good['rmse']:.3f}" in tables and good["date"] in tables
    row = [line for line in (tmp_path / "rival_table.inc").read_text().splitlines() if "Po" in line]
    assert len(row) == 1 and f"{good['nll']:.2f}" in row[0]
    assert (tmp_path / "comparison.png").stat().st_size > 1000


def test_unknown_names_are_refused_before_any_work(compare, tmp_path):
    out = tmp_path / "lines.jsonl"
    with pytest.raises(SystemExit, match="IterativeGPRegressor"):
        compare.main(["--estimators", "Nothing", "--out", str(out)])
    assert not out.exists()


def of_a_line(X, y):
    """R2 of exp(y) by least squares."""
    X, target = np.column_stack([X, np.ones(len(X))]), np.exp(y)
    errors = target - X @ np.linalg.lstsq(X, target, rcond=None)[0]
    return 1 - errors.var() / target.var()


def test_bike_is_without_the_columns_that_hold_its_target(compare):
    from skscalablegp.datasets import fetch_uci

    load = import_module("uci").load
    X, _, y, _ = fetch_uci("bike", split=0, return_X_y=True)
    published, X_test, *_ = load("bike", 0, 0, 0)
    assert published.shape[1] == X_test.shape[1] == 17 and of_a_line(published, y) > 0.999999
    kept, kept_test, y_kept, _ = load("bike", 0, 0, 0, leaks=False)
    assert kept.shape[1] == kept_test.shape[1] == 15 and of_a_line(kept, y) < 0.9
    np.testing.assert_allclose(kept, published[:, :15], rtol=1e-9)
    np.testing.assert_allclose(y_kept, (y - y.mean()) / y.std())


@pytest.mark.parametrize("name", ["compare", "rivals"])
def test_no_shown_score_of_bike_has_them(name):
    path = ROOT / "benchmarks" / "results" / f"{name}.jsonl"
    lines = [json.loads(text) for text in path.read_text("utf-8").splitlines()]
    assert {line["n_features"] for line in lines if line["dataset"] == "bike"} == {15}


def test_folds_count_processor_seconds_and_leave_the_columns_out(compare, monkeypatch):
    from inside import now
    from sklearn import model_selection

    seen = {}

    def scored(model, X, y, **settings):
        begun, at = time.process_time(), now()
        seen.update(columns=X.shape[1], processor=begun <= at <= time.process_time())
        return {f"test_{name}": np.zeros(2) for name in settings["scoring"]}

    monkeypatch.setattr(model_selection, "cross_validate", scored)
    cell = dict(dataset="bike", estimator="PoERegressor", seed=0, n_asked=20, folds=2)
    found = import_module("cross_val").measure(cell | dict(max_seconds=1.0, clock="cpu"))
    assert found["status"] == "ok" and seen == dict(columns=15, processor=True)
