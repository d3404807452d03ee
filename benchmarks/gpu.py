#!/usr/bin/env python3
"""Measure the operators on a GPU, in parts of less than eight minutes, as lines of JSON.

    python benchmarks/gpu.py --part entries
    python benchmarks/gpu.py --part exact
    python benchmarks/gpu.py --part sets
    python benchmarks/gpu.py --part million
    python benchmarks/gpu.py --part products
    python benchmarks/gpu.py --part all --lines gpu.jsonl
    python benchmarks/gpu.py --part entries --device cpu --small
    python benchmarks/gpu.py --part waits

entries   kernel entries a second in a tiled product, for numbers of right-hand sides and both
          precisions, beside two limits that are measured in the same run: the device's own matrix
          product, and a copy of a large tensor (bytes a second)
exact     default fits of 4,000 and 30,000 drawn rows: seconds, predictions a second, scores
sets      the six comparison sets by default, split 0 (needs the data: SKSCALABLEGP_DATA)
products  seconds of a product of 100,000 rows by tiles, by compiled tiles and by KeOps, each after
          the call that compiles, whose seconds are given, too; errors against double precision
million   a drawn million rows of 10 columns: seconds of one product and of one solver step with 17
          right-hand sides, and the training that they project to

waits     on a simulated GPU, wherever the tests are: waits for it and copies from and to it, in a
          training step of each estimator, in a fit, and in predictions of 20 and of 200 rows

all       one after the other, but for the last
``--lines FILE`` appends each line to a file when it is measured, and leaves out lines that it has
from this device. A part ends after ``--seconds``; the same command goes on with the lines it left.
``--small`` divides all sizes, so that the parts can be tried on a CPU.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import statistics
import sys
import time
import warnings
from functools import partial
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
SETS = ("pol", "elevators", "bike", "protein", "kin40k", "keggdirected")
COLUMNS = 10
CHOICES = ("entries", "products", "exact", "sets", "million", "waits", "all")


def main(argv=None):
    args = parse_args(argv)
    import torch
    from compare import revision
    from uci import plain, versions

    if torch.device(args.device).type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("No CUDA device was found: run this where one is, or give --device cpu.")
    words = sys.argv[1:] if argv is None else argv
    known = dict(entries=entries, products=products, exact=exact, sets=sets, million=million)
    parts = known if args.part == "all" else {args.part: (known | dict(waits=waits))[args.part]}
    facts = dict(
        device=device_name(args.device),
        date=datetime.date.today().isoformat(),
        revision=revision(),
        versions=versions(),
        command=shlex.join(["python", "benchmarks/gpu.py", *words]),
    )
    done = finished(args.lines)
    for name, part in parts.items():
        start = time.perf_counter()
        for case, work in part(args):
            if (name, facts["device"], json.dumps(case)) in done:
                continue
            if time.perf_counter() - start > args.seconds:
                print(f"{name}: the time is over; repeat the command for the rest", file=sys.stderr)
                break
            line = dict(benchmark="gpu", part=name, case=case, **case, **work(), **facts)
            written = json.dumps(plain(line))
            print(written, flush=True)
            if args.lines is not None:
                with open(args.lines, "a", encoding="utf-8") as file:
                    file.write(written + "\n")


def device_name(name):
    """The card, or the kind of device where torch knows no more."""
    import torch

    kind = torch.device(name).type
    if kind in ("cuda", "xpu"):
        return getattr(torch, kind).get_device_name()
    return f"{os.cpu_count()}-core CPU" if kind == "cpu" else f"{kind} of {platform.machine()}"


def finished(path):
    """The cases, by part and device, that a file has."""
    if path is None or not os.path.exists(path):
        return set()
    with open(path, encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    return {(a["part"], a["device"], json.dumps(a["case"])) for a in lines if "case" in a}


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", required=True, choices=CHOICES)
    parser.add_argument("--lines", help="a file of lines, to which new ones are added")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a fiftieth of the rows")
    parser.add_argument("--seconds", type=float, default=400, help="where the part stops")
    return parser.parse_args(argv)


def rows(args, n):
    return n // 50 if args.small else n


def timed(work, args, repeats=5):
    """The median of the seconds that finished calls take, after one for warmth."""
    import torch

    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        work()
        kind = torch.device(args.device).type
        if kind != "cpu":
            getattr(torch, kind).synchronize()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds[1:])


def operator(args, n, dtype, **settings):
    """H over drawn rows at typical hyperparameters, and the generator of what is drawn next."""
    import torch

    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.operators import Workspace, kernel_operator

    there, generator = Workspace(torch.device(args.device)), torch.Generator().manual_seed(0)
    X = torch.randn(n, COLUMNS, generator=generator, dtype=dtype).to(there.rows_on)
    kernel = compile_kernel(default_kernel(COLUMNS), COLUMNS)
    theta = kernel.theta0.clone()
    theta[1:-1], theta[-1] = 0.5 * torch.log(torch.tensor(float(COLUMNS))), -3.0
    return kernel_operator(kernel, theta, X, workspace=there, **settings), generator


def entries(args):
    import torch

    from skscalablegp._devices import has_float64

    double = has_float64(torch.device(args.device))
    for name in ("float32", "float64") if double else ("float32",):
        for columns in (1, 17, 65):
            yield dict(dtype=name, n_right_hand_sides=columns), partial(entry, args, name, columns)


def entry(args, name, columns):
    """Entries a second beside the limits of the device, which are measured just before."""
    import torch

    n, m, dtype = rows(args, 100_000), rows(args, 16_384), getattr(torch, name)
    A = torch.randn(m, m, dtype=dtype, device=args.device)
    gemm = 2 * m**3 / timed(lambda: A @ A, args)
    copy = 2 * A.numel() * A.element_size() / timed(A.clone, args)
    H, generator = operator(args, n, dtype)
    V = torch.randn(n, columns, generator=generator, dtype=dtype).to(H.device)
    seconds = timed(lambda: H.matmul(V), args)
    # each pair of rows once: its distance, its value, and both halves of the product
    operations = n**2 / 2 * (2 * COLUMNS + 4 * columns)
    return dict(
        n=n,
        n_columns=COLUMNS,
        seconds=seconds,
        entries_per_second=n**2 / seconds,
        share_of_gemm=operations / seconds / gemm,
        gemm_operations_per_second=gemm,
        copy_bytes_per_second=copy,
    )


def products(args):
    for columns in (1, 17):
        for way in ("tiles", "compiled", "keops"):
            case = dict(products=way, n_right_hand_sides=columns)
            yield case, partial(product, args, way, columns)


def product(args, way, columns):
    """Seconds and errors of a way to multiply; one that is not there says why."""
    import torch

    n, few = rows(args, 100_000), rows(args, 10_000)
    try:
        H, generator = operator(args, n, torch.float32, products=way)
    except ImportError as error:
        return dict(status=f"left out: {error}")
    V = torch.randn(n, columns, generator=generator).to(H.device)
    start = time.perf_counter()
    float(H.matmul(V)[0, 0])
    first = time.perf_counter() - start
    seconds = timed(lambda: H.matmul(V), args)
    small, _ = operator(args, few, torch.float32, products=way)
    exact = small.matmul(V[:few].double())
    error = float((small.matmul(V[:few]) - exact).norm() / exact.norm())
    return dict(
        n=n,
        n_columns=COLUMNS,
        first_seconds=first,
        seconds=seconds,
        entries_per_second=n**2 / seconds,
        relative_error=error,
    )


def drawn(n, noise=0.1):
    """Rows of a smooth function of ten columns with noise, and 2,000 more to test on."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (n + 2000, COLUMNS))
    W, phases = rng.standard_normal((COLUMNS, 64)), rng.uniform(0, 6.3, 64)
    f = np.sin(X @ W + phases) @ rng.standard_normal(64) / 8
    y = f + noise * rng.standard_normal(len(f))
    return X[:n], X[n:], y[:n], y[n:]


def fitted(args, X, X_test, y, y_test, **params):
    """One line: seconds and scores of a default fit of the iterative model."""
    from uci import fitted_facts, scores

    from skscalablegp import IterativeGPRegressor

    model = IterativeGPRegressor(
        device=args.device, random_state=0, max_seconds=args.seconds / 2, **params
    )
    start = time.perf_counter()
    model.fit(X, y)
    middle = time.perf_counter()
    mean, std = model.predict(X_test, return_std=True)
    end = time.perf_counter()
    facts = fitted_facts(model)
    facts["ran_on"] = facts.pop("device")
    return dict(
        n=len(X),
        n_columns=X.shape[1],
        fit_seconds=middle - start,
        predictions_per_second=len(X_test) / (end - middle),
        **scores(y_test, dict(mean=mean, std=std)),
        **facts,
    )


def exact(args):
    for n in (4_000, 30_000):
        yield dict(n_rows=n), lambda n=n: fitted(args, *drawn(rows(args, n)))


def sets(args):
    for name in SETS:
        yield dict(dataset=name), partial(on_set, args, name)


def on_set(args, name):
    """A default fit of a set, split 0; with --small of some of its rows."""
    from uci import load

    return fitted(args, *load(name, 0, rows(args, 10**6) if args.small else 0, 0))


def million(args):
    yield dict(n_rows=1_000_000), partial(projected, args)


def projected(args):
    """Seconds of the parts of a fit to a million rows."""
    import torch

    from skscalablegp.solvers import CG, MaxIterations, solve

    n, columns = rows(args, 1_000_000), 17
    H, generator = operator(args, n, torch.float32)
    V = torch.randn(n, columns, generator=generator).to(H.device)
    product = timed(lambda: H.matmul(V), args, repeats=1)
    gradient = timed(lambda: H.bilinear_grad(V, V), args, repeats=1)
    steps = 3
    solver = CG(residual_refresh=None)
    start = time.perf_counter()
    solve(H, V, solver, stopping=MaxIterations(steps))
    step = (time.perf_counter() - start) / steps
    # thirty training steps with solves of ten epochs, and a last solve of a hundred
    return dict(
        n=n,
        n_columns=COLUMNS,
        n_right_hand_sides=columns,
        product_seconds=product,
        gradient_seconds=gradient,
        solver_step_seconds=step,
        projected_fit_seconds=30 * (10 * step + gradient) + 100 * step,
    )


def waits(args):
    """Every estimator on the small tables of the tests, where counts do not depend on the sizes."""
    sys.path += [str(ROOT / "tests"), str(ROOT)]
    from contracts.test_contract import ROWS

    for row in ROWS:
        if row.stands_for_its_class:
            name = type(row.estimator).__name__
            yield dict(estimator=name), partial(counted, row)


def counted(row):
    """Waits and copies on a simulated GPU."""
    from contracts.estimator_contract import table
    from simulated import simulated

    X, y, X_new = table()
    out = {}
    with warnings.catch_warnings(), simulated() as gpu:
        warnings.simplefilter("ignore")

        def counts(work):
            gpu.forget()
            made = work()
            found = (sum(c.values()) for c in (gpu.waits, gpu.sent, gpu.fetched))
            return made, dict(zip(("waits", "sent", "fetched"), found, strict=True))

        def fit(**limit):
            model = row.new(device="cuda").set_params(**limit)
            if "small_table" in model.get_params(deep=False):
                model.set_params(small_table="method")
            return model.fit(X, row.target(y))

        few, fewer = counts(lambda: fit(**(row.limit or {})))
        model, more = counts(fit)
        steps = model.n_iter_ - few.n_iter_
        out["fit"] = more | dict(n_iter=model.n_iter_)
        if row.limit and steps > 0:
            out["step"] = {name: (more[name] - fewer[name]) / steps for name in fewer}
        for n in (20, 200):
            new = np.resize(X_new, (n, X_new.shape[1]))
            ask = model.predict_proba if row.classifier else model.predict
            ask(new)  # what a first prediction builds is not counted
            out[f"predict_{n}"] = counts(lambda ask=ask, new=new: ask(new))[1]
    return out


if __name__ == "__main__":
    main()
