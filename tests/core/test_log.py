"""The log of fits: stages and choices at INFO, silent by default."""

import logging
import subprocess
import sys

import numpy as np
import pytest

from skscalablegp import HeteroscedasticRegressor, IterativeGPRegressor, RFFRegressor

X = np.linspace(0, 1, 30)[:, None]
y = np.sin(6 * X[:, 0])


@pytest.fixture
def told(caplog):
    caplog.set_level(logging.INFO, logger="skscalablegp")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("cls", [IterativeGPRegressor, RFFRegressor])
def test_the_log_has_the_table_the_choices_the_stages_and_the_end(cls, told):
    report = cls(random_state=0).fit(X, y).fit_report_
    lines = told()
    assert all(line.startswith(f"{cls.__name__}: ") for line in lines)
    lines = [line.partition(": ")[2] for line in lines]
    assert lines.count("rows: 30, columns: 1, device: cpu") == 1
    assert report.choices and report.n_iter
    for name, choice in report.choices.items():
        assert lines.count(f"{name} = {choice}") == 1
    stages = [name for name in report.seconds if name != "total"]
    for name in stages:
        assert [line for line in lines if line.startswith(f"stage {name!r} begins")]
        assert [line for line in lines if line.startswith(f"stage {name!r} ended after ")]
    assert lines[-1].startswith(f"{report.status} after ")
    assert lines[-1].endswith(report.stop_reason)


def test_fits_inside_a_fit_are_named_after_it(told):
    HeteroscedasticRegressor(IterativeGPRegressor(), random_state=0).fit(X, y)
    lines = told()
    assert lines[-1].startswith("HeteroscedasticRegressor: ")
    inner = "HeteroscedasticRegressor > IterativeGPRegressor: "
    assert [line for line in lines if line.startswith(f"{inner}stage ")]


@pytest.mark.slow
def test_a_program_that_asks_for_nothing_sees_nothing():
    code = (
        "import numpy as np; from skscalablegp import IterativeGPRegressor;"
        "X = np.linspace(0, 1, 20)[:, None]; IterativeGPRegressor().fit(X, np.sin(6 * X[:, 0]))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
