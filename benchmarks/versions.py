#!/usr/bin/env python3
"""Processor seconds and scores of two versions of the package on the same fits.

    python benchmarks/versions.py --before PATH
    python benchmarks/versions.py --before PATH --rows 3000 --estimators NNGPRegressor --repeats 3

PATH is the checkout of an earlier version. Fits have default settings and no time limit; each is a
process of its own, on one thread, and the two versions take turns. Prints a JSON line for each
estimator and number of rows, with the ratio of processor seconds (after / before, the median over
repeats), the negative log predictive density of 500 held-out rows of both, and the error rate of
classifiers in its place; then one with the median ratio and the largest loss of all.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
ESTIMATORS = (
    *("IterativeGPRegressor", "NNGPRegressor", "PoERegressor", "KISSGPRegressor", "SGPRRegressor"),
    *("RFFRegressor", "QSGPRegressor", "QSRVMRegressor", "SVGPRegressor", "SCGDDKLRegressor"),
    *("BSGDDKLRegressor", "MinimaxDKLRegressor", "LOVEPredictor", "MeanFunctionRegressor"),
    *("HeteroscedasticRegressor", "SVGPClassifier", "QSGPClassifier"),
)
HELD_OUT = 500

CHILD = """
import json, sys, time, warnings
import numpy as np
import skscalablegp
warnings.simplefilter("ignore")
name, n, held = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
rng = np.random.default_rng(0)
X = rng.uniform(-2, 2, (n + held, 4))
f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
y = f + 0.1 * rng.standard_normal(len(f))
classes = name.endswith("Classifier")
y = (y > 0).astype(int) if classes else y
cls = getattr(skscalablegp, name)
seeded = {"random_state": 0} if "random_state" in cls().get_params() else {}
began = time.process_time()
model = cls(**seeded).fit(X[:n], y[:n])
seconds = time.process_time() - began
if classes:
    score = float(np.mean(model.predict(X[n:]) != y[n:]))
else:
    mean, std = model.predict(X[n:], return_std=True)
    z = (y[n:] - mean) / std
    score = float(np.mean(0.5 * z**2 + np.log(std) + 0.5 * np.log(2 * np.pi)))
print(json.dumps({"seconds": seconds, "score": score, "status": model.fit_report_.status}))
"""


def measured(package, name, n, limit):
    """Seconds, score and status of one fit by the package in a folder; None if it has not ended."""
    threads = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    env = os.environ | threads | {"PYTHONPATH": str(package)}
    call = [sys.executable, "-P", "-c", CHILD, name, str(n), str(HELD_OUT)]
    try:
        done = subprocess.run(call, env=env, capture_output=True, text=True, timeout=limit)
    except subprocess.TimeoutExpired:
        return None
    if done.returncode:
        raise SystemExit(f"{name}, {n} rows, {package}: {done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--before", required=True, type=Path, help="checkout of an earlier version")
    parser.add_argument("--rows", nargs="+", type=int, default=[3000, 12000])
    parser.add_argument("--estimators", nargs="+", default=ESTIMATORS)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--cut", type=float, default=600, help="seconds after which a fit is cut")
    args = parser.parse_args()
    commits = [
        subprocess.run(
            ["git", "-C", folder, "rev-parse", "--short", "HEAD"], capture_output=True, text=True
        ).stdout.strip()
        for folder in (args.before, ROOT)
    ]
    facts = {
        "date": str(date.today()),
        "before": commits[0],
        "commit": commits[1],
        "python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    ratios, losses = [], []
    for n in args.rows:
        for name in args.estimators:
            sides = {"before": [], "after": []}
            for _ in range(args.repeats):
                for side, package in (("before", args.before.resolve()), ("after", ROOT)):
                    sides[side].append(measured(package, name, n, args.cut))
            line = {"estimator": name, "rows": n}
            if None in sides["before"] + sides["after"]:
                print(json.dumps(line | {"cut": args.cut} | facts), flush=True)
                continue
            pairs = list(zip(sides["before"], sides["after"], strict=True))
            ratio = float(np.median([new["seconds"] / old["seconds"] for old, new in pairs]))
            loss = float(np.median([new["score"] - old["score"] for old, new in pairs]))
            ratios.append(ratio)
            losses.append(loss)
            old, new = pairs[0]
            line |= {"ratio": round(ratio, 3), "loss": round(loss, 4)}
            line |= {"seconds": [round(old["seconds"], 2), round(new["seconds"], 2)]}
            line |= {"score": [round(old["score"], 4), round(new["score"], 4)]}
            line |= {"status": [old["status"], new["status"]]}
            print(json.dumps(line | facts), flush=True)
    if ratios:
        summary = {"fits": len(ratios), "median_ratio": round(float(np.median(ratios)), 3)}
        summary |= {"largest_loss": round(max(losses), 4)}
        print(json.dumps(summary | facts), flush=True)


if __name__ == "__main__":
    main()
