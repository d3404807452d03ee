#!/usr/bin/env python3
"""Measure default priors of small tables: a line of JSON for each set, size and prior.

    python benchmarks/priors.py                          # all, about twenty minutes on one core
    python benchmarks/priors.py --sets friedman --rows 60 --prior none lengths
    python benchmarks/priors.py --report                 # only the summary

IterativeGPRegressor with its default kernel is fitted to 30 to 500 rows of twelve sets: functions
drawn from Gaussian processes, with noise and (exact-2, exact-5) without, Friedman's function, two
of scikit-learn's bundled sets and five UCI sets. The rule of the default was drawn from these; the
eleven sets of FRESH, which it had not seen, evaluate it:

    python benchmarks/priors.py --sets fresh --rows 30 60 120 500 --prior none noise

Rows are drawn anew for each of the `--draws`; up
to 1,000 others are for the test. nll is the mean negative log density of test targets and rmse
their error, for targets in units of their standard deviation; both are means over the draws, as is
the share inside 95 % intervals.

The priors are those of CANDIDATES, in units of the columns' standard deviations (length scales)
and of the target's variance. The summary has, by prior and number of rows, the mean difference of
the nll from that without priors, and in how many sets it is better, or worse, by more than 0.02.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
import warnings
from pathlib import Path

HERE = Path(__file__).resolve().parent
TEST_ROWS = 1000
ROWS = (30, 60, 120, 180, 250, 500)
UCI = ("airfoil", "concrete", "energy", "housing", "protein")
SETS = ("drawn-2", "drawn-8", "exact-2", "exact-5", "friedman", "diabetes", "breast-cancer", *UCI)
FRESH = (
    *("drawn-4", "drawn-12", "exact-3", "friedman2", "friedman3"),
    *("bike", "elevators", "keggdirected", "kin40k", "pol", "yacht"),
)
CANDIDATES = (
    "none",
    "lengths",
    "wide lengths",
    "noise",
    "all",
    "wide all",
    "half-Cauchy",
    "long",
    "weak noise",
)
CLEAR = 0.02


def priors(name, X):
    """The candidate of that name for a table, by the default kernel's names."""
    import numpy as np

    from skscalablegp.priors import HalfCauchy, LogNormal

    # Distances grow with the root of the columns, and with them the scales of what they matter.
    typical = X.std(0) * np.sqrt(X.shape[1])
    typical = np.where(typical > 0, typical, 1.0)
    lengths = {"k1__k2__length_scale": LogNormal(typical, 1.0)}
    wide = {"k1__k2__length_scale": LogNormal(typical, 3**0.5)}
    noise = {"k2__noise_level": LogNormal(0.1, 1.5)}
    signal = {"k1__k1__constant_value": LogNormal(1.0, 1.0)}
    return {
        "none": None,
        "lengths": lengths,
        "wide lengths": wide,
        "noise": noise,
        "weak noise": {"k2__noise_level": LogNormal(0.1, 2.5)},
        "all": lengths | noise | signal,
        "wide all": wide | noise | signal,
        "half-Cauchy": {"k1__k2__length_scale": HalfCauchy(typical)} | noise,
        "long": {"k1__k2__length_scale": HalfCauchy(10 * typical)} | noise,
    }[name]


def table(name, n, draw):
    """Rows and targets for training and for tests."""
    import numpy as np
    from calibration import drawn_function
    from sklearn import datasets

    rng = np.random.default_rng([draw, *name.encode()])
    total = n + TEST_ROWS
    kind, _, columns = name.partition("-")
    if kind in ("drawn", "exact"):
        d = int(columns)
        X = rng.uniform(-2, 2, (total, d))
        y = drawn_function(rng, d)(X)
        y = y + (0.2 if kind == "drawn" else 0.0) * y.std() * rng.standard_normal(total)
    elif name == "friedman":
        X, y = datasets.make_friedman1(total, 10, noise=1.0, random_state=draw)
    elif name in ("friedman2", "friedman3"):
        noise = {"friedman2": 100.0, "friedman3": 0.1}[name]
        X, y = getattr(datasets, f"make_{name}")(total, noise=noise, random_state=draw)
    elif name == "diabetes":
        X, y = datasets.load_diabetes(return_X_y=True)
    elif name == "breast-cancer":
        # The mean compactness from the other columns.
        X = datasets.load_breast_cancer(return_X_y=True)[0]
        X, y = np.delete(X, 5, axis=1), X[:, 5]
    else:
        from skscalablegp.datasets import fetch_uci

        bunch = fetch_uci(name)
        X, y = np.asarray(bunch.data, dtype=float), np.asarray(bunch.target, dtype=float)
    order = rng.permutation(len(X))[: n + TEST_ROWS]
    X, y = X[order], (y[order] - y.mean()) / y.std()
    return X[:n], X[n:], y[:n], y[n:]


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    out = Path(args.out)
    if not args.report:
        import torch

        torch.set_num_threads(args.threads)
        known = read(out)
        for n in args.rows:
            for name in args.sets:
                for prior in args.prior:
                    if (name, n, prior) not in known and n + 40 <= rows_of(name):
                        line = measured(name, n, prior, args, argv)
                        with out.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(line, allow_nan=False) + "\n")
    lines = read(out)
    for kind, sets in (("sets that chose the rule", SETS), ("fresh sets", FRESH)):
        print(f"{kind}\n{summary({k: line for k, line in lines.items() if k[0] in sets})}\n")


def rows_of(name):
    """How many rows a set has."""
    return {"diabetes": 442, "housing": 506, "breast-cancer": 569, "yacht": 308}.get(name, 10**9)


def measured(name, n, prior, args, argv):
    """The mean scores of some draws."""
    import numpy as np

    from skscalablegp import IterativeGPRegressor
    from skscalablegp.metrics import interval_coverage, nlpd

    found = []
    start = time.process_time()
    for draw in range(args.draws):
        X, X_test, y, y_test = table(name, n, draw)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model = IterativeGPRegressor(priors=priors(prior, X), random_state=0).fit(X, y)
            mean, std = model.predict(X_test, return_std=True)
        rmse = np.sqrt(np.mean((y_test - mean) ** 2))
        found.append((nlpd(y_test, mean, std), rmse, interval_coverage(y_test, mean, std)))
    nll, rmse, coverage = np.mean(found, axis=0)
    return dict(
        benchmark="priors",
        dataset=name,
        n_train=n,
        prior=prior,
        nll=round(float(nll), 4),
        rmse=round(float(rmse), 4),
        coverage95=round(float(coverage), 4),
        n_columns=X.shape[1],
        nlls=[round(float(row[0]), 4) for row in found],
        cpu_seconds=round(time.process_time() - start, 2),
        threads=args.threads,
        machine=args.machine,
        command=shlex.join(["python", "benchmarks/priors.py", *(argv or sys.argv[1:])]),
    )


def read(out):
    """The last line of each set, size and prior."""
    text = out.read_text(encoding="utf-8") if out.exists() else ""
    lines = [json.loads(line) for line in text.splitlines() if line]
    return {(line["dataset"], line["n_train"], line["prior"]): line for line in lines}


def summary(lines):
    """A table of differences from no priors, by prior and rows."""
    rows = sorted({n for _, n, _ in lines})
    text = [f"{'prior':<14}" + "".join(f"{f'n = {n}':>22}" for n in rows)]
    for prior in CANDIDATES[1:]:
        cells = []
        for n in rows:
            both = [
                line["nll"] - lines[(name, n, "none")]["nll"]
                for (name, m, p), line in lines.items()
                if (m, p) == (n, prior) and (name, n, "none") in lines
            ]
            better, worse = sum(x < -CLEAR for x in both), sum(x > CLEAR for x in both)
            mean = sum(both) / max(len(both), 1)
            cells.append(f"{mean:>+10.3f} ({better} +, {worse} -)".rjust(22))
        text.append(f"{prior:<14}" + "".join(cells))
    return "\n".join(text)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS), metavar="NAME")
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS), metavar="N")
    parser.add_argument("--prior", nargs="+", default=list(CANDIDATES), choices=CANDIDATES)
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    parser.add_argument("--out", default=str(HERE / "results" / "priors.jsonl"))
    args = parser.parse_args(argv)
    args.sets = list(FRESH) if args.sets == ["fresh"] else args.sets
    if unknown := set(args.sets) - {*SETS, *FRESH}:
        parser.error(f"unknown sets: {sorted(unknown)}")
    return args


if __name__ == "__main__":
    main()
