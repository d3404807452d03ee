"""Mutants made by hand: a copy of the package is broken on purpose, and the tests should notice.

    make mutants                                       # all families
    python tests/mutants/run.py sampled                # one family: tests/mutants/sampled.py
    python tests/mutants/run.py sampled -k "one draw"  # words of the name, the file or the tests
    python tests/mutants/run.py --quick                # with those tests alone that make test runs

A family is a file beside this one with a list ``MUTANTS`` of tuples, the fields of `Mutant`. Each
replaces one text, which occurs once in its file, by another, and names the tests that are to fail
for it. The tests must pass on the package as it is, which is checked first. Prints one line a
mutant and ends with an error where more than a tenth survive, or one that is marked as required.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
# Share of all mutants that may survive.
ALLOWED = 0.1


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


def pytest_fails(package_root: Path, tests: str, seconds: float, quick: bool = False) -> bool:
    """Whether tests, or those that are not slow, fail or do not end with a package elsewhere."""
    env = os.environ | {"PYTHONPATH": str(package_root), "PYTHONDONTWRITEBYTECODE": "1"}
    # -P: the checkout's own package must not come first.
    call = [sys.executable, "-P", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    call += ["-m", "not slow"] if quick else []
    try:
        done = subprocess.run(
            [*call, *shlex.split(tests)],
            cwd=ROOT,
            env=env,
            capture_output=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return True
    if quick and done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED:
        return False
    if done.returncode not in (0, 1):
        print(done.stdout.decode()[-2000:], done.stderr.decode()[-2000:])
        raise SystemExit(f"pytest {tests} ended with {done.returncode}.")
    return done.returncode == 1


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
    parser.add_argument("--seconds", type=float, default=600, help="limit of one mutant's tests")
    args = parser.parse_args()
    chosen = [
        (family, mutant)
        for family in args.family or known
        for mutant in known[family]
        if args.k in f"{mutant.name} {mutant.file} {mutant.tests}"
    ]
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Path] = Queue()
        for number in range(args.workers):
            copy = Path(folder) / str(number)
            shutil.copytree(ROOT / "skscalablegp", copy / "skscalablegp")
            copies.put(copy)
        for tests in sorted({mutant.tests for _, mutant in chosen}):
            if pytest_fails(Path(folder) / "0", tests, args.seconds, args.quick):
                raise SystemExit(f"pytest {tests} fails on the package as it is.")

        def survives(item: tuple[str, Mutant]) -> bool:
            family, mutant = item
            copy, started = copies.get(), time.perf_counter()
            path = copy / "skscalablegp" / mutant.file
            right = path.read_text(encoding="utf-8")
            path.write_text(mutant.mutated(), encoding="utf-8")
            try:
                alive = not pytest_fails(copy, mutant.tests, args.seconds, args.quick)
            finally:
                path.write_text(right, encoding="utf-8")
                copies.put(copy)
            end = "SURVIVES" if alive else "killed"
            seconds = time.perf_counter() - started
            print(f"{end:8s} {seconds:5.0f} s  {family}: {mutant.name}", flush=True)
            return alive

        with ThreadPoolExecutor(args.workers) as pool:
            alive = list(pool.map(survives, chosen))
    print(f"{len(chosen)} mutants, {sum(alive)} survive")
    needed = [m.name for (_, m), lives in zip(chosen, alive, strict=True) if lives and m.required]
    if needed:
        print("Required to be killed: " + "; ".join(needed))
    return int(bool(needed) or sum(alive) > ALLOWED * len(chosen))


if __name__ == "__main__":
    raise SystemExit(main())
