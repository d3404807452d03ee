"""Fits give the values that are recorded: see ``CONTRIBUTING.rst``, "Moves and golden values"."""

import json
import re
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
from golden_values import BY_NAME, FILES, TOLERANCES, VERSIONS, changes, movement, read, record

ROOT = Path(__file__).resolve().parents[2]
RECORDED = {name: line for path in FILES for name, line in read(path).items()}
WRITTEN_WITH = json.loads(VERSIONS.read_text())
HERE = {name: version(name) for name in WRITTEN_WITH}


def without_local_part(versions):
    return {name: number.partition("+")[0] for name, number in versions.items()}


def test_every_fit_is_recorded_with_the_pinned_versions():
    """A renewed constraints.txt needs ``python tests/golden/write.py`` as well."""
    pinned = dict(re.findall(r"^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text(), re.M))
    assert set(RECORDED) == set(BY_NAME)
    assert without_local_part(WRITTEN_WITH) == {name: pinned[name] for name in WRITTEN_WITH}


@pytest.mark.exact_input
@pytest.mark.skipif(
    without_local_part(HERE) != without_local_part(WRITTEN_WITH),
    reason=f"recorded with {WRITTEN_WITH}: other versions draw and optimise in other ways",
)
@pytest.mark.parametrize(
    "name", [pytest.param(f.name, marks=[pytest.mark.slow] * f.slow) for f in BY_NAME.values()]
)
def test_fits_give_the_recorded_values(name):
    found = changes(record(BY_NAME[name]), RECORDED[name])
    assert not found, (
        f"{found} changed by more than {RECORDED[name]['tolerance']}, relative to the "
        f'largest number of each. If that is meant: python tests/golden/write.py -k "{name}"'
    )


def test_tolerances_are_narrow():
    """Far below what a change of behaviour moves."""
    for name, line in RECORDED.items():
        assert line["tolerance"]["all"] == TOLERANCES[BY_NAME[name].single]
        predictions = [line["tolerance"].get(field, 0.0) for field in ("mean", "proba")]
        assert max(predictions) <= 1e-3 and max(line["tolerance"].values()) <= 1e-2, name


def test_a_change_of_any_field_is_seen():
    for name, recorded in RECORDED.items():
        assert not movement(recorded, recorded)
        for field, value in recorded.items():
            if field in ("name", "tolerance"):
                continue
            if isinstance(value, np.ndarray):
                most = recorded["tolerance"].get(field, recorded["tolerance"]["all"])
                other = value.copy()
                other.flat[-1] += 3 * most * max(1e-8, np.abs(value).max())
            elif isinstance(value, int | float):
                other = value + 1
            elif isinstance(value, str):
                other = f"{value}."
            elif isinstance(value, list):
                other = [*value, "device"]
            else:
                other = {**value, "device": "cpu"}
            assert set(changes({**recorded, field: other}, recorded)) == {field}, name
