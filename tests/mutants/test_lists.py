"""Lists of mutants do not rot: each text occurs once in its file, and each test file exists."""

import importlib.util
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
spec = importlib.util.spec_from_file_location("mutants_run", HERE / "run.py")
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)


@pytest.mark.parametrize("family", run.families())
def test_mutants_change_what_they_name(family):
    mutants = run.families()[family]
    assert len({mutant.name for mutant in mutants}) == len(mutants)
    for mutant in mutants:
        assert mutant.mutated() and mutant.new != mutant.old
        assert (run.ROOT / mutant.tests.split()[0].split("::")[0]).exists()
