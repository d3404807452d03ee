"""benchmarks/calibration.py: its problems are what it says, and its verdicts too."""

import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def calibration(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import calibration

    yield calibration
    sys.modules.pop("calibration")


def test_the_problems(calibration):
    problems = calibration.PROBLEMS
    assert len(problems) == len({p.name for p in problems}) == 40
    for problem in problems:
        X, X_test, y, y_test = calibration.table(problem, 0)
        assert len(X) == len(y) == problem.n and X.shape[1] == X_test.shape[1] <= 64
        assert np.isfinite(X).all() and np.isfinite(y).all() and y_test.std() > 0
    # Drawn anew for each draw, and the same for each run.
    first, second, again = (calibration.table(problems[0], draw)[2] for draw in (0, 1, 0))
    assert (first != second).all() and (first == again).all()


def test_the_noise_of_drawn_functions(calibration):
    problem = calibration.Problem("drawn", "drawn", 5000, 1, 3.0)
    X, _, y, _ = calibration.table(problem, 0)
    rough = np.diff(y[np.argsort(X[:, 0])]) / np.sqrt(2)
    # Of neighbours the function is the same, and noise is three times its standard deviation.
    assert rough.std() / np.sqrt(y.var() - rough.var()) == pytest.approx(3.0, rel=0.15)


@pytest.mark.parametrize(
    "change, verdict",
    [
        (dict(), []),
        (dict(coverage95=0.8), ["narrow"]),
        (dict(coverage95=0.999), ["wide"]),
        (dict(nll=0.2), ["behind"]),
        (dict(nll=None), ["behind"]),
        (dict(nll=0.2, noise=1e-3), []),
        (dict(nll=0.2, noise=None), ["behind"]),
        (dict(coverage95=0.5, nll=0.2, warnings=["out of its depth"]), ["warned"]),
        (dict(error="MemoryError"), ["error"]),
    ],
)
def test_verdicts(calibration, change, verdict):
    reference = dict(coverage95=0.95, nll=0.0, noise=0.1, warnings=[])
    assert calibration.verdicts(reference | change, reference) == verdict


def test_the_summary_tells_own_misses_from_those_of_the_exact_process(calibration):
    names, problems = [calibration.REFERENCE, "Other"], calibration.PROBLEMS[:4]
    coverages = {names[0]: (0.8, 0.95, 0.95, 1.0), names[1]: (0.8, 0.8, 0.95, 0.95)}
    lines = {
        (name, p.name): dict(problem=p.name, noise=0, nll=0.0, warnings=[], coverage95=c)
        for name in names
        for p, c in zip(problems, coverages[name], strict=True)
    }
    said = calibration.summary(lines, names, problems).splitlines()
    # Problems, narrow, wide, behind, warned, error, own, seconds.
    assert said[1].split()[1:] == ["4", "1", "1", "0", "0", "0", "0", "0"]
    assert said[2].split()[1:] == ["4", "2", "0", "0", "0", "0", "1", "0"]
    assert said[-1] == f"Other, own: {problems[1].name}"
