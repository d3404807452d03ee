#!/usr/bin/env python3
"""What a reader of a fit meets: the package's files that a fit and a prediction enter.

    python benchmarks/traced.py
    python benchmarks/traced.py --estimator SVGPRegressor --rows 60

Prints a JSON line with the numbers of files that functions are called in, and how often calls go
from one file to another; imports, which the first fit makes, do not count. With ``--list``, the
files.
"""

import argparse
import json
import subprocess
import sys
import threading
import warnings
from datetime import date
from pathlib import Path

import numpy as np

import skscalablegp

ROOT = Path(skscalablegp.__file__).parent


class Trace:
    """Calls of the package's functions, in all threads."""

    def __init__(self):
        self.files, self.changes = set(), 0

    def __call__(self, frame, event, arg):
        if event != "call" or frame.f_code.co_name == "<module>":
            return
        path = frame.f_code.co_filename
        if path.startswith(str(ROOT)):
            self.files.add(str(Path(path).relative_to(ROOT)))
            caller = frame.f_back.f_code.co_filename if frame.f_back else ""
            self.changes += caller.startswith(str(ROOT)) and caller != path

    def __enter__(self):
        threading.setprofile(self)
        sys.setprofile(self)
        return self

    def __exit__(self, *error):
        sys.setprofile(None)
        threading.setprofile(None)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--estimator", default="IterativeGPRegressor")
    parser.add_argument("--rows", type=int, default=60)
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (args.rows, 2))
    y = np.sin(2 * X[:, 0]) + 0.1 * rng.standard_normal(len(X))
    make = getattr(skscalablegp, args.estimator)
    make().fit(X, y).predict(X[:5], return_std=True)
    with Trace() as fit:
        model = make().fit(X, y)
    with Trace() as prediction:
        model.predict(X[:5], return_std=True)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    line = {"estimator": args.estimator, "rows": args.rows, "fit_files": len(fit.files)}
    line |= {"fit_changes": fit.changes, "prediction_files": len(prediction.files)}
    line |= {"date": date.today().isoformat(), "commit": commit.stdout.strip()}
    print(json.dumps(line | {"python": sys.version.split()[0]}))
    if args.list:
        print("\n".join(sorted(fit.files)))


if __name__ == "__main__":
    main()
