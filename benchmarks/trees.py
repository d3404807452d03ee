#!/usr/bin/env python3
"""Sizes of the boosted trees among which stacks choose: one line of JSON for each set and size.

    python benchmarks/trees.py --datasets protein kin40k

Prints the RMSE on the tenth of the training rows that ends boosting, by which `BoostedTrees`
chooses, and the RMSE on the test rows, both in standard deviations of the training target. New
lines are added to benchmarks/results/trees.jsonl.
"""

import argparse
import datetime
import json
import os
import time
from pathlib import Path

from compare import DATASETS
from uci import load, versions

from skscalablegp.core.training import Budget
from skscalablegp.meta._trees import _CANDIDATES, BoostedTrees

OUT = Path(__file__).parent / "results" / "trees.jsonl"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--datasets", nargs="+", default=DATASETS, metavar="NAME")
    args = parser.parse_args()
    for name in args.datasets:
        X, X_test, y, y_test = load(name, 0, 0, 0, leaks=False)
        for leaves, on_a_line in _CANDIDATES:
            start = time.process_time()
            settings = None, 0, leaves, on_a_line, Budget(None)  # no weights, seed 0
            line, trees, _ = BoostedTrees()._fit(X, y, *settings)
            seconds = time.process_time() - start
            mean = trees.predict(X_test) + (0 if line is None else line.predict(X_test))
            report = {
                "benchmark": "trees",
                "dataset": name,
                "leaves": leaves,
                "on_a_line": on_a_line,
                "held_out_rmse": round(float((-2 * trees.validation_score_[-1]) ** 0.5), 5),
                "rmse": round(float(((mean - y_test) ** 2).mean() ** 0.5), 5),
                "cpu_seconds": round(seconds, 2),
                "date": datetime.date.today().isoformat(),
                "machine": f"{os.cpu_count()}-core CPU",
                "versions": versions(),
            }
            print(json.dumps(report), flush=True)
            with OUT.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
