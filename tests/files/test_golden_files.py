"""Files that earlier releases wrote are still read, and predict what they predicted."""

import json

import numpy as np
import pytest
from golden import FOLDER, answers, models

from skscalablegp import load

FILES = sorted(FOLDER.glob("*/*.safetensors"))


def test_every_release_has_its_files():
    assert {path.stem for path in FILES} == set(models())
    assert sum(path.stat().st_size for path in FILES) < 300_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_golden_files(path):
    expected = json.loads((path.parent / "expected.json").read_text())[path.stem]
    for name, values in answers(load(path)).items():
        # Another machine may have another library of linear algebra.
        np.testing.assert_allclose(values, expected[name], rtol=1e-7, atol=1e-9)
