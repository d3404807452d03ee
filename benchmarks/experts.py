#!/usr/bin/env python3
"""Every combination rule and partition of PoERegressor under one kernel: a line of JSON each.

    python benchmarks/experts.py --datasets pol protein --n-train 6000
    python benchmarks/experts.py --datasets kin40k --n-train 0 --rules gpoe --nearest 1 2 4 8 0

The kernel is trained once, on random parts; rules then differ in nothing else. Seconds are of the
processor: factorising the parts, and means with deviations of all test rows.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
from itertools import product


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    from uci import load, plain, scores, versions

    from skscalablegp import PoERegressor
    from skscalablegp.models.experts import COMBINATIONS

    for dataset in args.datasets:
        X, X_test, y, y_test = load(dataset, args.split, args.n_train, args.seed)
        shared = dict(expert_size=args.expert_size, normalize_y=True, random_state=args.seed)
        kernel = PoERegressor(**shared, max_iter=args.max_iter).fit(X, y).kernel_
        for combination, nearest in product(args.rules or COMBINATIONS, args.nearest):
            for partition in ("random", "kmeans") if nearest == 0 else ("kmeans",):
                rule = dict(combination=combination, partition=partition)
                rule["n_experts"] = nearest or len(X)
                start = time.process_time()
                model = PoERegressor(kernel, optimizer=None, **shared, **rule).fit(X, y)
                fitted = time.process_time()
                mean, std = model.predict(X_test, return_std=True)
                line = dict(
                    benchmark="experts",
                    dataset=dataset,
                    split=args.split,
                    n_train=len(X),
                    n_test=len(X_test),
                    **rule | dict(n_experts=model.n_experts_),
                    n_parts=len(model.experts_),
                    **scores(y_test, dict(mean=mean, std=std)),
                    factor_cpu_seconds=round(fitted - start, 2),
                    predict_cpu_seconds=round(time.process_time() - fitted, 2),
                    threads=args.threads,
                    machine=args.machine,
                    date=datetime.date.today().isoformat(),
                    versions=versions(),
                    command=shlex.join(
                        ["python", "benchmarks/experts.py", *(argv or sys.argv[1:])]
                    ),
                )
                print(json.dumps(plain(line), allow_nan=False), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--datasets", nargs="+", default=["pol", "protein"], metavar="NAME")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--n-train", type=int, default=6000, metavar="N", help="rows (0: all)")
    parser.add_argument("--rules", nargs="+", help="all by default")
    parser.add_argument(
        "--nearest", nargs="+", type=int, default=[0], help="experts that predict a row (0: all)"
    )
    parser.add_argument("--expert-size", type=int, default=1024)
    parser.add_argument("--max-iter", type=int, default=8, help="steps that train the kernel")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    return parser.parse_args(argv)


if __name__ == "__main__":
    main()
