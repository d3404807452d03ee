#!/usr/bin/env python3
"""Every regressor against inducing points, by cross-validation on the same folds.

    python benchmarks/cross_val.py                                   # all, on the six larger sets
    python benchmarks/cross_val.py --datasets pol --estimators RRCGRegressor QSGPRegressor
    python benchmarks/cross_val.py --n 3300 --folds 3 --max-seconds 6 --clock cpu
    python benchmarks/cross_val.py --report                          # the tables, nothing measured

A cell is one estimator on one data set: a pipeline of StandardScaler and the estimator at default
settings, scored by scikit-learn's ``cross_validate`` on --n rows. Cells that the output file has,
under the same settings, are skipped, so that a run goes on where it was stopped. A cell that fails
is a line with its error. --max-seconds is the estimators' `max_seconds`, which counts elapsed
seconds; with --clock cpu it counts processor seconds, which a busy machine does not falsify. bike
has 15 of its 17 columns, as in compare.py.

The tables show each score, and its difference from that of --baseline fold by fold (larger is
better for all scores). Training sets of different folds share rows, so that the standard error of
the mean difference is corrected after Nadeau and Bengio (2003, Machine Learning 52): the variance
of the differences times 1 / k + n_test / n_train.
"""

import argparse
import datetime
import json
import os
import shlex
import sys
import time
import warnings
from pathlib import Path

from compare import (
    BASELINES,
    DATASETS,
    HERE,
    Budget,
    budgets_of,
    known_estimators,
    make,
    revision,
)
from uci import LEAKS

SCORES = ("nlpd", "crps", "rmse")
KEY = ("estimator", "dataset", "n_asked", "folds", "seed", "max_seconds", "clock")


def main(argv=None):
    args = parse_args(argv)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    out = Path(args.out)
    lines = read(out)
    if not args.report:
        measure_all(args, out, {tuple(line[name] for name in KEY) for line in lines})
        lines = read(out)
    for dataset in args.datasets:
        chosen = {}
        for line in lines:
            same = all(line[k] == v for k, v in settings(args).items())
            if same and line["dataset"] == dataset and line["status"] == "ok":
                chosen[line["estimator"]] = line
        if args.baseline in chosen:
            print(table(dataset, chosen, args.baseline))


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=DATASETS, metavar="NAME")
    parser.add_argument("--estimators", nargs="+", metavar="NAME", help="default: the package's")
    parser.add_argument("--baseline", default="SVGPRegressor", metavar="NAME")
    parser.add_argument("--n", type=int, default=2000, help="rows, all folds together (0: all)")
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--max-seconds", type=float, default=60.0, help="of one fit")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="of that limit")
    parser.add_argument("--seed", type=int, default=0, help="of rows, folds and random_state")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default="2-core x86-64 CPU")
    parser.add_argument("--report", action="store_true", help="only print the tables")
    parser.add_argument("--out", default=str(HERE / "results" / "cross_val.jsonl"))
    return parser.parse_args(argv)


def settings(args):
    names = dict(n_asked="n", folds="folds", seed="seed", max_seconds="max_seconds", clock="clock")
    return {key: getattr(args, name) for key, name in names.items()}


def read(out):
    if not out.exists():
        return []
    return [json.loads(text) for text in out.read_text(encoding="utf-8").splitlines() if text]


def measure_all(args, out, done):
    import torch
    from uci import versions

    torch.set_num_threads(args.threads)
    out.parent.mkdir(parents=True, exist_ok=True)
    own = [name for name in known_estimators() if name not in BASELINES]
    names = args.estimators or own
    names = list(dict.fromkeys([args.baseline, *names]))
    for dataset in args.datasets:
        for name in names:
            cell = dict(estimator=name, dataset=dataset, **settings(args))
            if tuple(cell[k] for k in KEY) in done:
                continue
            line = cell | measure(cell)
            line |= dict(
                threads=args.threads,
                load=round(os.getloadavg()[0], 1),
                machine=args.machine,
                date=datetime.date.today().isoformat(),
                revision=revision(),
                versions=versions(),
                command=shlex.join(["python", "benchmarks/cross_val.py", *sys.argv[1:]]),
            )
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, allow_nan=False) + "\n")
            nlpd = line.get("nlpd")
            found = line.get("error") or f"NLPD {sum(nlpd) / len(nlpd):.3f}"
            print(f"{name} {dataset}: {found}", flush=True)


def measure(cell):
    """Scores of each fold, with the sign that makes larger better."""
    import numpy as np
    from sklearn.model_selection import KFold, cross_validate
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from skscalablegp.datasets import fetch_uci
    from skscalablegp.metrics import coverage_scorer, neg_crps_scorer, neg_nlpd_scorer

    X, y = fetch_uci(cell["dataset"], return_X_y=True)
    X = np.delete(X, LEAKS.get(cell["dataset"], ()), axis=1)
    rows = np.random.RandomState(cell["seed"]).permutation(len(X))[: cell["n_asked"] or None]
    X, y = X[rows], (y[rows] - y[rows].mean()) / y[rows].std()
    folds = KFold(cell["folds"], shuffle=True, random_state=cell["seed"])
    scoring = dict(
        nlpd=neg_nlpd_scorer,
        crps=neg_crps_scorer,
        rmse="neg_root_mean_squared_error",
        coverage=coverage_scorer(0.95),
    )
    budget = Budget(cell["max_seconds"], time.process_time)
    model = make_pipeline(StandardScaler(), make(cell, budget))
    start = time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with budgets_of(cell["clock"]):
                found = cross_validate(model, X, y, cv=folds, scoring=scoring, error_score="raise")
        except Exception as error:
            return dict(status="failed", error=f"{type(error).__name__}: {error}"[:500])
    return dict(
        status="ok",
        n=len(X),
        **{name: [round(float(v), 5) for v in found[f"test_{name}"]] for name in scoring},
        cpu_seconds=round(time.process_time() - start, 1),
        warnings=sorted({f"{w.category.__name__}: {w.message}"[:300] for w in caught}),
    )


def table(dataset, lines, baseline):
    """Means, and differences from the baseline fold by fold."""
    import numpy as np

    reference, text = lines[baseline], []
    for name in SCORES:
        text.append(f"\n{dataset}, {reference['n']} rows: negative {name}, less {baseline}'s")
        for estimator, line in sorted(lines.items(), key=lambda item: -np.mean(item[1][name])):
            difference = np.subtract(line[name], reference[name])
            k = len(difference)
            error = np.sqrt((1 / k + 1 / (k - 1)) * difference.var(ddof=1))
            folds = " ".join(f"{value:+.3f}" for value in difference)
            text.append(
                f"  {estimator:22s}{np.mean(line[name]):8.3f}   mean difference "
                f"{difference.mean():+.3f} +- {error:.3f}   folds {folds}"
                f"   95% coverage {np.mean(line['coverage']):.3f}   cpu s {line['cpu_seconds']}"
            )
    return "\n".join(text)


if __name__ == "__main__":
    main()
