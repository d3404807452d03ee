"""Mutants made by hand: a copy of the package is broken on purpose, and the tests should notice.

    make mutants                                       # all families
    python tests/mutants/run.py sampled                # one family: tests/mutants/sampled.py
    python tests/mutants/run.py sampled -k "one draw"  # words of the name, the file or the tests
    python tests/mutants/run.py --quick                # with those tests alone that make test runs
    python tests/mutants/run.py --all-killers FILE     # every test that fails, not the first one

A family is a file beside this one with a list ``MUTANTS`` of tuples, the fields of `Mutant`. Each
replaces a piece of one definition, and names the tests that are to fail for it. Where a definition
or the piece of it is gone, nothing runs. The tests must pass on the package as it is, which is
checked first. Those that `make test` runs come first, and the slow ones only where none of them
fails. Prints one line a mutant, which says which of the two killed it, and ends with an error where
more than a tenth survive, or one that is marked as required.

With ``--all-killers``, all tests that a mutant names run to their end, and a line of the file has
its family, its name, whether it was killed, the tests that failed, and which of them are slow. An
interrupted run goes on where it ended. It prints the slow tests that kill, together, what no quick
test kills: the others may run more rarely. ``--since FILE`` compares with an earlier file, and ends
with an error where a mutant was killed and is not any more, or is not in the lists.
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
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from queue import Queue
from typing import NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from _syntax import Package  # noqa: E402

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
    target : str
        A qualified name of the package, wherever it is: ``function``, ``Class.method`` or
        ``NAME``. Where several modules define it and `old` is in more than one of them, the end of
        the module's name comes first: ``_nngp.fit``.
    old, new : str
        An expression or statements that occur once in the definition, and what takes their place.
        They are compared as syntax: spaces, line breaks and comments do not matter. ``...`` for
        the body of a statement stands for whatever it is: ``if done: ...`` may become
        ``if True: ...``.
    tests : str
        Arguments of pytest, from the root of the repository.
    required : bool
        Whether its survival alone is a failure.
    """

    name: str
    target: str
    old: str
    new: str
    tests: str
    required: bool = False

    def mutated(self, package: Package) -> tuple[str, str]:
        """The file to change, below ``skscalablegp/``, and its code with the mistake.

        Raises
        ------
        ValueError
            If the definition is gone, or the code does not occur exactly once in it.
        """
        try:
            return package.changed(self.target, self.old, self.new)
        except (LookupError, SyntaxError) as error:
            raise ValueError(f"{self.name}: {error}") from None


class Item(NamedTuple):
    """A mutant of a family, and the file of the package that has its mistake."""

    family: str
    mutant: Mutant
    file: str
    code: str

    @property
    def key(self) -> tuple[str, str]:
        return self.family, self.mutant.name


class End(NamedTuple):
    """How pytest ended, the tests that failed, and those of them that are slow."""

    code: int
    failed: list[str]
    slow: list[str]


def families() -> dict[str, list[Mutant]]:
    """The lists of all files beside this one."""
    found = {}
    for path in sorted(HERE.glob("*.py")):
        if path.stem != "run" and not path.stem.startswith(("_", "test_")):
            spec = importlib.util.spec_from_file_location(f"mutants_of_{path.stem}", path)
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
            found[path.stem] = [Mutant(*line) for line in module.MUTANTS]
    return found


def items_of(chosen: list[str]) -> list[Item]:
    """All mutants of families.

    Raises
    ------
    SystemExit
        If what some of them change is gone; it has their names.
    """
    package, known, found, gone = Package(ROOT / "skscalablegp"), families(), [], []
    for family in chosen or known:
        for mutant in known[family]:
            try:
                found.append(Item(family, mutant, *mutant.mutated(package)))
            except ValueError as error:
                gone.append(f"{family}: {error}")
    if gone:
        raise SystemExit("\n".join(["Mutants that change nothing:", *gone]))
    return found


# Waits for lists of arguments of pytest, and runs them in a fork of itself: torch, pandas and
# scikit-learn are imported once, the package for each mutant.
WARM = """
import json, os, resource, sys
import pandas, pytest, sklearn.ensemble, sklearn.gaussian_process, torch

def say(*words):
    print(*words, file=sys.stderr, flush=True)

class Tests:
    def pytest_runtest_protocol(self, item):
        say("slow" if item.get_closest_marker("slow") else "quick", item.nodeid)

    def pytest_runtest_logreport(self, report):
        if report.failed:
            say("fails", report.nodeid)

for line in sys.stdin:
    seconds, lists = json.loads(line)
    child = os.fork()
    if not child:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            for arguments in lists:
                say("ends", int(pytest.main(arguments, plugins=[Tests()])))
        finally:
            os._exit(0)
    say("over", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


class Copy:
    """A copy of the package, and a process that runs tests with it.

    Parameters
    ----------
    folder : Path
        Where to put it; gone when its owner removes the folder.
    """

    def __init__(self, folder: Path) -> None:
        shutil.copytree(ROOT / "skscalablegp", folder / "skscalablegp")
        self.folder, self.output = folder, folder / "output"
        with self.output.open("w", encoding="utf-8") as output:
            # -P: the checkout's own package must not come first.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", WARM],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(folder)},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
            )

    def lines(self, seconds: float, arguments: list[list[str]]) -> Iterator[str]:
        """What the process says of the tests, as it comes."""
        process = self._process
        print(json.dumps([math.ceil(seconds), arguments]), file=process.stdin, flush=True)
        for line in process.stderr:
            yield line.rstrip()
            if line.startswith("over "):
                return

    def close(self) -> None:
        self._process.communicate()


def ends(copy: Copy, tests: list[str], seconds: float, options: list[str]) -> list[End]:
    """How pytest ends for lists of tests with one copy of the package.

    `seconds` is processor time. A limit of the clock would count what a busy machine does not
    finish as noticed. The test that runs where time runs out has failed.
    """
    common = ["-q", "-p", "no:cacheprovider", *options]
    found, last, running, slow, code = [], End(1, [], []), [], set(), "no answer"
    said = list(copy.lines(seconds, [[*common, *shlex.split(each)] for each in tests]))
    for word, _, rest in (line.partition(" ") for line in said):
        if word in ("quick", "slow"):
            running = [rest]
            slow |= {rest} if word == "slow" else set()
        elif word == "fails":
            last.failed.append(rest)
        elif word == "ends" and rest.isdigit():
            found.append(last._replace(code=int(rest)))
            last, running = End(1, [], []), []
        elif word == "over":
            code = rest
    if code in (str(-signal.SIGXCPU), str(-signal.SIGKILL)) and len(found) < len(tests):
        last.failed.extend(running)
        found += [last, *[End(1, [], [])] * (len(tests) - len(found) - 1)]
    codes = [each.code for each in found]
    if len(codes) < len(tests) or not set(codes) <= {0, 1, pytest.ExitCode.NO_TESTS_COLLECTED}:
        print(copy.output.read_text(encoding="utf-8")[-2000:], "\n".join(said)[-2000:])
        raise SystemExit(f"pytest {'; '.join(tests)} ended with {codes} and {code}.")
    for each in found:
        each.slow.extend(name for name in each.failed if name in slow)
    return found


@contextmanager
def copies_of_the_package(number: int) -> Iterator[Queue[Copy]]:
    with tempfile.TemporaryDirectory() as folder:
        copies: Queue[Copy] = Queue()
        for name in map(str, range(number)):
            copies.put(Copy(Path(folder) / name))
        try:
            yield copies
        finally:
            while not copies.empty():
                copies.get().close()
        if sys.pycache_prefix:
            shutil.rmtree(f"{sys.pycache_prefix}{folder}", ignore_errors=True)


def pass_as_it_is(
    items: list[Item], copies: Queue[Copy], seconds: float, options: list[str]
) -> None:
    """Run the tests of mutants without a mistake.

    Raises
    ------
    SystemExit
        If one of them fails.
    """
    copy, every = copies.get(), sorted({item.mutant.tests for item in items})
    found = ends(copy, every, seconds * len(every), options)
    copies.put(copy)
    wrong = [tests for tests, end in zip(every, found, strict=True) if end.code == 1]
    if wrong:
        raise SystemExit(f"Tests that fail on the package as it is: {'; '.join(wrong)}")


def outcome(item: Item, copies: Queue[Copy], seconds: float, options: list[str]) -> End:
    """How the tests of one mutant end."""
    copy = copies.get()
    path = copy.folder / "skscalablegp" / item.file
    right = path.read_text(encoding="utf-8")
    path.write_text(item.code, encoding="utf-8")
    try:
        return ends(copy, [item.mutant.tests], seconds, options)[0]
    finally:
        path.write_text(right, encoding="utf-8")
        copies.put(copy)


def survivors(
    items: list[Item], copies: Queue[Copy], seconds: float, name: str, marked: str
) -> list[Item]:
    """The mutants that no test with a mark notices."""
    options = ["-x", "-m", marked]

    def fails(item: Item) -> bool:
        started = time.perf_counter()
        killed = outcome(item, copies, seconds, options).code == 1
        if killed:
            took = time.perf_counter() - started
            print(
                f"killed by {name:15s} {took:5.0f} s  {item.family}: {item.mutant.name}",
                flush=True,
            )
        return killed

    pass_as_it_is(items, copies, seconds, options)
    with ThreadPoolExecutor(copies.qsize()) as pool:
        killed = list(pool.map(fails, items))
    return [item for item, dead in zip(items, killed, strict=True) if not dead]


def recorded(file: Path) -> dict[tuple[str, str], dict]:
    """The lines of a file by family and name."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {(line["family"], line["mutant"]): line for line in lines}


def needed_slow(known: dict[tuple[str, str], dict]) -> list[str]:
    """Slow tests of which each mutant that no quick test kills has one, greedily."""
    left = [line["slow"] for line in known.values() if line["slow"] == line["killers"] != []]
    found = []
    while left:
        found += [Counter(name for names in left for name in names).most_common(1)[0][0]]
        left = [names for names in left if found[-1] not in names]
    return sorted(found)


def record_killers(
    items: list[Item], copies: Queue[Copy], seconds: float, options: list[str], file: Path
) -> list[Item]:
    """Write which tests kill each mutant that a file lacks; gives the mutants that survive."""
    known = recorded(file) if file.exists() else {}
    left = [item for item in items if item.key not in known]
    if left:
        pass_as_it_is(left, copies, seconds, ["-x", *options])
    call = partial(outcome, copies=copies, seconds=seconds, options=options)
    with ThreadPoolExecutor(copies.qsize()) as pool, file.open("a", encoding="utf-8") as lines:
        for item, end in zip(left, pool.map(call, left), strict=True):
            line = {"family": item.family, "mutant": item.mutant.name, "killed": end.code == 1}
            line |= {"killers": end.failed, "slow": end.slow}
            known[item.key] = line
            print(json.dumps(line), file=lines, flush=True)
    print("\n".join(["Slow tests that kill what no quick test kills:", *needed_slow(known)]))
    return [item for item in items if not known[item.key]["killed"]]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("family", nargs="*", help=f"default: all of {', '.join(families())}")
    parser.add_argument("-k", default="", help="only mutants with these words, or of this file")
    parser.add_argument("--workers", type=int, default=1, help="mutants at a time")
    parser.add_argument("--quick", action="store_true", help="leave out tests marked slow")
    parser.add_argument("--all-killers", type=Path, metavar="FILE", help="JSON lines; see above")
    parser.add_argument("--since", type=Path, metavar="FILE", help="lines of an earlier run")
    parser.add_argument(
        "--seconds", type=float, default=600, help="processor time that one mutant's tests may take"
    )
    args = parser.parse_args()
    items = items_of(args.family)
    alive = [
        item
        for item in items
        if args.k in f"{item.mutant.name} {item.mutant.target} {item.file} {item.mutant.tests}"
    ]
    count, killed = len(alive), {}
    with copies_of_the_package(args.workers) as copies:
        if args.all_killers:
            options = ["-m", MARKS["make test"]] if args.quick else []
            left = record_killers(alive, copies, args.seconds, options, args.all_killers)
            killed["all tests"], alive = count - len(left), left
        else:
            for name, marked in list(MARKS.items())[: 1 if args.quick else None]:
                left = survivors(alive, copies, args.seconds, name, marked)
                killed[name], alive = len(alive) - len(left), left
    for item in alive:
        print(f"SURVIVES  {item.family}: {item.mutant.name}")
    by = ", ".join(f"{number} by {name}" for name, number in killed.items())
    print(f"{count} mutants, killed: {by}; {len(alive)} survive")
    needed = [item.mutant.name for item in alive if item.mutant.required]
    if needed:
        print("Required to be killed: " + "; ".join(needed))
    before = recorded(args.since) if args.since else {}
    gone = before.keys() - {item.key for item in items}
    lost = [
        key
        for key in sorted(gone | {item.key for item in alive})
        if before.get(key, {}).get("killed") and (not args.family or key[0] in args.family)
    ]
    for family, name in lost:
        print(f"KILLED BEFORE  {family}: {name}")
    return int(bool(needed or lost) or len(alive) > ALLOWED * count)


if __name__ == "__main__":
    raise SystemExit(main())
