"""benchmarks/awkward.py: its tables have only the named fault, and its verdicts are right."""

import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import rankdata

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("awkward", "starts", "starts_problems", "starts_reference", "compare", "uci")

pytestmark = pytest.mark.skipif(
    not (ROOT / "benchmarks").exists(), reason="not a checkout of the repository"
)


@pytest.fixture
def awkward(monkeypatch):
    """The script with small tables, at a commit without changes."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import awkward

    monkeypatch.setattr(awkward, "N", 200)
    monkeypatch.setattr(awkward, "TEST", 100)
    monkeypatch.setattr(awkward, "revision", lambda *_: "abc1234")
    yield awkward
    for name in NAMES:
        sys.modules.pop(name, None)


def test_every_case_has_the_plain_test_targets(awkward):
    plain = awkward.table("plain")
    assert plain.X.shape == (200, 10) and plain.X_test.shape == (100, 10)
    for case in awkward.CASES:
        found = awkward.table(case)
        np.testing.assert_array_equal(found.y_test, plain.y_test)
        # Only the case of far targets has other training targets.
        moved = np.flatnonzero(found.y != plain.y)
        assert len(moved) == (5 if case == "targets" else 0)
        np.testing.assert_allclose(found.y[moved] - plain.y[moved], 1e4)
        np.testing.assert_array_equal(found.clean, np.setdiff1d(np.arange(200), moved))


def test_columns_have_only_the_named_fault(awkward):
    plain = awkward.table("plain")
    entry = awkward.table("entry")
    ((row,), (column,)) = np.nonzero(entry.X != plain.X)
    assert entry.X[row, column] == 1e6 and column in entry.relevant
    np.testing.assert_array_equal(entry.X_test, plain.X_test)
    levels = awkward.table("levels").X
    np.testing.assert_array_equal(levels[:, :10], plain.X)
    for first, last in ((10, 20), (20, 40), (40, 70)):
        block = levels[:, first:last]
        assert set(block.ravel()) == {0.0, 1.0} and (block.sum(axis=1) == 1).all()
    assert levels.shape[1] == 70
    tails = awkward.table("tails").X
    np.testing.assert_array_equal(rankdata(tails, axis=0), rankdata(plain.X, axis=0))
    assert (tails.mean(axis=0) > 1.5 * np.median(tails, axis=0)).all()
    units = awkward.table("units")
    for scaled, alone in ((units.X, plain.X), (units.X_test, plain.X_test)):
        factors = np.log10(scaled / alone)
        np.testing.assert_allclose(factors, np.broadcast_to(factors[0], factors.shape), atol=1e-9)
        assert sorted(factors[0].round()) == [-9, -7, -5, -3, -1, 1, 3, 5, 7, 9]


def words(awkward, named=True, warned=True, **r2):
    """The verdicts of one estimator's R2 where trees have 0.93 in all cases."""
    cases = {case: dict(r2=value, warned=False) for case, value in r2.items()}
    if "targets" in cases:
        cases["targets"] |= dict(warned=warned, far_targets="5 targets" if named else "")
    return awkward.verdicts(cases, r2, dict.fromkeys(awkward.CASES, 0.93))


def test_verdicts(awkward):
    assert words(awkward, plain=0.95, entry=0.935, units=0.94, tails=0.96, levels=0.91) == []
    assert words(awkward, plain=0.95, entry=0.92) == ["entry loses 0.030"]
    assert words(awkward, plain=0.95, units=0.5) == ["units loses 0.450"]
    assert words(awkward, levels=0.89) == ["levels behind trees by 0.040"]
    assert words(awkward, targets=-30.0) == ["far targets named"]
    assert words(awkward, targets=-30.0, named=False) == ["far targets not named"]
    assert words(awkward, targets=-30.0, warned=False) == ["far targets not named"]
    failed = dict(plain=dict(error="cut"))
    assert awkward.verdicts(failed, dict(plain=None), {}) == ["plain: cut"]


@pytest.mark.slow
def test_unknown_estimators_are_refused(awkward, tmp_path):
    with pytest.raises(SystemExit, match="Unknown: .'Some'.*IterativeGPRegressor"):
        awkward.main(["--estimators", "Some", "--out", str(tmp_path / "lines")])
    assert not (tmp_path / "lines").exists()


@pytest.mark.night
def test_a_fit_leaves_a_line_and_is_not_made_again(awkward, tmp_path, capsys):
    asked = ["--estimators", "IterativeGPRegressor", "--cases", "targets", "plain"]
    asked += ["--out", str(tmp_path / "lines")]
    awkward.main(asked)
    awkward.main(asked)
    far, plain = awkward.read(tmp_path / "lines")
    assert (far["case"], plain["case"]) == ("targets", "plain")
    assert "5 targets" in far["far_targets"] and far["warned"] and not plain["far_targets"]
    assert plain["r2"] > 0.7 > far["r2"] and len(plain["columns"]) == 5
    assert "benchmarks/awkward.py" in plain["command"] and plain["commit"] == "abc1234"
    row = capsys.readouterr().out.splitlines()[-1]
    assert row.startswith("IterativeGPRegressor") and row.endswith("far targets named")
