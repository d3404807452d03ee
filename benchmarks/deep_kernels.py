#!/usr/bin/env python3
"""Deep kernels by method, batch size and data set: one line of JSON a fit.

    python benchmarks/deep_kernels.py table --dataset kin40k elevators --method scgd minimax bsgd \\
        --batch-size 16 64 128
    python benchmarks/deep_kernels.py table --dataset kin40k --method scgd --kernel gaussian \\
        --learning-rate 0.003 0.01
    python benchmarks/deep_kernels.py memory --rows 5000000

These are Tables 2 to 5 of Shoham and Avron. Inputs and target are standardised by the training
rows; rmse and nll (mean negative log density of the noisy test targets) are in those units, as is
nlml, the negative log marginal likelihood of the training rows per row. paper_rmse and paper_nlml
are the paper's units: rmse times the target's standard deviation, nlml plus its logarithm.

With several learning rates each is fitted on nine tenths of the training rows, the one with the
lowest nll on the other tenth is fitted again on all of them, and only that fit is tested. SVGP has
as many inducing points as a batch has rows, as in the paper.
"""

import argparse
import datetime
import json
import os
import resource
import shlex
import sys
import tempfile
import time
import warnings

METHODS = {
    "scgd": "SCGDDKLRegressor",
    "minimax": "MinimaxDKLRegressor",
    "bsgd": "BSGDDKLRegressor",
    "svgp": "SVGPRegressor",
}


def main(argv=None):
    args = parse_args(argv)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    from uci import plain, versions

    about = dict(
        date=datetime.date.today().isoformat(),
        machine="2-core x86-64 CPU",
        threads=args.threads,
        versions=versions(),
        command=shlex.join(
            ["python", "benchmarks/deep_kernels.py", *(sys.argv[1:] if argv is None else argv)]
        ),
    )
    for line in memory(args) if args.what == "memory" else table(args):
        print(json.dumps(plain({**line, "load": os.getloadavg(), **about})), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["table", "memory"])
    parser.add_argument("--dataset", nargs="+", default=["kin40k"])
    parser.add_argument("--method", nargs="+", default=["scgd"], choices=list(METHODS))
    parser.add_argument("--batch-size", nargs="+", type=int, default=[64])
    parser.add_argument("--kernel", default="linear", choices=["linear", "gaussian"])
    parser.add_argument("--n-components", type=int, default=1000, help="of the Gaussian kernel")
    parser.add_argument("--learning-rate", nargs="*", type=float, default=[])
    parser.add_argument("--max-epochs", type=int, default=0, help="0: the estimator's own")
    parser.add_argument(
        "--no-early-stopping",
        action="store_true",
        help="keep the parameters with the best training objective, as the paper does",
    )
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args(argv)


def table(args):
    from uci import load, scores

    from skscalablegp.datasets import fetch_uci

    for dataset in args.dataset:
        X, X_test, y, y_test = load(dataset, args.split, 0, args.seed)
        raw = fetch_uci(dataset, split=args.split, return_X_y=True)[2].std()
        for size in args.batch_size:
            for method in args.method:
                rate, tried = choose_rate(args, method, size, X, y)
                model = make(args, method, size, rate, len(X))
                wall, cpu = time.perf_counter(), time.process_time()
                fit(model, X, y)
                wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
                mean, std = model.predict(X_test, return_std=True)
                report = getattr(model, "fit_report_", None)
                tested = scores(y_test, {"mean": mean, "std": std})
                yield dict(
                    what="table",
                    method=method,
                    dataset=dataset,
                    kernel=args.kernel,
                    batch_size=size,
                    split=args.split,
                    seed=args.seed,
                    **tested,
                    nlml=training_nlml(model, len(X)),
                    paper_rmse=tested["rmse"] * raw,
                    paper_nlml=training_nlml(model, len(X), raw),
                    learning_rate=rate,
                    tried=tried,
                    fit_seconds=round(wall, 2),
                    cpu_seconds=round(cpu, 2),
                    n_iter=model.n_iter_,
                    status=report and report.status,
                    epochs=report and report.epochs,
                    summary=report and report.summary,
                )


def training_nlml(model, n, scale=1.0):
    """Per row; for SVGP the negative lower bound."""
    import math

    name = "lower_bound_" if hasattr(model, "lower_bound_") else "log_marginal_likelihood_value_"
    value = getattr(model, name, None)
    return None if value is None else round(-value / n + math.log(scale), 5)


def choose_rate(args, method, size, X, y):
    """The rate with the lowest validation nll, and all that were tried."""
    import numpy as np

    from skscalablegp.metrics import nlpd

    rates = args.learning_rate
    if len(rates) < 2:
        return (rates[0] if rates else "auto"), {}
    order = np.random.RandomState(args.seed).permutation(len(X))
    held, kept = order[: len(X) // 10], order[len(X) // 10 :]
    tried = {}
    for rate in rates:
        model = fit(make(args, method, size, rate, len(kept)), X[kept], y[kept])
        tried[rate] = round(nlpd(y[held], *model.predict(X[held], return_std=True)), 5)
    return min(tried, key=tried.get), tried


def make(args, method, size, rate, n):
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    import skscalablegp

    model = getattr(skscalablegp, METHODS[method])(batch_size=size, random_state=args.seed)
    model.set_params(learning_rate=rate)
    if method == "svgp":
        model.set_params(n_inducing=size, normalize_y=True)
        if args.max_epochs:
            model.set_params(max_iter=max(1, args.max_epochs * n // size))
        return model
    if args.max_epochs:
        model.set_params(max_epochs=args.max_epochs)
    if args.no_early_stopping:
        model.set_params(early_stopping=False)
    kernel = ConstantKernel() * RBF() if args.kernel == "gaussian" else None
    return model.set_params(kernel=kernel, n_components=args.n_components)


def fit(model, X, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def memory(args):
    """Peak memory of a fit on rows that are on disk, written a block at a time."""
    import numpy as np

    from skscalablegp import SCGDDKLRegressor

    d, rng = 8, np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        X = np.memmap(f"{folder}/X", dtype=np.float32, mode="w+", shape=(args.rows, d))
        y = np.memmap(f"{folder}/y", dtype=np.float32, mode="w+", shape=(args.rows,))
        for start in range(0, args.rows, 100_000):
            part = slice(start, min(start + 100_000, args.rows))
            X[part] = rng.standard_normal((part.stop - start, d), dtype=np.float32)
            noise = 0.1 * rng.standard_normal(part.stop - start)
            y[part] = np.sin(2 * X[part, 0]) + X[part, 1] * X[part, 2] + noise
        X.flush()
        y.flush()
        X = np.memmap(f"{folder}/X", dtype=np.float32, mode="r", shape=(args.rows, d))
        y = np.memmap(f"{folder}/y", dtype=np.float32, mode="r", shape=(args.rows,))
        model = SCGDDKLRegressor(
            feature_extractor=(64,), batch_size=1024, max_epochs=1, random_state=0
        )
        wall, cpu = time.perf_counter(), time.process_time()
        model.fit(X, y)
        yield dict(
            what="memory",
            rows=args.rows,
            columns=d,
            data_mb=round((X.nbytes + y.nbytes) / 2**20, 1),
            peak_rss_mb=round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1),
            fit_seconds=round(time.perf_counter() - wall, 2),
            cpu_seconds=round(time.process_time() - cpu, 2),
            noise_std=model.noise_variance_**0.5,
            score=model.score(X[:10_000], y[:10_000]),
        )


if __name__ == "__main__":
    main()
