"""benchmarks/compare.py: every cell becomes a line, whatever happens in it."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


def run(script, *arguments, folder=""):
    environment = {**os.environ, "SKSCALABLEGP_DATA": str(folder), "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / script), *arguments],
        env=environment,
        capture_output=True,
        text=True,
    )


def compare(out, folder, *arguments):
    common = ["--datasets", "yacht", "--n-train", "80", "--out", str(out), "--clock", "cpu"]
    done = run("compare.py", *common, *arguments, folder=folder)
    assert done.returncode == 0, done.stderr
    return [json.loads(text) for text in out.read_text().splitlines()]


def test_lines_and_report(data_folder, tmp_path):
    out = tmp_path / "lines.jsonl"
    estimators = ["--estimators", "PoERegressor", "GPyTorchSVGP"]
    lines = compare(out, data_folder, *estimators, "--max-seconds", "30")
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
    again = compare(out, data_folder, *estimators, "--max-seconds", "30")
    if find_spec("gpytorch") is None:
        assert lines[1]["status"] == "not installed"
        assert len(again) == 3
    else:
        assert lines[1]["status"] == "ok"
        assert len(again) == 2
    # A cell that outlasts the limit is a line like the others.
    cut = compare(
        *(out, data_folder, "--estimators", "GaussianProcessRegressor"),
        *("--max-seconds", "30", "--cut-seconds", "0.01", "--datasets", "airfoil"),
        *("--n-train", "1300"),
    )[-1]
    assert cut["status"] == "cut" and "during: fit" in cut["error"] and "rmse" not in cut

    same = {"cut_seconds": 60.0, "n_train_asked": 80}
    out.write_text("\n".join(json.dumps(line | same) for line in [*lines, cut]))
    raced = ("--lines", str(out), "--rivals", str(out))
    done = run("compare_report.py", *raced, "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr
    tables = (tmp_path / "comparison_tables.inc").read_text()
    assert f"{good['rmse']:.3f}" in tables and good["date"] in tables
    row = [line for line in (tmp_path / "rival_table.inc").read_text().splitlines() if "Po" in line]
    assert len(row) == 1 and f"{good['nll']:.2f}" in row[0]
    assert (tmp_path / "comparison.png").stat().st_size > 1000


def test_unknown_names_are_refused_before_any_work(data_folder, tmp_path):
    out = tmp_path / "lines.jsonl"
    done = run("compare.py", "--estimators", "Nothing", "--out", str(out), folder=data_folder)
    assert done.returncode != 0 and "IterativeGPRegressor" in done.stderr
    assert not out.exists()
