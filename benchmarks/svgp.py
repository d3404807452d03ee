#!/usr/bin/env python3
"""Sparse variational models beside a peer, and digits; one JSON line a measurement.

    python benchmarks/svgp.py regression --dataset pol kin40k protein
    python benchmarks/svgp.py regression --dataset pol --repeats 2 \\
        --peer "other-env/bin/python peers/gpytorch_peer.py svgp --epochs 30"
    python benchmarks/svgp.py digits --splits 5

The peer is given ``--dataset NAME`` and prints a JSON line with fit_seconds, rmse and nll.
Both run as processes of their own, one after the other, as often as --repeats says: the machine's
load changes, so processor seconds (of the whole process: imports, reading and prediction too) stand
beside the seconds of the fit.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import time
from datetime import date
from pathlib import Path

import numpy as np
from uci import plain, versions

HERE = Path(__file__).resolve().parent


def timed(command):
    """The last line of a command's output as JSON, with the processor seconds it took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    report = json.loads(done.stdout.strip().splitlines()[-1])
    return report | {"process_cpu_seconds": round(cpu, 2)}


def regression(args):
    """SVGPRegressor with default settings, and the peer, in turn."""
    for dataset in args.dataset:
        ratios = []
        for repeat in range(args.repeats):
            settings = ["--estimator", "SVGPRegressor", "--seed", str(repeat)]
            settings += ["--threads", str(args.threads), "--dataset", dataset]
            load = os.getloadavg()[0]
            ours = timed([sys.executable, str(HERE / "uci.py"), *settings])
            keep = ("fit_seconds", "predict_seconds", "process_cpu_seconds", "rmse", "nll", "crps")
            keep += ("coverage95", "n_iter", "threads")
            yield dict(model="SVGPRegressor", dataset=dataset, repeat=repeat, load=load) | {
                name: ours[name] for name in keep
            }
            if args.peer is None:
                continue
            peer = timed([*shlex.split(args.peer), "--dataset", dataset, "--seed", str(repeat)])
            yield dict(model="peer", dataset=dataset, repeat=repeat, load=os.getloadavg()[0]) | peer
            ratios.append([ours[n] / peer[n] for n in ("fit_seconds", "process_cpu_seconds")])
        if ratios:
            wall, cpu = np.median(ratios, axis=0)
            yield dict(model="SVGPRegressor / peer", dataset=dataset, fit_ratio=wall, cpu_ratio=cpu)


def digits(args):
    """Accuracy, log loss and expected calibration error of SVGPClassifier on a quarter held out."""
    from sklearn.datasets import load_digits
    from sklearn.metrics import accuracy_score, log_loss
    from sklearn.model_selection import train_test_split

    from skscalablegp import SVGPClassifier

    X, y = load_digits(return_X_y=True)
    names = np.array([f"digit {k}" for k in range(10)])
    for seed in range(args.splits):
        X_train, X_test, y_train, y_test = train_test_split(
            X, y, test_size=0.25, random_state=seed, stratify=y
        )
        start = time.process_time()
        model = SVGPClassifier(random_state=seed).fit(X_train, names[y_train])
        cpu = time.process_time() - start
        proba = model.predict_proba(X_test)
        yield dict(
            model="SVGPClassifier",
            dataset="digits",
            split=seed,
            fit_cpu_seconds=cpu,
            accuracy=accuracy_score(names[y_test], model.predict(X_test)),
            log_loss=log_loss(y_test, proba),
            calibration_error=calibration_error(y_test, proba),
            largest_sum_error=float(np.abs(proba.sum(1) - 1).max()),
            n_inducing=len(model.inducing_points_),
            n_iter=model.n_iter_,
        )


def calibration_error(y, proba, bins=15):
    """Mean |confidence - accuracy| over bins of equal width (Guo et al. 2017, equation 3)."""
    confidence, right = proba.max(1), proba.argmax(1) == y
    where = np.minimum((confidence * bins).astype(int), bins - 1)
    parts = [where == k for k in range(bins)]
    return sum(p.mean() * abs(confidence[p].mean() - right[p].mean()) for p in parts if p.any())


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    kinds = parser.add_subparsers(dest="kind", required=True)
    one = kinds.add_parser("regression")
    one.add_argument("--dataset", nargs="+", default=["pol", "kin40k", "protein"])
    one.add_argument("--peer", help="command of the peer")
    one.add_argument("--repeats", type=int, default=1)
    one.add_argument("--threads", type=int, default=1)
    two = kinds.add_parser("digits")
    two.add_argument("--splits", type=int, default=5)
    args = parser.parse_args()
    work = {"regression": regression, "digits": digits}[args.kind]
    # The peer's own paths are no part of the record.
    shown = ["PEER" if a == getattr(args, "peer", None) else a for a in sys.argv[1:]]
    common = dict(
        machine="2-core x86-64 CPU",
        date=date.today().isoformat(),
        versions=versions(),
        command=shlex.join(["python", "benchmarks/svgp.py", *shown]),
    )
    for line in work(args):
        print(json.dumps(plain(line | common)), flush=True)


if __name__ == "__main__":
    main()
