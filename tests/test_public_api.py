"""What ``import skscalablegp`` offers: lazily, and to editors and type checkers alike."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import skscalablegp


def test_the_import_alone_is_cheap_and_everything_is_there():
    code = (
        "import sys, skscalablegp\n"
        "assert not {'torch', 'sklearn'} & set(sys.modules)\n"
        "assert set(skscalablegp.__all__) | {'metrics', 'inspection'} <= set(dir(skscalablegp))\n"
        "assert skscalablegp.RFFRegressor is skscalablegp.models.fourier.RFFRegressor\n"
        "assert skscalablegp.metrics.nlpd\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_editors_see_the_imports_that_are_made():
    tree = ast.parse(Path(skscalablegp.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {node.module: [alias.name for alias in node.names] for node in block.body}
    assert seen == {home: list(names) for home, names in skscalablegp._HOMES.items()}
    assert {name for names in seen.values() for name in names} == {
        name for name in skscalablegp.__all__ if name != "__version__"
    }
    for home, names in seen.items():
        module = __import__(f"skscalablegp.{home}", fromlist=names)
        assert all(getattr(skscalablegp, name) is getattr(module, name) for name in names)


def test_unknown_names():
    with pytest.raises(AttributeError, match="'skscalablegp' has no attribute 'nothing'"):
        skscalablegp.nothing  # noqa: B018
