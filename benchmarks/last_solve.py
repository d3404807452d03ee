#!/usr/bin/env python3
"""Both clocks of fits whose last solve ends early, and errors after each of its steps: JSON lines.

    python benchmarks/last_solve.py --table kin40k
    python benchmarks/last_solve.py --table kin40k --test --clock cpu
    python benchmarks/last_solve.py --table drawn --columns 10 --rows 100000 --clock cpu
    python benchmarks/last_solve.py --part steps --table kin40k --rank 350 700 1000

fit     an estimator (--estimator, --set) by default: wall and processor seconds of the fit, seconds
        of its stages by --clock, scores of 4,000 rows that are held out of the training rows, or of
        the test rows (--test), and what the report says of left-out rows
steps   the same fit, then the last solve again with PIC preconditioners of each --rank and blocks
        of twice as many rows, to a residual of 0.001: NLPD of 1,000 held-out rows after each step,
        from the weights alone and corrected by their 256 nearest rows, the scores of training rows
        that the solve does not have, and the step at which they would end it

``--clock cpu`` is for busy machines: one thread, whose processor seconds are the seconds of stages.
The drawn table is that of scale.py with another number of columns. Columns and targets are in
units of their standard deviations, as in uci.py.
"""

import argparse
import datetime
import json
import os
import platform
import shlex
import sys
import time
import warnings

VALUES = ["step", "residual", "processor seconds", "nlpd of weights", "nlpd corrected", "score"]


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch
    from uci import peak_resident_mb, plain, versions

    from skscalablegp._clock import clock

    torch.set_num_threads(args.threads)
    with clock(time.process_time if args.clock == "cpu" else time.perf_counter):
        for found in fit(args) if args.part == "fit" else steps(args):
            line = dict(benchmark="last_solve", part=args.part, table=args.table, **found)
            line |= dict(
                test=args.test,
                seed=args.seed,
                clock=args.clock,
                threads=args.threads,
                peak_rss_mb=peak_resident_mb(),
                load=round(os.getloadavg()[0], 1),
                machine=args.machine,
                date=datetime.date.today().isoformat(),
                versions=versions(),
                command=shlex.join(["python", "benchmarks/last_solve.py", *(argv or sys.argv[1:])]),
            )
            print(json.dumps(plain(line), allow_nan=False), flush=True)


def parse_args(argv):
    from uci import setting

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("fit", "steps"), default="fit")
    parser.add_argument("--table", default="drawn", help="drawn, flights, or a name of fetch_uci")
    parser.add_argument("--columns", type=int, default=10, help="of the drawn table")
    parser.add_argument("--rows", type=int, default=0, help="default: all, or 100,000 if drawn")
    parser.add_argument("--test", action="store_true", help="score the test rows")
    parser.add_argument("--estimator", default="IterativeGPRegressor")
    parser.add_argument("--set", action="append", type=setting, default=[], metavar="NAME=VALUE")
    parser.add_argument("--rank", type=int, nargs="+", default=[700], help="of --part steps")
    parser.add_argument("--max-steps", type=float, default=40, help="of --part steps")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    parser.add_argument("--threads", type=int, help="default: 2, or 1 with --clock cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    args = parser.parse_args(argv)
    args.threads = args.threads or (1 if args.clock == "cpu" else 2)
    return args


def rows_of(args):
    """Training rows and rows that score them, with their targets."""
    import numpy as np
    from uci import load

    if args.table == "drawn":
        import scale_cells

        scale_cells.COLUMNS = args.columns
        X, held_out, y, y_held_out = scale_cells.drawn(args.rows or 100_000, 4000, args.seed)
        return X, y, held_out, y_held_out
    X, X_test, y, y_test = load(args.table, 0, 0, args.seed)
    if args.test:
        return X[: args.rows or None], y[: args.rows or None], X_test, y_test
    order = np.random.default_rng(1).permutation(len(X))
    held_out, rows = order[:4000], order[4000:][: args.rows or None]
    return X[rows], y[rows], X[held_out], y[held_out]


def fitted(args, X, y):
    from uci import make_estimator

    model = make_estimator(args.estimator, dict(args.set), args.seed)
    wall, cpu = time.perf_counter(), time.process_time()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    took = dict(
        fit_seconds=round(time.perf_counter() - wall, 1),
        fit_cpu_seconds=round(time.process_time() - cpu, 1),
        stages={name: round(s, 2) for name, s in model.fit_report_.seconds.items()},
        warnings=[str(warning.message) for warning in caught],
    )
    return model, dict(n=len(X), columns=X.shape[1], estimator=args.estimator, **took)


def fit(args):
    from uci import predict, scores

    X, y, X_new, y_new = rows_of(args)
    model, facts = fitted(args, X, y)
    cpu = time.process_time()
    found = scores(y_new, predict(model, X_new))
    report = model.fit_report_
    line = dict(facts, **found, predict_cpu_seconds=round(time.process_time() - cpu, 2))
    line |= dict(set=dict(args.set), summary=report.summary, epochs=round(report.epochs, 2))
    if report.residuals is not None:
        line |= dict(residual=float(report.residuals.max()))
    for name in ("log_marginal_likelihood_value_", "log_marginal_likelihood_std_error_"):
        if hasattr(model, name):
            line[f"{name.rstrip('_')}_per_row"] = round(getattr(model, name) / len(X), 4)
    yield line


def steps(args):
    import torch

    from skscalablegp.core.data import random_rows
    from skscalablegp.linalg.solvers import solve
    from skscalablegp.models.iterative._early_end import HeldOutErrors
    from skscalablegp.models.iterative._plan import NEAREST
    from skscalablegp.preconditioners import PIC
    from skscalablegp.solvers import BlockCG, MaxIterations, RelativeResidual

    X, y, X_new, y_new = rows_of(args)
    model, _ = fitted(args, X, y)
    theta, dtype = torch.tensor(model.kernel_.theta), getattr(torch, model.dtype_)
    solved = torch.ones(len(X), dtype=torch.bool)
    solved[random_rows(len(X), len(X) // 50, torch.Generator().manual_seed(0))] = False
    whole = model._trained_problem(dtype)
    part = model._trained_problem(dtype, keep=8 * len(X) ** 2 < 9e9).subset(solved.nonzero()[:, 0])
    operator = part.operator(theta)
    scored = corrected_and_not(model, whole, theta, solved, X_new[:1000], y_new[:1000], NEAREST)
    stopping = RelativeResidual(1e-3) | MaxIterations(args.max_steps)
    for rank in args.rank:
        begun = time.process_time()
        P = PIC(rank, 2 * rank).build(operator, torch.Generator().manual_seed(0))
        took = round(time.process_time() - begun, 2)
        seen = Seen(HeldOutErrors(whole.operator(theta), whole.Y, solved, NEAREST), scored)
        solve(operator, part.Y, BlockCG(), stopping=stopping, preconditioner=P, callback=seen)
        yield dict(
            n=len(X),
            columns=X.shape[1],
            rank=rank,
            preconditioner_seconds=took,
            ended=seen.ended,
            values=VALUES,
            steps=seen.found,
        )


def corrected_and_not(model, whole, theta, solved, X_new, y_new, k):
    """The NLPD of new rows from weights alone, and corrected by neighbours, as a function."""
    import torch

    posterior, Z = model._posterior(), model._inputs(X_new)
    Y = torch.as_tensor((y_new[:, None] - model._y_train_mean) / model._y_train_std)
    cross, operator = posterior.cross(Z), whole.operator(theta)
    K = cross.to_dense()
    near = K.topk(k, 1, sorted=False).indices
    chosen = K.gather(1, near)
    blocks = (operator.block(rows).double() for rows in near)
    c = torch.stack([torch.linalg.solve(*pair) for pair in zip(blocks, chosen, strict=True)])
    variance = (cross.prior_diag() - (c * chosen).sum(1) + posterior.noise(Z))[:, None]
    held = (~solved).nonzero()[:, 0]
    H, v, left = operator.chosen(held), torch.zeros_like(whole.Y), torch.zeros_like(whole.Y)

    def nlpd(mean):
        density = (Y - mean).square() / variance + (2 * torch.pi * variance).log()
        return round(float(density.mean()) / 2, 4)

    def scored(state):
        v[solved], left[solved] = state.x, state.R
        left[held] = whole.Y[held] - H.matmul(v)
        mean = K @ v.double()
        return nlpd(mean), nlpd(mean + torch.einsum("mk,mkt->mt", c, left[near].double()))

    return scored


class Seen:
    """The callback of a solve, whose own seconds do not count."""

    def __init__(self, rule, scored):
        self.rule, self.scored, self.found, self.ended = rule, scored, [], None
        self.spent, self.since = 0.0, time.process_time()

    def __call__(self, state):
        self.spent += time.process_time() - self.since
        self.rule.watch(state)
        if self.ended is None and self.rule.check(None) is not None:
            self.ended = state.iteration
        norm = round(float(state.residual_norms.max()), 5)
        score = round(self.rule.scores[-1], 4)
        self.found.append((state.iteration, norm, round(self.spent, 2), *self.scored(state), score))
        self.since = time.process_time()


if __name__ == "__main__":
    main()
