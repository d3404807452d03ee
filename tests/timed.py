"""Processor seconds of each test file and of the slowest tests.

    make test PYTEST_ARGS="--seconds benchmarks/results/tests.jsonl"
    python tests/timed.py                  # what the last run of that file took, by folder and file
    python tests/timed.py FILE --slowest 30

A run appends one JSON line with the seconds of each file and of the slowest tests, by part: set-up,
call and teardown. Processor seconds are those of all threads of the process that runs a test and of
the processes that it started and waited for, so that a busy machine changes little. What belongs
to no test, such as imports and the collection, is `outside`.
"""

import argparse
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections import Counter, defaultdict
from datetime import date
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "tests.jsonl"
LIBRARIES = "numpy", "scipy", "scikit-learn", "torch"
SPENT = "processor seconds"  # of a report's properties


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    return sum(os.times()[:4])


class Timed:
    """Measures in each process that runs tests; the process that reports writes the line."""

    def __init__(self, config):
        self.config = config
        self.began = time.monotonic()
        self.parts = defaultdict(Counter)
        self.processes = Counter({"seconds": 0.0})

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item):
        return (yield from self.measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item):
        return (yield from self.measured(item))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item):
        return (yield from self.measured(item))

    def measured(self, item):
        before = processor_seconds()
        try:
            return (yield)
        finally:
            item.spent = processor_seconds() - before

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item):
        report = yield
        # Each report repeats the properties of the item; this one belongs to the part alone.
        report.user_properties = [*report.user_properties, (SPENT, round(item.spent, 3))]
        return report

    def pytest_runtest_logreport(self, report):
        self.parts[report.nodeid][report.when] += dict(report.user_properties).get(SPENT, 0.0)

    def pytest_testnodedown(self, node):  # a worker of pytest-xdist
        self.processes["workers"] += 1
        self.processes["seconds"] += node.workeroutput.get(SPENT, 0.0)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session):
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[SPENT] = processor_seconds()
            return
        with open(self.config.getoption("seconds"), "a", encoding="utf-8") as file:
            file.write(json.dumps(self.line(session)) + "\n")

    def line(self, session):
        tests = {name: sum(parts.values()) for name, parts in self.parts.items()}
        files = Counter()
        for name, spent in tests.items():
            files[name.partition("::")[0]] += spent
        slowest = sorted(tests, key=tests.get, reverse=True)
        in_tests = sum(tests.values())
        workers = self.processes["workers"]
        # Workers are children too, and have ended or not.
        own = sum(os.times()[:2]) if workers else processor_seconds()
        total = self.processes["seconds"] + own
        return {
            "seconds": round(total),
            "outside": round(total - in_tests),
            "wall": round(time.monotonic() - self.began),
            "tests": len(tests),
            "failed": session.testsfailed,
            "files": {name: round(spent, 1) for name, spent in files.most_common()},
            "slowest": {
                name: {part: round(s, 2) for part, s in self.parts[name].items() if s >= 0.01}
                for name in slowest[: self.config.getoption("slowest")]
            },
            "command": shlex.join(["pytest", *self.config.invocation_params.args]),
            "workers": max(workers, 1),
            "threads": int(os.environ.get("OMP_NUM_THREADS", "0")) or os.cpu_count(),
            "checked_calls": os.environ.get("CHECKED_CALLS", ""),
            "load": round(os.getloadavg()[1], 1) if hasattr(os, "getloadavg") else None,
            "date": date.today().isoformat(),
            "commit": commit(),
            "python": platform.python_version(),
            "versions": {
                name: version(name) for name in ("numpy", "scipy", "scikit-learn", "torch")
            },
            "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        }


def commit():
    """The commit of this checkout, with "+" if files have been changed since; None outside one."""

    def git(*words):
        said = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True)
        return said.stdout.strip()

    return git("rev-parse", "--short", "HEAD") + "+" * bool(git("status", "--porcelain")) or None


def shown(line, most):
    """The text that a reader wants of one line."""
    folders = Counter()
    for name, spent in line["files"].items():
        folders[str(Path(name).parent)] += spent
    heading = "{commit}, {date}: {seconds} processor seconds, {outside} of them outside of tests, "
    yield heading.format(**line) + f"{line['wall']} s of wall time, {line['tests']} tests"
    for title, spent in (("folders", folders), ("files", Counter(line["files"]))):
        yield f"\n{title}"
        yield from (f"{s:8.1f}  {name}" for name, s in spent.most_common(most))
    yield "\ntests"
    for name, parts in list(line["slowest"].items())[:most]:
        yield f"{sum(parts.values()):8.2f}  {name}  {parts}"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", nargs="?", type=Path, default=RESULTS)
    parser.add_argument("--slowest", type=int, default=40, help="how many of each are shown")
    args = parser.parse_args()
    last = json.loads(args.file.read_text("utf-8").splitlines()[-1])
    print("\n".join(shown(last, args.slowest)))


if __name__ == "__main__":
    sys.exit(main())
