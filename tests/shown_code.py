"""Runs code that the documentation shows: in a process of its own, without checked shapes.

    python tests/shown_code.py pages README.rst doc/index.rst ...
    python tests/shown_code.py docstrings

Prints processor seconds and a line for each failure, whose number is the exit status.
"""

import doctest
import importlib
import pkgutil
import re
import sys
import textwrap
import time
import traceback
import warnings
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def code_blocks(path):
    """(line number, code, what it needs or None) of each Python block of a page."""
    text = Path(path).read_text("utf-8")
    return [(begin, code, need) for begin, _, _, code, need in places_of_blocks(text)]


def places_of_blocks(text):
    """(first line, line behind it, margin, code, what it needs or None) of each Python block."""
    lines, blocks, need = text.splitlines(), [], None
    k = 0
    while k < len(lines):
        if comment := re.match(r" *\.\. needs: (\w+)$", lines[k]):
            need = comment[1]
        start = re.match(r"( *)\.\. code-block:: [Pp]ython$", lines[k])
        k += 1
        if start:
            begin, margin = k, len(start[1])
            while k < len(lines) and (not lines[k].strip() or indent(lines[k]) > margin):
                k += 1
            blocks.append((begin, k, margin, textwrap.dedent("\n".join(lines[begin:k])), need))
            need = None
    return blocks


def indent(line):
    return len(line) - len(line.lstrip())


def run_page(path):
    """All blocks in one namespace, as a reader pastes them; a fit cut by a limit fails.

    So does a block that prints other words than the documentation shows below it.
    """
    from inside import clock
    from sklearn.exceptions import ConvergenceWarning, FitFailedWarning

    sys.path.insert(0, str(ROOT / "doc"))
    import outputs

    blocks = []
    if ROOT / "doc" in Path(path).resolve().parents:
        blocks = outputs.recorded(outputs.slug(Path(path))).get("blocks", ())
    shown = iter(blocks)
    names = {"__name__": "page"}
    # Budgets count processor seconds, so that a busy machine cuts no fit short.
    with warnings.catch_warnings(), clock(time.process_time):
        warnings.simplefilter("error", ConvergenceWarning)
        warnings.simplefilter("error", FitFailedWarning)
        for line, code, need in code_blocks(path):
            if need is not None:
                continue
            # Line numbers of a failure are those of the page.
            found = outputs.words(outputs.printed("\n" * line + code, str(path), names))
            block = next(shown, {"text": found})
            told = outputs.words(block["text"])
            again = f"run python doc/outputs.py {path}"
            assert found == told, f"line {line} prints {found}, recorded: {told}; {again}"


def run_docstrings(module):
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    said = []
    for test in doctest.DocTestFinder(exclude_empty=True).find(module, module.__name__):
        runner.run(test, out=said.append)
    if runner.summarize(verbose=False).failed:
        raise AssertionError("".join(said))


def modules():
    import skscalablegp

    for found in pkgutil.walk_packages(skscalablegp.__path__, "skscalablegp."):
        yield importlib.import_module(found.name)


def main(kind, *paths):
    run, tasks = (run_page, paths) if kind == "pages" else (run_docstrings, modules())
    failures = 0
    for task in tasks:
        start = time.process_time()
        try:
            run(task)
        except Exception:
            failures += 1
            print(f"FAILED {task}\n{traceback.format_exc(limit=-3)}", flush=True)
        seconds = time.process_time() - start
        if seconds > 0.3:
            print(f"{seconds:6.2f} s  {getattr(task, '__name__', task)}", flush=True)
    return failures


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
