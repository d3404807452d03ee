"""The documentation names everything that is public, and everything that it shows runs."""

import importlib
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "doc" / "reference.rst").exists(), reason="not a checkout of the repository"
)

# Public for kernels of the package itself, and described where they are written.
INTERNAL = {"Draws", "Frequencies", "Layout", "MAX_POWER", "NoSpectralDensity", "ObjectRows"}
INTERNAL |= {"ScaledFrequencies", "Slot", "Term", "check_no_columns", "default_kernel"}
INTERNAL |= {"no_spectral_density", "with_column_numbers", "__version__"}


def referenced():
    """{module: names} of the reference's lists."""
    found, module = {}, None
    for line in (ROOT / "doc" / "reference.rst").read_text("utf-8").splitlines():
        if switch := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = switch[1]
        elif entry := re.match(r"(?:   |\.\. data:: )([A-Za-z]\w*)$", line):
            found.setdefault(module, set()).add(entry[1])
    return found


def test_reference_lists_every_public_name():
    listed = referenced()
    assert len(listed) >= 11
    for module, names in listed.items():
        public = set(importlib.import_module(module).__all__)
        assert names <= public, module
        assert public - INTERNAL <= names, module
