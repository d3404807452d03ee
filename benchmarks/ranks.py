#!/usr/bin/env python3
"""Time products, solves and fits on 1, 2 ... ranks of one thread each, or of several.

    python benchmarks/ranks.py
    python benchmarks/ranks.py --ranks 1 2 1 --threads 1 1 2 --rounds 3
    python benchmarks/ranks.py --part product --ranks 1 2 --rows 20000 --columns 8 --sides 65

One JSON line a measurement, with the command, the commit and the load of the machine. The ranks are
processes on this machine, which talk over the loopback interface. Parts:

product   H V for --rows rows in float32, evaluated in tiles; the median of --repeats
kept      the same with stored tiles
fit       a fit of IterativeGPRegressor without training: one solve for the targets and 64 samples
own       a fit of --estimator to --rows generated rows, of which each rank makes and keeps its own
model     not measured: predicted seconds a product from --rate and --link, for 1 to 64 ranks

Keys of a line: ``seconds`` by the wall clock; ``processor_seconds`` of each rank in that time, of
which the largest is the time that a machine without other work would need, beside the messages;
``bytes`` that each rank has sent, and what the formula 2 (p - 1) n s gives in all; ``stored``, the
share of H that each rank keeps; ``memory``, the growth of each rank's peak in megabytes, for own
rows with the rows themselves; ``table``, the megabytes of all rows and targets in float64.
"""

import argparse
import json
import os
import resource
import shlex
import socket
import statistics
import subprocess
import sys
import time
import warnings
from datetime import date
from importlib.metadata import version
from itertools import cycle
from operator import attrgetter
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent


def data(args):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(args.rows, args.columns))
    return X, np.sin(X[:, 0] * 2) + X[:, 1] + 0.3 * rng.normal(size=len(X))


def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def figures(ranks):
    """What each rank has spent since `before`, as columns: processor seconds, MB, bytes."""
    import torch

    mine = [time.process_time(), peak(), float(ranks.bytes_sent)]
    table = torch.zeros(ranks.size, 3, dtype=torch.float64)
    table[ranks.rank] = torch.tensor(mine, dtype=torch.float64)
    return ranks.total(table).clone()


def products(args):
    """Runs at rank 0: the median seconds of a product, and the figures of all ranks."""
    import torch

    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.operators import kernel_operator
    from skscalablegp.workers import leading

    ranks = leading()
    kernel = compile_kernel(default_kernel(args.columns), args.columns)
    X = torch.as_tensor(data(args)[0], dtype=torch.float32)
    H = kernel_operator(kernel, kernel.theta0, X, keep=args.part == "kept")
    V = torch.randn(args.rows, args.sides, generator=torch.Generator().manual_seed(0))
    start = ranks.together(figures)
    H.matmul(V)
    before, seconds = ranks.together(figures), []
    for _ in range(args.repeats):
        begun = time.perf_counter()
        H.matmul(V)
        seconds.append(time.perf_counter() - begun)
    after = ranks.together(figures)
    spent = (after - before)[:, 0] / args.repeats
    whole = float(args.rows) ** 2
    kept = [float(args.part == "kept")]
    if ranks.size > 1:
        kept = [entries / whole for entries in H.workers.call(attrgetter("stored_entries"))]
    return {
        "seconds": statistics.median(seconds),
        "fastest": min(seconds),
        "processor_seconds": spent.tolist(),
        "bytes": ((after - before)[:, 2] / args.repeats).tolist(),
        "formula": 2 * (ranks.size - 1) * args.rows * args.sides * 4,
        "stored": kept,
        "memory": (after - start)[:, 1].tolist(),
    }


def fits(args):
    from sklearn.base import clone

    from skscalablegp import IterativeGPRegressor
    from skscalablegp.workers import leading

    ranks, (X, y) = leading(), data(args)
    model = IterativeGPRegressor(
        optimizer=None, solver="cg", gradient="pathwise", posterior="pathwise", random_state=0
    )
    start = ranks.together(figures)
    begun = time.perf_counter()
    model = clone(model).fit(X, y)
    seconds = time.perf_counter() - begun
    after = ranks.together(figures)
    return {
        "seconds": seconds,
        "processor_seconds": (after - start)[:, 0].tolist(),
        "bytes": (after - start)[:, 2].tolist(),
        "memory": (after - start)[:, 1].tolist(),
        "epochs": model.fit_report_.epochs,
    }


def predicted(n, size, sides, rate, link, latency=5e-5):
    """Seconds of a product that `size` ranks share, and its efficiency; a prediction.

    Each rank evaluates n^2 / size entries at `rate` entries a second. V goes to all ranks, and the
    sums go back, in 4 n sides bytes each over every link, pipelined in a ring, at `link` Gb/s;
    every rank adds a latency to both.
    """
    computing = n**2 / rate / size
    messages = 2 * (4 * n * sides * 8 / (link * 1e9) + size * latency) if size > 1 else 0.0
    return computing + messages, computing / (computing + messages)


def model(args):
    """One line for each size, with the assumptions."""
    for n in (10**5, 10**6, 10**7):
        for size in (1, 2, 4, 8, 16, 32, 64):
            seconds, efficiency = predicted(n, size, args.sides, args.rate, args.link)
            given = {"rows": n, "sides": args.sides, "rate": args.rate, "link": args.link}
            found = {"seconds": round(seconds, 6), "efficiency": round(efficiency, 3)}
            print(json.dumps({"part": "model", "ranks": size} | found | given), flush=True)


def own_rows(args):
    """A fit of rows that are at several ranks, with the figures of all; printed by rank 0."""
    import skscalablegp

    settings = {"random_state": 0, "max_iter": 5}
    settings |= {"RFFRegressor": {"n_components": 200}, "SGPRRegressor": {"n_inducing": 100}}.get(
        args.estimator, {}
    )
    with skscalablegp.distribute(rows="own") as ranks:
        begin, rng = peak(), np.random.default_rng(ranks.rank)
        X = rng.normal(size=(args.rows // ranks.size, args.columns))
        y = np.sin(X[:, 0] * 2) + X[:, 1] + 0.3 * rng.normal(size=len(X))
        model = getattr(skscalablegp, args.estimator)(**settings)
        begun, before = time.perf_counter(), time.process_time()
        model.fit(X, y)
        seconds, spent = time.perf_counter() - begun, time.process_time() - before
        mine = [spent, peak() - begin, float(ranks.bytes_sent)]
        said = [json.loads(text) for text in ranks.exchange("figures", json.dumps(mine))]
        if ranks.rank == 0:
            names = ("processor_seconds", "memory", "bytes")
            found = dict(zip(names, map(list, zip(*said, strict=True)), strict=True))
            error = float(np.sqrt(np.mean((model.predict(X[:10_000]) - y[:10_000]) ** 2)))
            found |= {"estimator": args.estimator, "seconds": seconds, "rmse": error}
            found |= {"n_iter": model.n_iter_, "table": args.rows * (args.columns + 1) * 8 / 2**20}
            print(json.dumps(found), flush=True)


def rank(args):
    """One rank; rank 0 prints the figures."""
    import torch
    from sklearn.base import BaseEstimator

    from skscalablegp import distribute
    from skscalablegp._calls import shareable

    class Timed(BaseEstimator):
        @shareable
        def measure(self):
            return fits(args) if args.part == "fit" else products(args)

    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    warnings.simplefilter("ignore")
    if args.part == "own":
        own_rows(args)
        return
    with distribute() as ranks:
        found = Timed().measure()
        if ranks.rank == 0:
            print(json.dumps(found), flush=True)


def launched(args, part, size, threads):
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    command = [sys.executable, __file__, "--rank", "--part", part]
    for name in ("rows", "columns", "sides", "repeats", "estimator"):
        command += [f"--{name}", str(getattr(args, name))]
    ranks = []
    for number in range(size):
        names = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": size, "MASTER_PORT": port}
        names = {k: str(v) for k, v in names.items()} | {"MASTER_ADDR": "127.0.0.1"}
        names |= dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(threads))
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", **names, "PYTHONPATH": str(ROOT)}
        ranks.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    said = [process.communicate()[0] for process in ranks]
    if any(process.returncode for process in ranks):
        raise SystemExit(f"a rank failed: {[process.returncode for process in ranks]}")
    return json.loads(said[0])


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", default=["product"])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument(
        "--threads",
        type=int,
        nargs="+",
        default=[1],
        help="of a rank, or of each of --ranks",
    )
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--columns", type=int, default=8)
    parser.add_argument("--sides", type=int, default=65, help="columns of V")
    parser.add_argument("--estimator", default="RFFRegressor", help="own: its class")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1, help="numbers of ranks take turns")
    parser.add_argument("--rate", type=float, default=2.6e8, help="model: entries a second")
    parser.add_argument("--link", type=float, default=100.0, help="model: Gb/s")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        args.part = args.part[0]
        rank(args)
        return
    if args.part == ["model"]:
        model(args)
        return
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    about = {
        "rows": args.rows,
        "columns": args.columns,
        "sides": args.sides,
        "cores": os.cpu_count(),
        "date": date.today().isoformat(),
        "commit": commit.stdout.strip(),
        "versions": {name: version(name) for name in ("torch", "numpy")},
        "command": shlex.join(["python", "benchmarks/ranks.py", *sys.argv[1:]]),
    }
    for part in args.part:
        for turn in range(args.rounds):
            for size, count in zip(args.ranks, cycle(args.threads)):
                load = [round(x, 2) for x in os.getloadavg()]
                line = {"part": part, "ranks": size, "threads": count, "turn": turn, "load": load}
                print(json.dumps(line | launched(args, part, size, count) | about), flush=True)


if __name__ == "__main__":
    main()
