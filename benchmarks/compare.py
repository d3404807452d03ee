#!/usr/bin/env python3
"""Compare estimators on splits of UCI regression sets: one line of JSON a cell.

    python benchmarks/compare.py --datasets pol bike --estimators PoERegressor SVGPRegressor
    python benchmarks/compare.py --max-seconds 600          # everything, on the six larger sets
    python benchmarks/compare_report.py                     # tables and picture for the docs

A cell is one estimator, data set and split. Each runs in a process of its own; those that the
output file already has, under the same settings, are skipped, so that a run goes on where it was
stopped. A cell that fails is a line with its error, one that is cut says so.

Estimators run with default settings and ``max_seconds``, the budget of a whole fit; with --clock
cpu it counts processor seconds, which a busy machine does not falsify. (Lines before 2026-11-24
have a callback in its place, which ended training alone: the last solve was not counted.) A whole
cell, predictions included, is cut at --cut-seconds. Besides the package's estimators there are

HistGradientBoostingRegressor  13 further models of quantiles give CRPS (pinball loss integrated
                               over the levels) and coverage; its NLPD is that of normal densities
                               of one standard deviation, the error on a held-out tenth
GaussianProcessRegressor       scikit-learn's, on 2,000 random rows, with this package's default
                               kernel; its L-BFGS ends at --max-seconds
GPyTorchSVGP                   where gpytorch is installed: 512 inducing points, 30 epochs of Adam

Inputs and target are standardised by the training rows; rmse, nll and crps are in those units.
bike has 15 of its 17 columns: the sum of the other two is the number whose logarithm is the target.
"""

import argparse
import datetime
import importlib
import json
import os
import platform
import resource
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
DATASETS = ["pol", "elevators", "bike", "kin40k", "protein", "keggdirected"]
BASELINES = ["HistGradientBoostingRegressor", "GaussianProcessRegressor", "GPyTorchSVGP"]
# The script whose cells these are, where its baselines are, and its lines; rivals.py has its own.
SCRIPT, MODULE, RESULTS = __file__, "compare_baselines", "compare.jsonl"
# What makes two cells the same.
KEY = ("estimator", "dataset", "split", "n_train_asked", "seed", "max_seconds", "clock", "threads")
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


def main(argv=None):
    args = parse_args(argv)
    if args.cell:
        return run_cell(json.loads(args.cell))
    if args.cut_seconds is None:
        args.cut_seconds = 2 * args.max_seconds
    known = known_estimators()
    if unknown := sorted(set(args.estimators or []) - set(known)):
        raise SystemExit(f"Unknown estimators {unknown}: there are {', '.join(known)}.")
    out = Path(args.out)
    out.parent.mkdir(parents=True, exist_ok=True)
    done = finished(out)
    for estimator in args.estimators or known:
        for dataset in args.datasets:
            for split in args.splits:
                cell = dict(
                    estimator=estimator,
                    dataset=dataset,
                    split=split,
                    n_train_asked=args.n_train,
                    seed=args.seed,
                    max_seconds=args.max_seconds,
                    clock=args.clock,
                    threads=args.threads,
                )
                if tuple(cell.values()) in done:
                    continue
                line = measure(cell, args)
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, allow_nan=False) + "\n")
                print(summary(line), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=DATASETS, metavar="NAME")
    parser.add_argument(
        "--estimators", nargs="+", metavar="NAME", help="default: the package's and the baselines"
    )
    parser.add_argument("--splits", nargs="+", type=int, default=[0], help="published, 0 to 9")
    parser.add_argument("--max-seconds", type=float, default=600.0, help="of training")
    parser.add_argument(
        "--cut-seconds", type=float, help="of a whole cell; default: twice --max-seconds"
    )
    parser.add_argument(
        "--clock",
        choices=("wall", "cpu"),
        default="wall",
        help="what both limits count; with cpu, ten times as much on the wall ends a cell too",
    )
    parser.add_argument("--n-train", type=int, default=0, metavar="N", help="rows (0: all)")
    parser.add_argument("--seed", type=int, default=0, help="of rows and of random_state")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(HERE / "results" / RESULTS))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    return parser.parse_args(argv)


def finished(out):
    """The cells that a file has; what was not installed is tried again."""
    if not out.exists():
        return set()
    lines = [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines() if text]
    return {
        tuple(line.get(name) for name in KEY)
        for line in lines
        if line.get("status") != "not installed"
    }


def known_estimators():
    """The package's regressors, whatever they are by now, then the baselines."""
    from sklearn.base import is_regressor

    import skscalablegp

    classes = [getattr(skscalablegp, name) for name in skscalablegp.__all__ if name[0].isupper()]
    own = [cls.__name__ for cls in classes if isinstance(cls, type) and is_regressor(cls())]
    return own + BASELINES


# ------------------------------------------------------------------ the parent's side of a cell


def measure(cell, args):
    """One line, whatever happens in the cell's process."""
    with tempfile.TemporaryFile("w+") as said, tempfile.TemporaryFile("w+") as complained:
        load = os.getloadavg()[0]
        start = time.perf_counter()
        child = subprocess.Popen(
            [sys.executable, SCRIPT, "--cell", json.dumps(cell | {"cut": args.cut_seconds})],
            stdout=said,
            stderr=complained,
            env=os.environ | dict.fromkeys(THREADS, str(cell["threads"])),
        )
        on_the_wall = args.cut_seconds if args.clock == "wall" else 60 + 10 * args.cut_seconds
        status, usage, cut = wait(child.pid, on_the_wall)
        seconds = time.perf_counter() - start
        child.returncode = status
        said.seek(0)
        complained.seek(0)
        reports = [json.loads(text) for text in said.read().splitlines() if text[:1] == "{"]
        errors = complained.read().strip().splitlines()
    line = cell | {"status": "failed"}
    for report in reports:
        line |= report
    stage = line.pop("stage", "start")
    if cut and line["status"] != "ok":
        limit = f"{args.cut_seconds:g} s ({args.clock} clock)"
        line |= dict(status="cut", error=f"cut after {limit}, during: {stage}")
    elif line["status"] == "failed":
        reason = errors[-1] if errors else f"exit status {status}, during: {stage}"
        line.setdefault("error", reason[:500])
    command = ["python", f"benchmarks/{Path(SCRIPT).name}"]
    for option in ("datasets", "estimators", "splits"):
        command += [f"--{option}", str(cell[option[:-1]])]
    for option in ("max_seconds", "clock", "threads", "seed"):
        command += [f"--{option.replace('_', '-')}", str(cell[option])]
    if cell["n_train_asked"]:
        command += ["--n-train", str(cell["n_train_asked"])]
    return line | dict(
        cut_seconds=args.cut_seconds,
        total_seconds=round(seconds, 1),
        total_cpu_seconds=round(usage.ru_utime + usage.ru_stime, 1),
        peak_rss_mb=round(usage.ru_maxrss / 2 ** (20 if sys.platform == "darwin" else 10), 1),
        load=round((load + os.getloadavg()[0]) / 2, 1),
        machine=args.machine,
        date=datetime.date.today().isoformat(),
        revision=revision(),
        command=shlex.join(command),
    )


def wait(pid, limit):
    """Status and resource usage of a child, and whether a limit ended it."""
    end, cut = time.monotonic() + limit, False
    while True:
        found, status, usage = os.wait4(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(status)
            return status, usage, cut or status == -signal.SIGXCPU
        if time.monotonic() > end and not cut:
            os.kill(pid, signal.SIGKILL)
            cut = True
        time.sleep(0.05)


def revision():
    """The commit of this checkout, None outside one."""
    found = subprocess.run(
        ["git", "-C", str(HERE), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return found.stdout.strip() or None


def summary(line):
    numbers = "  ".join(
        f"{name} {line[name]:.4g}"
        for name in ("rmse", "nll", "crps", "fit_seconds", "predict_seconds", "peak_rss_mb")
        if line.get(name) is not None
    )
    return (
        f"{line['estimator']} {line['dataset']}: {line['status']} {numbers}{line.get('error', '')}"
    )


# ------------------------------------------------------------------ the cell's own process


def run_cell(cell):
    """Fit, predict, score; what is known is printed as soon as it is."""
    sys.path.insert(0, str(HERE))
    import torch
    from uci import load, plain, versions

    torch.set_num_threads(cell["threads"])

    def say(**facts):
        print(json.dumps(plain(facts), allow_nan=False), flush=True)

    say(stage="load", versions=versions())
    by_cpu = cell["clock"] == "cpu"
    budget = Budget(cell["max_seconds"], time.process_time if by_cpu else time.perf_counter)
    try:
        model = make(cell, budget)
    except ModuleNotFoundError as error:
        return say(status="not installed", error=str(error))
    rows = (cell[name] for name in ("dataset", "split", "n_train_asked", "seed"))
    X, X_test, y, y_test = load(*rows, leaks=False)
    say(stage="fit", n_train=len(X), n_test=len(X_test), n_features=X.shape[1])
    if by_cpu:  # The system ends the process; whole seconds are all it knows.
        limit = int(time.process_time() + cell["cut"] * cell["threads"]) + 1
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            start = clocks()
            budget.begin()
            with budgets_of(cell["clock"]):
                model.fit(X, y)
            say(stage="predict", **since(start, "fit"), n_iter=getattr(model, "n_iter_", None))
            start = clocks()
            prediction = predict(model, X_test)
            say(stage="score", **since(start, "predict"))
            say(status="ok", **score(model, y_test, prediction))
        except Exception as error:
            say(status="failed", error=f"{type(error).__name__}: {error}"[:500])
    say(
        n_used=getattr(model, "n_rows_", len(X)),
        stop_reason=(getattr(model, "fit_report_", None) or {}).get("status"),
        warnings=sorted({f"{w.category.__name__}: {w.message}"[:300] for w in caught}),
    )


@contextmanager
def budgets_of(kind):
    """The package's budgets count seconds of the wall, or those of this process's processors."""
    from skscalablegp._clock import clock

    with clock(time.process_time if kind == "cpu" else time.perf_counter):
        yield


def clocks():
    return time.perf_counter(), time.process_time()


def since(start, name):
    wall, cpu = (now - then for now, then in zip(clocks(), start, strict=True))
    return {f"{name}_seconds": round(wall, 3), f"{name}_cpu_seconds": round(cpu, 3)}


def make(cell, budget):
    """The estimator with its time budget and seed."""
    import skscalablegp

    name = cell["estimator"]
    if name in BASELINES:
        return getattr(importlib.import_module(MODULE), name)(budget, cell["seed"])
    model = getattr(skscalablegp, name)()
    if name == "LOVEPredictor":
        model.set_params(estimator=skscalablegp.KISSGPRegressor())
    for parameter in model.get_params():
        last = parameter.rpartition("__")[2]
        if last == "random_state":
            model.set_params(**{parameter: cell["seed"]})
        elif last == "max_seconds":
            model.set_params(**{parameter: cell["max_seconds"]})
    return model


class Budget:
    """Seconds on a clock; as a callback it ends training when they are up."""

    def __init__(self, seconds, clock):
        self.seconds, self.clock, self.start = seconds, clock, clock()

    def begin(self):
        self.start = self.clock()

    def __call__(self, step=None):
        return self.clock() - self.start > self.seconds

    def __deepcopy__(self, memo):
        # scikit-learn's clone, before each fold, starts the clock anew.
        return Budget(self.seconds, self.clock)


def predict(model, X):
    if hasattr(model, "distribution"):
        return model.distribution(X)
    mean, std = model.predict(X, return_std=True)
    return dict(mean=mean, std=std)


def score(model, y, prediction):
    from uci import scores

    result = scores(y, prediction)
    if hasattr(model, "score_quantiles"):
        result |= model.score_quantiles(y, prediction["quantiles"])
    return result


if __name__ == "__main__":
    main()
