#!/usr/bin/env python3
"""NNGPRegressor on the UCI sets, on the flights and on a drawn function: a line of JSON each.

    python benchmarks/neighbors.py --tables kin40k protein
    python benchmarks/neighbors.py --tables flights --n-train 317346 --n-test 10000
    python benchmarks/neighbors.py --tables drawn --n-train 200000 --n-test 500 --set dtype=float32

Seconds are of the processor. "drawn" is a sum of 2^14 random Fourier functions of ten columns whose
covariance is a Matern function (nu = 3/2), and noise of a tenth of its standard deviation; there
``--models true`` has the true hyperparameters and --true-neighbors rows. --more-neighbors repeats
the predictions of the first model's hyperparameters with other numbers of neighbours, and
--more-inducing also with inducing points. --held-out N predicts N of the training rows of a UCI
set, which are held out, in place of its test rows.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    from uci import peak_resident_mb, plain, scores, versions

    from skscalablegp import NNGPRegressor

    for name in args.tables:
        X, X_test, y, y_test, kernel = table(name, args)
        models = {}
        if "fitted" in args.models:
            models["fitted"] = NNGPRegressor(random_state=args.seed, **dict(args.set))
        if "true" in args.models and kernel is not None:
            given = dict(optimizer=None, n_neighbors=args.true_neighbors, n_centers=1)
            models["true"] = NNGPRegressor(kernel, random_state=args.seed, **given)
        if models:
            first = next(iter(models))
            models |= {f"{first}, {m} neighbors": (m, "auto") for m in args.more_neighbors}
            pairs = [(m, q) for m in args.more_neighbors for q in args.more_inducing]
            models |= {f"{first}, {m} neighbors, {q} inducing": (m, q) for m, q in pairs}
        for kind, model in models.items():
            if isinstance(model, tuple):
                known, (m, q) = models[first], model
                given = dict(optimizer=None, normalize_y="fitted" in models, n_centers=1)
                given |= dict(n_neighbors=m, n_inducing=q)
                model = NNGPRegressor(known.kernel_, random_state=args.seed, **given)
            start = time.process_time(), time.perf_counter()
            model.fit(X, y)
            fitted = time.process_time(), time.perf_counter()
            mean, std = model.predict(X_test, return_std=True)
            predicted = time.process_time() - fitted[0]
            facts = dict(
                n_neighbors=model.n_neighbors_,
                n_inducing=model.n_inducing_,
                n_iter=model.n_iter_,
                status=model.fit_report_.status,
                seconds={k: round(v, 2) for k, v in model.fit_report_.seconds.items()},
            )
            searches = searched(model, X_test)
            start_add = time.process_time()
            model.partial_fit(X_test[:10], y_test[:10])
            added = time.process_time() - start_add
            line = dict(
                benchmark="neighbors",
                table=name,
                model=kind,
                split=args.split,
                rows="held out of the training rows" if args.held_out else "test",
                n_train=len(X),
                n_test=len(X_test),
                n_features=X.shape[1],
                **scores(y_test, dict(mean=mean, std=std)),
                **facts,
                **searches,
                fit_cpu_seconds=round(fitted[0] - start[0], 2),
                fit_wall_seconds=round(fitted[1] - start[1], 2),
                predict_cpu_ms_a_row=round(1e3 * predicted / len(X_test), 3),
                add_ten_rows_cpu_ms=round(1e3 * added, 2),
                peak_rss_mb=peak_resident_mb(),
                settings=dict(args.set),
                threads=args.threads,
                machine=args.machine,
                date=datetime.date.today().isoformat(),
                versions=versions(),
                command=shlex.join(["python", "benchmarks/neighbors.py", *(argv or sys.argv[1:])]),
            )
            print(json.dumps(plain(line), allow_nan=False), flush=True)


def searched(model, X):
    """What the search for neighbours takes and finds, as a model does it and exactly."""
    from copy import copy

    import numpy as np
    import torch

    posterior = model._posterior()
    if not hasattr(posterior, "_index"):
        return {}
    own, exact = posterior._index, copy(posterior._index)
    exact._slack = 0.0
    points, times, found = posterior._metric(torch.as_tensor(X)), [], []
    for index in (own, exact):
        start = time.process_time()
        found.append(index.nearest(points, model.n_neighbors_)[1])
        times.append(round(1e3 * (time.process_time() - start) / len(X), 3))
    shared = [len(np.intersect1d(a, b)) / len(a) for a, b in zip(*found, strict=True)]
    return dict(
        search_cpu_ms_a_row=times[0],
        exact_search_cpu_ms_a_row=times[1],
        search_recall=round(float(np.mean(shared)), 4),
    )


def table(name, args):
    """Training and test rows, their targets, and the kernel that they were drawn from, if any."""
    from sklearn.model_selection import train_test_split
    from uci import flights, load

    if name == "flights":
        return *flights(args.n_train or 317_346, args.n_test, args.seed), None
    if name == "drawn":
        return drawn(args)
    X, X_test, y, y_test = load(name, args.split, args.n_train, args.seed)
    if args.held_out:
        return *train_test_split(X, y, test_size=args.held_out, random_state=args.seed), None
    return X, X_test, y, y_test, None


def drawn(args):
    import numpy as np
    import torch
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    n, d, q = (args.n_train or 1_000_000) + args.n_test, 10, 2**14
    generator = torch.Generator().manual_seed(args.seed)
    length_scale = np.geomspace(1.0, 8.0, d)
    X = torch.rand(n, d, generator=generator) * 4 - 2
    normal = torch.randn(q // 2, d, generator=generator)
    chi2 = torch.randn(q // 2, 3, generator=generator).square().sum(1, keepdim=True)
    frequencies = normal * (3 / chi2).sqrt() / torch.tensor(length_scale, dtype=torch.float32)
    weights = torch.randn(2, q // 2, generator=generator) * (2 / q) ** 0.5
    f = torch.empty(n)
    for start in range(0, n, 512):
        # What is kept is allocated before: between large temporaries it would keep them apart.
        angles = X[start : start + 512] @ frequencies.T
        f[start : start + 512] = angles.cos() @ weights[0] + angles.sin_() @ weights[1]
    y = (f + 0.1 * torch.randn(n, generator=generator)).double().numpy()
    kernel = Matern(length_scale, nu=1.5) + WhiteKernel(0.01)
    X = X.double().numpy()
    return X[: -args.n_test], X[-args.n_test :], y[: -args.n_test], y[-args.n_test :], kernel


def parse_args(argv):
    from uci import setting

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", default=["kin40k"], metavar="NAME")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--n-train", type=int, default=0, metavar="N", help="rows (0: all)")
    parser.add_argument("--n-test", type=int, default=1000, help="of flights and drawn rows")
    parser.add_argument("--models", nargs="+", default=["fitted"], choices=["fitted", "true"])
    parser.add_argument("--true-neighbors", type=int, default=2000, metavar="M")
    parser.add_argument("--more-neighbors", nargs="*", default=[], type=int, metavar="M")
    parser.add_argument("--more-inducing", nargs="*", default=[], type=int, metavar="Q")
    parser.add_argument(
        "--held-out", type=int, default=0, metavar="N", help="training rows as test"
    )
    parser.add_argument("--set", action="append", default=[], type=setting, metavar="PARAM=VALUE")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
