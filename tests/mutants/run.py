"""Mutants made by hand: a copy of the package is broken on purpose, and the tests should notice.

    make mutants                                       # all families
    python tests/mutants/run.py sampled                # one family: tests/mutants/sampled.py
    python tests/mutants/run.py sampled -k "one draw"  # words of the name, the file or the tests
    python tests/mutants/run.py --quick                # with those tests alone that make test runs

A family is a file beside this one with a list ``MUTANTS`` of tuples, the fields of `Mutant`. Each
replaces one text, which occurs once in its file, by another, and names the tests that are to fail
for it. The tests must pass on the package as it is, which is checked first. Those that `make test`
runs come first, and the slow ones only where none of them fails. Prints one line a mutant, which
says which of the two killed it, and ends with an error where more than a tenth survive, or one that
is marked as required.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import math
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Share of all mutants that may survive.
ALLOWED = 0.1
# What runs tests of a kind, and the mark of those tests.
MARKS = {"make test": "not slow", "slow tests": "slow"}


class Mutant(NamedTuple):
    """One deliberate mistake.

    Attributes
    ----------
    name : str
        What is wrong, in words.
    file : str
        Where, below ``skscalablegp/``.
    old, new : str
        The text, which occurs once, and what takes its place.
    tests : str
        Arguments of pytest, from the root of the repository.
    required : bool
        Whether its survival alone is a failure.
    """

    name: str
    file: str
    old: str
    new: str
    tests: str
    required: bool = False

    def mutated(self) -> str:
        """The file with the mistake.

        Raises
        ------
        ValueError
            If the text does not occur exactly once.
        """
        text = (ROOT / "skscalablegp" / self.file).read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: {self.old!r} occurs {text.count(self.old)} times")
        return text.replace(self.old, self.new)


def families() -> dict[str, list[Mutant]]:
    """The lists of all files beside this one."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem != "run" and not path.stem.startswith("test_"):
            spec = importlib.util.spec_from_file_location(f"mutants_of_{path.stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found[path.stem] = [Mutant(*line) for line in module.MUTANTS]
    return found


# Runs pytest for each list of arguments; fewer processes import torch and the package this way.
RUNS = """
import json, sys
import pytest
for arguments in json.loads(sys.argv[1]):
    print(int(pytest.main(arguments)), file=sys.stderr, flush=True)
"""


def pytest_codes(package_root: Path, tests: list[str], seconds: float, marked: str) -> list[int]:
    """How pytest ends for tests with a mark and a package elsewhere; 1 where time runs out.

    `seconds` is processor time. A limit of the clock would count what a busy machine does not
    finish as noticed.
    """
    env = os.environ | {"PYTHONPATH": str(package_root)}
    options = ["-q", "-x", "-p", "no:cacheprovider", "-m", marked]
    arguments = json.dumps([[*options, *shlex.split(each)] for each in tests])
    # -P: the checkout's own package must not come first.
    call = shlex.join([sys.executable, "-P", "-c", RUNS, arguments])
    done = subprocess.run(
        ["sh", "-c", f"ulimit -t {math.ceil(seconds)}; exec {call}"],
        cwd=ROOT,
        env=env,
        capture_output=True,
        text=True,
    )
    codes = [int(line) for line in done.stderr.splitlines() if line.isdigit()]
    if done.returncode in (-signal.SIGXCPU, -signal.SIGKILL):
        return [*codes, *[1] * (len(tests) - len(codes))]
    right = 0, 1, pytest.ExitCode.NO_TESTS_COLLECTED
    if len(codes) < len(tests) or not set(codes) <= set(right):
        print(done.stdout[-2000:], done.stderr[-2000:])
        raise SystemExit(f"pytest {'; '.join(tests)} ended with {codes}.")
    return codes


@contextmanager
def copies_of_the_package(number: int) -> Iterator[Queue[Path]]:
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for name in map(str, range(number)):
            shutil.copytree(ROOT / "skscalablegp", Path(folder) / name / "skscalablegp")
            copies.put(Path(folder) / name)
        yield copies
        if sys.pycache_prefix:
            shutil.rmtree(f"{sys.pycache_prefix}{folder}", ignore_errors=True)


def survivors(
    items: list[tuple[str, Mutant]], copies: Queue[Path], seconds: float, name: str, marked: str
) -> list[tuple[str, Mutant]]:
    """The mutants that no test with a mark notices, of a family and itself each.

    Raises
    ------
    SystemExit
        If a test fails on the package as it is.
    """

    def fails(item: tuple[str, Mutant]) -> bool:
        family, mutant = item
        copy, started = copies.get(), time.perf_counter()
        path = copy / "skscalablegp" / mutant.file
        right = path.read_text(encoding="utf-8")
        path.write_text(mutant.mutated(), encoding="utf-8")
        try:
            killed = pytest_codes(copy, [mutant.tests], seconds, marked) == [1]
        finally:
            path.write_text(right, encoding="utf-8")
            copies.put(copy)
        if killed:
            took = time.perf_counter() - started
            print(f"killed by {name:15s} {took:5.0f} s  {family}: {mutant.name}", flush=True)
        return killed

    copy, every = copies.get(), sorted({mutant.tests for _, mutant in items})
    codes = pytest_codes(copy, every, seconds * len(every), marked)
    copies.put(copy)
    wrong = [tests for tests, code in zip(every, codes, strict=True) if code == 1]
    if wrong:
        raise SystemExit(f"Tests that fail on the package as it is: {'; '.join(wrong)}")
    with ThreadPoolExecutor(copies.qsize()) as pool:
        killed = list(pool.map(fails, items))
    return [item for item, dead in zip(items, killed, strict=True) if not dead]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    known = families()
    parser.add_argument("family", nargs="*", help=f"default: all of {', '.join(known)}")
    parser.add_argument(
        "-k", default="", help="only mutants with these words in name, file or tests"
    )
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time")
    parser.add_argument("--quick", action="store_true", help="leave out tests marked slow")
    parser.add_argument(
        "--seconds", type=float, default=600, help="processor time that one mutant's tests may take"
    )
    args = parser.parse_args()
    alive = [
        (family, mutant)
        for family in args.family or known
        for mutant in known[family]
        if args.k in f"{mutant.name} {mutant.file} {mutant.tests}"
    ]
    count, killed = len(alive), {}
    with copies_of_the_package(args.workers) as copies:
        for name, marked in list(MARKS.items())[: 1 if args.quick else None]:
            left = survivors(alive, copies, args.seconds, name, marked)
            killed[name], alive = len(alive) - len(left), left
    for family, mutant in alive:
        print(f"SURVIVES  {family}: {mutant.name}")
    by = ", ".join(f"{number} by {name}" for name, number in killed.items())
    print(f"{count} mutants, killed: {by}; {len(alive)} survive")
    needed = [mutant.name for _, mutant in alive if mutant.required]
    if needed:
        print("Required to be killed: " + "; ".join(needed))
    return int(bool(needed) or len(alive) > ALLOWED * count)


if __name__ == "__main__":
    raise SystemExit(main())
