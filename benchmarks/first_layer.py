#!/usr/bin/env python3
"""Which rule weighs the first layer of a network: errors of held-out training rows, JSON lines.

    python benchmarks/first_layer.py >> benchmarks/results/first_layer.jsonl
    python benchmarks/first_layer.py --tables pol --rules both --seeds 0 1

SCGDDKLRegressor is fitted by default with first weights that come from the inverse length scales of
an exact process of 2,000 rows ("lengths"), from the relevance of columns to simple models
("models"), or from both, by the number of rows a column, as in `core/_first_layer.py` ("both").
Tables are the training rows of UCI sets, and problems that are drawn as in `starts_problems.py` and
are none of its sixty. Up to 2,000 rows that are drawn from them are held out and evaluate the fit;
no test row is read. Targets have a standard deviation of 1. Processor seconds of one thread are the
clock of --max-seconds.
"""

import argparse
import datetime
import json
import math
import os
import platform
import shlex
import sys
import time
import warnings

HELD_OUT = 2000
UCI = ("pol", "elevators", "bike")
# Kind, rows, columns, columns that matter, noise and length scales.
DRAWN = {
    "sparse-3of50-6000": ("sparse", 50, 3, 0.2, ()),
    "drawn-8of60-6000": ("drawn", 60, 8, 0.1, (8.0,) * 8),
}
RULES = {"lengths": math.inf, "models": 1e-9, "both": None}


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = "1"
    import torch
    from uci import plain, versions

    from skscalablegp._clock import clock

    torch.set_num_threads(1)
    for name in args.tables:
        for seed in args.seeds:
            for rule in args.rules:
                with clock(time.process_time):
                    found = measured(name, rule, seed, args.max_seconds)
                line = dict(benchmark="first_layer", table=name, rule=rule, seed=seed, **found)
                line |= dict(
                    max_seconds=args.max_seconds,
                    machine=args.machine,
                    date=datetime.date.today().isoformat(),
                    versions=versions(),
                    command=shlex.join(
                        ["python", "benchmarks/first_layer.py", *(argv or sys.argv[1:])]
                    ),
                )
                print(json.dumps(plain(line), allow_nan=False), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    every = [*UCI, *DRAWN]
    parser.add_argument("--tables", nargs="+", choices=every, default=every)
    parser.add_argument("--rules", nargs="+", choices=[*RULES], default=[*RULES])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--max-seconds", type=float, default=10.0)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    return parser.parse_args(argv)


def rows_of(name):
    """Rows of training, and rows that are held out of the training rows."""
    import numpy as np
    from uci import load

    if name in DRAWN:
        import starts_problems

        kind, d, relevant, noise, length = DRAWN[name]
        starts_problems.BY_NAME[name] = starts_problems.Problem(
            name, kind, 6000, d, relevant, noise, length=length
        )
        X, y = starts_problems.table(name)[:2]
    else:
        X, _, y, _ = load(name, 0, 0, 0)
    order = np.random.default_rng(1).permutation(len(X))
    held_out, rows = order[:HELD_OUT], order[HELD_OUT:]
    return X[rows], y[rows], X[held_out], y[held_out]


def measured(name, rule, seed, max_seconds):
    """Scores of held-out rows under a rule."""
    from starts_reference import scores

    from skscalablegp import SCGDDKLRegressor
    from skscalablegp.core import _first_layer

    X, y, X_new, y_new = rows_of(name)
    model, default = SCGDDKLRegressor(random_state=seed, max_seconds=max_seconds), RULES[rule]
    many = _first_layer._MANY_ROWS
    _first_layer._MANY_ROWS = many if default is None else default
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            begun = time.process_time()
            model.fit(X, y)
    finally:
        _first_layer._MANY_ROWS = many
    cpu = time.process_time() - begun
    found = scores(y_new, *model.predict(X_new, return_std=True))
    return dict(
        rows=len(X),
        columns=X.shape[1],
        rows_a_column=round(len(X) / X.shape[1]),
        n_iter=model.n_iter_,
        status=model.fit_report_.status,
        cpu_seconds=round(cpu, 1),
        **{score: round(value, 4) for score, value in found.items()},
    )


if __name__ == "__main__":
    main()
