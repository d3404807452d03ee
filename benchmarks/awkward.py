#!/usr/bin/env python3
"""Awkward columns and targets of Friedman's function; one line of JSON a fit.

    python benchmarks/awkward.py --estimators NNGPRegressor SVGPRegressor
    python benchmarks/awkward.py                                  # goes on where it was
    python benchmarks/awkward.py --report

2,100 training and 1,000 test rows of ten uniform columns, five of which matter; noise 1. Cases:

plain     the function as it is
entry     one training entry of 1e6 in a column that matters
levels    60 one-hot columns beside the others, none of which matters
targets   1e4 is added to five training targets
tails     every column is replaced by the exponential of 1.5 times its normal score
units     the columns are in units from 1e-9 to 1e9

Fits are made as by `starts.py`: default settings, random_state=0, a process with one thread each,
processor seconds as the clock. The report has the test R2 of each estimator, and of boosted trees
with their defaults. It counts the fits that lose more than 0.02 of the plain R2 to "entry" or to
"units", and those that are more than 0.03 behind trees in "levels". Far targets are "named" if a
warning names them with a remedy.
"""

import argparse
import os
from functools import cache
from pathlib import Path

import numpy as np
from scipy.stats import norm
from sklearn.datasets import make_friedman1
from sklearn.ensemble import HistGradientBoostingRegressor
from starts import estimators, fitted, read, revision, scored, stamp, write
from starts_problems import Table

HERE = Path(__file__).resolve().parent
CASES = ("plain", "entry", "levels", "targets", "tails", "units")
N, TEST = 2100, 1000
# R2 that a far entry or units may cost, and by which one-hot columns may be behind trees.
LOST, BEHIND = 0.02, 0.03


def main(argv=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="default: all regressors")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--max-seconds", type=float, default=15.0)
    parser.add_argument("--clock", choices=("cpu", "wall"), default="cpu")
    parser.add_argument("--cut-seconds", type=float, default=150.0)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core CPU")
    parser.add_argument("--out", default=str(HERE / "results" / "awkward.jsonl"))
    args = parser.parse_args(argv)
    if not args.report:
        measure(args)
    print(report(read(args.out)))


@cache
def table(case):
    """Training rows with what is awkward; test rows are like them, test targets are clean."""
    X, y = make_friedman1(N + TEST, noise=1.0, random_state=0)
    rng = np.random.default_rng(0)
    if case == "levels":
        X = np.hstack([X, *(np.eye(m)[rng.integers(m, size=len(X))] for m in (10, 20, 30))])
    if case == "tails":
        X = np.exp(1.5 * norm.ppf(np.clip(X, 1e-6, 1 - 1e-6)))
    if case == "units":
        X = X * 10.0 ** rng.permutation(np.linspace(-9, 9, X.shape[1]).round())
    rows, targets = X[:N].copy(), y[:N].copy()
    if case == "entry":
        rows[17, 0] = 1e6
    far = rng.permutation(N)[:5] if case == "targets" else []
    targets[far] += 1e4
    clean = np.setdiff1d(np.arange(N), far)
    return Table(rows, targets, X[N:], y[N:], np.arange(5), np.ones(5), clean)


def measure(args):
    """Append the lines that are missing for the package's commit."""
    package = str(HERE.parent)
    known = [name for name, classifies in estimators(package).items() if not classifies]
    if unknown := sorted(set(args.estimators or []) - set(known)):
        raise SystemExit(f"Unknown: {unknown}; there are {', '.join(known)}.")
    commit = revision(package, "skscalablegp")
    done = {
        (line["estimator"], line["case"]) for line in read(args.out) if line["commit"] == commit
    }
    for name in args.estimators or known:
        for case in args.cases:
            if (name, case) in done and commit[-1] != "+":
                continue
            cell = dict(estimator=name, case=case, max_seconds=args.max_seconds)
            given = dict(package=package, own_start=False, table=table(case), looks=seen)
            line = cell | dict(clock=args.clock) | fitted(cell | given, args)
            what = ["--estimators", name, "--cases", case]
            line |= stamp(args, commit, what)
            line["command"] = line["command"].replace("starts.py", "awkward.py")
            write(args.out, line)
            print(f"{name:26s} {case:8s} {line.get('r2')}  {line.get('error', '')}", flush=True)


def seen(model, drawn):
    """The scores, whether far targets are named, and the columns that the report lists."""
    facts = getattr(model, "fit_report_", {})
    named = str(facts.get("far_targets") or "")
    columns = [str(name) for name in facts.get("columns") or ()]
    return scored(model, drawn) | dict(far_targets=named[:300], columns=columns)


def trees(case):
    drawn = table(case)
    model = HistGradientBoostingRegressor(random_state=0).fit(drawn.X, drawn.y)
    return float(model.score(drawn.X_test, drawn.y_test))


def report(lines):
    """R2 of all cases, and what is missing."""
    found = {}
    for line in lines:
        found.setdefault(line["estimator"], {})[line["case"]] = line
    rivals = {case: trees(case) for case in CASES}
    out = [f"{'':26s} " + " ".join(f"{case:>9s}" for case in CASES)]
    out.append(f"{'boosted trees':26s} " + " ".join(f"{rivals[case]:9.3f}" for case in CASES))
    for name, cases in found.items():
        r2 = {case: line.get("r2") for case, line in cases.items()}
        shown = [f"{r2[c]:9.3f}" if r2.get(c) is not None else f"{'-':>9s}" for c in CASES]
        out.append(f"{name:26s} " + " ".join([*shown, *verdicts(cases, r2, rivals)]))
    return "\n".join(out)


def verdicts(cases, r2, rivals):
    """What a row of the table falls short of, in words."""
    said = [
        f"{case} loses {r2['plain'] - r2[case]:.3f}"
        for case in ("entry", "tails", "units")
        if None not in (r2.get("plain"), r2.get(case)) and r2[case] < r2["plain"] - LOST
    ]
    if r2.get("levels") is not None and r2["levels"] < rivals["levels"] - BEHIND:
        said.append(f"levels behind trees by {rivals['levels'] - r2['levels']:.3f}")
    said += [f"{case}: {line['error']}" for case, line in cases.items() if "error" in line]
    if "targets" in cases:
        named = bool(cases["targets"].get("far_targets")) and cases["targets"].get("warned")
        said.append("far targets named" if named else "far targets not named")
    return said


if __name__ == "__main__":
    main()
