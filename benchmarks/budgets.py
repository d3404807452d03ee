#!/usr/bin/env python3
"""Time budgets asked and taken, and how soon an interrupt is served; one JSON line a fit.

    python benchmarks/budgets.py --rows 5000 20000 --max-seconds 5
    python benchmarks/budgets.py --estimator SSRFFRegressor --rows 5000 --interrupt 2
    python benchmarks/budgets.py --part interrupts --rows 20000 --clock cpu

Every fit is a process of its own, so that memory and threads start anew; ``--interrupt`` sends it a
SIGINT after each of so many seconds, and again a second later, and reports how long each waited for
Python to act on it: no call may last longer. Run it on a quiet machine: every line has the load. On
a busy one ``--clock cpu`` has one thread, whose processor seconds are the clock of budgets and of
interrupts, too. ``--memory 3`` limits the addresses of the process to 3 GiB.

``--part interrupts`` interrupts three fits of each estimator once, at random times, and reports the
seconds until each has returned its model, or raised a KeyboardInterrupt; null if it had ended.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import time
import warnings
from datetime import date
from functools import partial
from pathlib import Path

import numpy as np

if "cpu" in sys.argv:
    # Before the package takes its clock.
    time.perf_counter = time.process_time

import skscalablegp

ESTIMATORS = [name for name in skscalablegp.__all__ if name.endswith(("Regressor", "Classifier"))]
ESTIMATORS += ["LOVEPredictor"]
# A fit is given up after so many seconds.
LARGEST = 600
# A fit that still works on its model so many seconds after an interrupt gets another one.
AGAIN = 1.0
# Range of random times of interrupts, in seconds.
INTERRUPTED = (0.2, 4.0)
# Makes numerical libraries keep to one thread.
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


def table(n, classes, d=5):
    """Columns, of which four matter, a smooth function, noise of a tenth of its size."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, d))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    y = f + 0.1 * rng.standard_normal(n)
    return X, (y > 0).astype(int) if classes else y


def fit(name, n, seconds, d):
    """In the process of its own: prints one line when the fit begins and one when it has ended."""
    X, y = table(n, name.endswith("Classifier"), d)
    model = getattr(skscalablegp, name)(max_seconds=seconds, random_state=0)
    signal.signal(signal.SIGINT, serve)
    print("begins", flush=True)
    started, line = time.perf_counter(), {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(X, y)
        report = model.fit_report_
        line = {"status": report.status, "n_iter": report.n_iter}
        line["stages"] = {stage: round(took, 2) for stage, took in report.seconds.items()}
    except (MemoryError, TimeoutError, ValueError, KeyboardInterrupt) as error:
        line = {"status": type(error).__name__, "message": str(error)[:200]}
    line["taken"] = round(time.perf_counter() - started, 2)
    if "stages" in line:
        # What has been kept, on other rows.
        X, y = table(n + 1000, name.endswith("Classifier"), d)
        line["score"] = round(float(model.score(X[n:], y[n:])), 4)
    line["GiB"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)
    print(json.dumps(line), flush=True)


def interrupted(name, n, clock):
    """The line of three fits that are interrupted at random times of the clock."""
    kind, number = signal.ITIMER_REAL, signal.SIGALRM
    if clock == "cpu":
        kind, number = signal.ITIMER_PROF, signal.SIGPROF
    X, y = table(n, name.endswith("Classifier"))
    signal.signal(number, signal.default_int_handler)
    line = {"estimator": name, "n": n, "clock": clock, "load": round(os.getloadavg()[0], 1)}
    line |= {"interrupted": [], "returned_after": [], "status": []}
    for wait in np.random.default_rng(0).uniform(*INTERRUPTED, 3).round(2):
        model = getattr(skscalablegp, name)(random_state=0)
        started = time.perf_counter()
        signal.setitimer(kind, wait)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(X, y)
                signal.setitimer(kind, 0)
            status = model.fit_report_.status
        except KeyboardInterrupt:
            status = "KeyboardInterrupt"
        took = time.perf_counter() - started
        signal.setitimer(kind, 0)
        line["interrupted"].append(wait)
        late = round(max(took - wait, 0.0), 2)
        line["returned_after"].append(late if "nterrupt" in status else None)
        line["status"].append(status)
    return line | {"cores": os.cpu_count(), "date": date.today().isoformat()}


def serve(number, frame):
    """Tell when Python could act on a signal, by a clock that is the parent's, too."""
    print(time.process_time() if "cpu" in sys.argv else time.monotonic(), flush=True)
    signal.default_int_handler(number, frame)


def measured(name, n, arguments, interrupt):
    """The line of one fit."""
    seconds = arguments.max_seconds if interrupt is None else float(LARGEST)
    child = subprocess.Popen(
        [sys.executable, __file__, "--child", name, *map(str, (n, seconds, arguments.columns))]
        + [arguments.clock],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | (ONE_THREAD if arguments.clock == "cpu" else {}),
        preexec_fn=None if arguments.memory is None else lambda: limited(arguments.memory),
    )
    child.stdout.readline()
    line = {"estimator": name, "n": n, "asked": seconds, "load": round(os.getloadavg()[0], 1)}
    line["columns"] = arguments.columns
    clock = time.monotonic if arguments.clock == "wall" else partial(processor_seconds, child)
    begun, served, last = clock(), [], ""
    for wait in [] if interrupt is None else [interrupt, AGAIN]:
        while not ended(child) and (sent := clock()) < begun + wait:
            time.sleep(0.01)
        if ended(child):
            break
        child.send_signal(signal.SIGINT)
        line["interrupted"] = interrupt
        said = child.stdout.readline()
        if not said or said.startswith("{"):
            last = said
            break
        begun = float(said)
        served.append(round(begun - sent, 2))
    try:
        last = (last + child.communicate(timeout=LARGEST)[0]).strip()
        # A process that says nothing was killed, or a signal came after its fit.
        died = {"status": "died", "code": child.returncode}
        line |= json.loads(last.splitlines()[-1]) if last else died
    except subprocess.TimeoutExpired:
        child.kill()
        line |= {"status": "given up", "taken": LARGEST}
    if "interrupted" in line:
        line["served_after"] = served
    elif "taken" in line:
        line["share"] = round(line["taken"] / seconds, 2)
    line |= {"clock": arguments.clock, "memory": arguments.memory, "cores": os.cpu_count()}
    return line | {"date": date.today().isoformat()}


def ended(child):
    """Whether a process has ended, which leaves its processor seconds to be read."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def processor_seconds(child):
    """Processor seconds of a process that has not been waited for."""
    ticks = Path(f"/proc/{child.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")


def limited(gib):
    """Limit the addresses of this process."""
    resource.setrlimit(resource.RLIMIT_AS, (int(gib * 2**30),) * 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("budgets", "interrupts"), default="budgets")
    parser.add_argument("--estimator", nargs="+", default=ESTIMATORS, choices=ESTIMATORS)
    parser.add_argument("--rows", nargs="+", type=int, default=[5000, 20000])
    parser.add_argument("--columns", type=int, default=5)
    parser.add_argument("--max-seconds", type=float, default=5.0)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--memory", type=float, help="most GiB of addresses")
    parser.add_argument(
        "--interrupt", nargs="+", type=float, help="seconds until SIGINT; no budget is set"
    )
    parser.add_argument("--child", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        name, n, seconds, d, _ = arguments.child
        fit(name, int(n), float(seconds), int(d))
        return
    for n in arguments.rows:
        for name in arguments.estimator:
            if arguments.part == "interrupts":
                print(json.dumps(interrupted(name, n, arguments.clock)), flush=True)
                continue
            for interrupt in arguments.interrupt or [None]:
                print(json.dumps(measured(name, n, arguments, interrupt)), flush=True)


if __name__ == "__main__":
    main()
