"""What the documentation's code prints and draws: recorded once, and shown by every build.

    python doc/outputs.py                                   # all pages and examples, some minutes
    python doc/outputs.py doc/tutorials/kernels.rst examples/plot_solvers.py

The outputs of a page are in ``doc/outputs``: a JSON file with the version of the package, a key for
the code of each block, and what it printed, and a PNG file for each figure. A build shows the
output of each block whose code is still the same; ``tests/test_documentation.py`` fails for others.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import hashlib
import io
import json
import os
import re
import sys
import tempfile
import textwrap
import time
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "doc" / "outputs"
sys.path.insert(0, str(ROOT / "tests"))

from shown_code import places_of_blocks  # noqa: E402 (a folder of tests)

# Recorded by other means, or without anything to show.
_NOT_PAGES = ("generated", "auto_examples", "_build", "_templates", "outputs")
# Progress bars, and what KeOps says of a machine.
_PROGRESS = re.compile(r"\d%\|.*step|\dstep \[|^\[KeOps\]")
# Longer outputs are cut, since pages are read.
_LINES = 60
# Characters in a line of a page.
_WIDTH = 76


def sources() -> list[Path]:
    """Pages with Python blocks, and examples."""
    found = sorted((ROOT / "doc").rglob("*.rst"))
    found = [p for p in found if not set(p.relative_to(ROOT).parts) & set(_NOT_PAGES)]
    pages = [p for p in found if places_of_blocks(p.read_text("utf-8"))]
    return [*pages, *sorted((ROOT / "examples").glob("plot_*.py"))]


def slug(source: Path) -> str:
    """The name of a page's files of outputs."""
    parts = source.resolve().relative_to(ROOT).with_suffix("").parts
    return "-".join(parts[1:] if parts[0] == "doc" else parts)


def key(code: str) -> str:
    """A key for the code of a block."""
    lines = [line.rstrip() for line in code.strip().splitlines()]
    lines = [line for line in lines if not line.startswith("# sphinx_gallery_")]
    return hashlib.sha256("\n".join(lines).strip().encode()).hexdigest()[:16]


def blocks(source: Path) -> list[str]:
    """The code of each block that is run."""
    if source.suffix == ".py":
        return _cells(source.read_text("utf-8"))
    places = places_of_blocks(source.read_text("utf-8"))
    return [code for *_, code, need in places if need is None]


def _cells(script: str) -> list[str]:
    """The code of an example between its texts, which are its docstring and comments below # %%."""
    begin = ast.parse(script).body[0].end_lineno
    found: list[list[str]] = [[]]
    in_text = False
    for line in script.splitlines()[begin:]:
        if line.startswith("# %%"):
            found.append([])
            in_text = True
        elif not (in_text and line.startswith("#")):
            in_text = False
            found[-1].append(line)
    code = ["\n".join(lines) for lines in found]
    return [block for block in code if block.strip()]


def recorded(name: str) -> dict:
    """The record of a page; empty if there is none."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text("utf-8")) if path.exists() else {}


# ------------------------------------------------------------------ recording


def record(source: Path) -> None:
    """Run all blocks of a page in one namespace, and keep what they print and draw."""
    import matplotlib

    import skscalablegp
    from skscalablegp._clock import clock

    matplotlib.use("agg")
    name, entries = slug(source), []
    names = {"__name__": "__main__", "__file__": str(source)}
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob(f"{name}-[0-9]*.png"):
        old.unlink()
    for k, code in enumerate(blocks(source)):
        # Budgets and reports count processor seconds, which a busy machine hardly changes.
        with warnings.catch_warnings(), clock(time.process_time):
            warnings.simplefilter("ignore")
            text = printed(code, str(source), names)
        pictures = _saved_figures(f"{name}-{k}")
        entries.append({"code": key(code), "text": text, "pictures": pictures})
    kept = {"version": skscalablegp.__version__, "blocks": entries}
    path = FOLDER / f"{name}.json"
    path.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")


def printed(code: str, path: str, names: dict) -> list[str]:
    """The lines that a block prints when it is run."""
    kept = io.StringIO()
    with contextlib.redirect_stdout(kept), contextlib.redirect_stderr(kept):
        _run(code, path, names)
    # A progress bar begins each of its states with a carriage return.
    text = [line for line in kept.getvalue().rstrip().split("\n") if "\r" not in line]
    text = [line.rstrip() for line in text if not _PROGRESS.search(line)]
    if len(text) > _LINES:
        text = [*text[:_LINES], "..."]
    return text if any(text) else []


def words(lines: list[str]) -> list[str]:
    """Printed lines without numbers, spaces and punctuation, which differ between machines."""
    found = [" ".join(re.findall(r"[A-Za-z_]{3,}", line)) for line in lines]
    return [line for line in found if line]


def _run(code: str, path: str, names: dict) -> None:
    """Run a block; the value of an expression on its last line is printed, as in a notebook."""
    tree = ast.parse(code, path)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, path, "exec"), names)
    if last is None:
        return
    value = eval(compile(ast.Expression(last.value), path, "eval"), names)
    shown = not hasattr(value, "get_params") and not type(value).__module__.startswith(
        ("matplotlib", "skscalablegp.inspection")
    )
    if value is not None and shown:
        print(value)


def _saved_figures(name: str) -> list[str]:
    import matplotlib.pyplot as plt

    saved = []
    for number in plt.get_fignums():
        saved.append(f"{name}-{number}.png")
        figure = plt.figure(number)
        figure.savefig(FOLDER / saved[-1], dpi=90, bbox_inches="tight", metadata={"Software": None})
    plt.close("all")
    return saved


# ------------------------------------------------------------------ showing


# What is left of a block of an example that had settings of the gallery only.
_EMPTY = re.compile(r"^\.\. code-block:: Python\n   :dedent: 1\n(?= *\n)", re.M)


def record_of(docname: str) -> str:
    """The name of the record of a document of the build."""
    return docname.replace("/", "-").replace("auto_examples-plot_", "examples-plot_")


def with_outputs(docname: str, text: str) -> str:
    """The source of a page with what its blocks have printed and drawn below them."""
    name, text = record_of(docname), _EMPTY.sub("", text)
    entries = {entry["code"]: entry for entry in recorded(name).get("blocks", ())}
    if not entries:
        return text
    lines = text.splitlines()
    for _, end, margin, code, _ in reversed(places_of_blocks(text)):
        entry = entries.get(key(code))
        if entry is not None:
            lines[end:end] = _shown(entry, " " * margin)
    return "\n".join(lines) + "\n"


def _shown(entry: dict, margin: str) -> list[str]:
    lines = []
    if entry["text"]:
        lines += [".. code-block:: none", "   :class: output", ""]
        lines += [f"   {line}" for text in entry["text"] for line in _wrapped(text)] + [""]
    for picture in entry["pictures"]:
        lines += [f".. image:: /outputs/{picture}", "   :alt: The figure that this code draws", ""]
    return ["", *(margin + line if line else "" for line in lines)]


def _wrapped(line: str) -> list[str]:
    """A long sentence in lines as wide as a page; the columns of a table stay together."""
    if len(line) <= _WIDTH or "   " in line.strip():
        return [line]
    return textwrap.wrap(
        line, _WIDTH, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
    )


def setup(app):
    """Of Sphinx: pages are read with their outputs."""

    def read(app, docname, source):
        source[0] = with_outputs(docname, source[0])
        path = FOLDER / f"{record_of(docname)}.json"
        if path.exists():
            app.env.note_dependency(path, docname=docname)

    app.connect("source-read", read)
    return {"parallel_read_safe": True}


def main(arguments: list[str] | None = None) -> None:
    """Record the outputs of these pages and examples, or of all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = {path.relative_to(ROOT).as_posix(): path for path in sources()}
    parser.add_argument("pages", nargs="*", metavar="PAGE", help="default: all pages and examples")
    given = []
    for name in parser.parse_args(arguments).pages or known:
        path = (ROOT / name if name in known else Path(name)).resolve()
        if path not in known.values():
            parser.error(
                f"{name} has no Python code to record. Pages that have: {', '.join(known)}"
            )
        given.append(path)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # pages write files
        sys.argv = [""]
        for source in given:
            begun = time.perf_counter()
            record(source)
            print(f"{time.perf_counter() - begun:7.1f} s  {slug(source)}", flush=True)


if __name__ == "__main__":
    main()
