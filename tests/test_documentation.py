"""The documentation names everything that is public, and everything that it shows runs."""

import importlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from shown_code import code_blocks

import skscalablegp

ROOT = Path(__file__).resolve().parent.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "doc" / "reference.rst").exists(), reason="not a checkout of the repository"
)

# Public for kernels of the package itself, and described where they are written.
INTERNAL = {"Draws", "Frequencies", "Layout", "MAX_POWER", "NoSpectralDensity", "ObjectRows"}
INTERNAL |= {"ScaledFrequencies", "Slot", "Term", "check_no_columns", "default_kernel"}
INTERNAL |= {"NotExportable", "no_spectral_density", "root", "with_column_numbers", "__version__"}


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


# ------------------------------------------------------------------ pages

# Blocks below a comment ".. needs: network" (or minutes) are read, not run.
NOT_RUN = {
    "doc/how_to/data_sets.rst": "network",
    "doc/how_to/several_machines.rst": "processes",
}


def pages():
    found = [ROOT / "README.rst", ROOT / "CONTRIBUTING.rst", *sorted((ROOT / "doc").rglob("*.rst"))]
    generated = ("generated", "auto_examples", "_build", "_templates")
    found = [p for p in found if not set(p.relative_to(ROOT).parts) & set(generated)]
    return {str(p.relative_to(ROOT)): p for p in found if p.exists() and code_blocks(p)}


PAGES = pages()


def test_pages_are_found():
    assert {"README.rst", "doc/index.rst", "doc/tutorials/first_model.rst"} <= set(PAGES)
    assert len(PAGES) > 20


def test_blocks_that_are_not_run_are_listed():
    needing = {
        name: need for name, path in PAGES.items() for _, _, need in code_blocks(path) if need
    }
    assert needing == NOT_RUN


def run_shown_code(*arguments, folder):
    """In a process of its own, so that blocks meet the package as its users do."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "shown_code.py"), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg"},
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert not done.returncode, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_readme_runs(tmp_path):
    run_shown_code("pages", str(PAGES["README.rst"]), folder=tmp_path)


# Parts of some minutes each, which several processes of pytest share.
@pytest.mark.slow
@pytest.mark.parametrize("part", range(4))
def test_pages_run_from_top_to_bottom(part, tmp_path):
    others = [str(path) for name, path in PAGES.items() if name != "README.rst"]
    run_shown_code("pages", *others[part::4], folder=tmp_path)


def test_a_page_that_fails_is_noticed(tmp_path):
    (tmp_path / "page.rst").write_text(".. code-block:: python\n\n    a = 1\n    assert a > 1\n")
    with pytest.raises(AssertionError, match="line 4"):
        run_shown_code("pages", str(tmp_path / "page.rst"), folder=tmp_path)


# ------------------------------------------------------------------ outputs


def outputs():
    spec = importlib.util.spec_from_file_location("outputs", ROOT / "doc" / "outputs.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_recorded_outputs_are_those_of_the_code_and_of_this_version():
    made = outputs()
    known = {made.slug(source): source for source in made.sources()}
    records = sorted(path.stem for path in made.FOLDER.glob("*.json"))
    assert set(records) <= set(known)
    for name in records:
        source, record = known[name], made.recorded(name)
        again = f"run python doc/outputs.py {source.relative_to(ROOT)}"
        assert record["version"] == skscalablegp.__version__, again
        keys = [made.key(code) for code in made.blocks(source)]
        assert [entry["code"] for entry in record["blocks"]] == keys, again
        for entry in record["blocks"]:
            assert all((made.FOLDER / picture).exists() for picture in entry["pictures"]), again


def test_tutorials_have_pictures():
    made = outputs()
    recorded = {s: made.recorded(made.slug(s)) for s in made.sources() if "tutorials" in s.parts}
    assert sum(map(bool, recorded.values())) >= 8
    for source, record in recorded.items():
        shown = [entry["pictures"] for entry in record.get("blocks", ())]
        assert any(shown) or not shown, source


def test_outputs_are_shown_below_their_code(tmp_path, monkeypatch):
    made = outputs()
    monkeypatch.setattr(made, "FOLDER", tmp_path)
    entry = {"code": made.key("print(1)"), "text": ["1"], "pictures": ["a-0-1.png"]}
    (tmp_path / "a.json").write_text(json.dumps({"version": "0", "blocks": [entry]}))
    page = "Text\n\n.. code-block:: python\n\n    {}\n\nMore\n"
    shown = made.with_outputs("a", page.format("print(1)"))
    assert shown.index("print(1)") < shown.index("\n   1\n") < shown.index("a-0-1.png")
    assert shown.index("a-0-1.png") < shown.index("More")
    assert "none" not in made.with_outputs("a", page.format("print(2)"))


def test_long_sentences_are_wrapped_and_tables_are_not():
    made = outputs()
    entry = {"text": ["word " * 40, "a    " * 40], "pictures": []}
    shown = made._shown(entry, "")
    assert max(len(line) for line in shown if "word" in line) < 90
    assert sum("word" in line for line in shown) > 1 == sum("a  " in line for line in shown)


@pytest.mark.slow
def test_docstring_examples_run(tmp_path):
    run_shown_code("docstrings", folder=tmp_path)


def test_every_estimator_has_an_example():
    missing = [
        name
        for name in skscalablegp.__all__
        if name != "__version__" and ">>> " not in getattr(skscalablegp, name).__doc__
    ]
    assert not missing


def test_every_estimator_says_what_it_does_at_which_size():
    table = (ROOT / "doc" / "explanation" / "sizes.rst").read_text("utf-8")
    for name in skscalablegp.__all__:
        made = getattr(skscalablegp, name)
        if hasattr(made, "get_params"):
            assert f"~skscalablegp.{name}`" in table, name
            assert ":ref:`default_sizes`" in made.__doc__.partition("Parameters\n")[0], name


def test_front_pages_show_the_code_of_their_picture():
    """In the order of the example that draws it, with the same seed."""
    drawn = (ROOT / "examples" / "plot_intervals.py").read_text("utf-8").splitlines()
    for page in ("README.rst", "doc/index.rst"):
        (_, code, _), *_ = code_blocks(ROOT / page)
        rest = iter(drawn)
        missing = [line for line in code.splitlines() if line and line not in rest]
        assert not missing, page
        assert "_static/intervals.png" in (ROOT / page).read_text("utf-8")


# ------------------------------------------------------------------ figures

SCALE = "Gaussian processes for up to a million rows, as scikit-learn estimators"


def test_one_statement_of_scale():
    """The same words everywhere; benchmarks/neighbors.py measured so many rows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["description"] == SCALE
    for name in ("README.rst", "doc/index.rst"):
        assert f"**{SCALE}.**" in (ROOT / name).read_text("utf-8"), name
    measured = (ROOT / "benchmarks" / "results" / "neighbors.jsonl").read_text("utf-8")
    assert '"n_train": 1000000' in measured


def test_scores_of_the_readme_are_those_that_were_measured():
    spec = importlib.util.spec_from_file_location("scores", ROOT / "doc" / "scores.py")
    scores = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(scores)
    text = (ROOT / "README.rst").read_text("utf-8")
    assert scores.BEGIN + "\n" + scores.table() + "\n" + scores.END in text, (
        "the results have changed: run python doc/scores.py"
    )


REPORTS = {
    "compare_report.py": ("--out",),
    "suite.py": ("--part", "kept", "--clock", "cpu", "--doc"),
}


@pytest.mark.slow
@pytest.mark.parametrize("script", REPORTS)
def test_tables_of_scores_are_those_that_were_measured(script, tmp_path):
    """Each table that a script makes of ``benchmarks/results`` is the one that a page includes."""
    command = [sys.executable, str(ROOT / "benchmarks" / script), *REPORTS[script], str(tmp_path)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    made = sorted(tmp_path.glob("*.inc"))
    assert made
    for path in made:
        kept = (ROOT / "doc" / path.name).read_text("utf-8")
        assert path.read_text("utf-8") == kept, " ".join(["run", script, *REPORTS[script], "doc"])
