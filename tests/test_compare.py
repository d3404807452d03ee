"""benchmarks/compare.py: every cell becomes a line, whatever happens in it."""

import json
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

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


@pytest.mark.slow
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
