#!/usr/bin/env python3
"""Train by every linear solver, gradient estimator and warm start; one line of JSON for each.

    python benchmarks/solvers.py --dataset pol --n-train 2000
    python benchmarks/solvers.py --dataset pol --n-train 2000 --solvers cg ap --gradients pathwise

The grid of Lin et al. (2024): Adam with a fixed rate from hyperparameters of 1, Matern-3/2 with one
length scale a column, a solve a step to --tol or --max-epochs. ``epochs`` are those of all training
steps; the preconditioner's are among them, those of the posterior's solve are not.
``theta_difference`` is the largest difference between log hyperparameters after the last step and
those of the same training with exact gradients, whose line comes first. ``capped_steps`` counts the
solves that ended at the budget: their epochs are a lower bound.
"""

import argparse
import json
import os
import platform
import shlex
import sys
import time
import warnings
from datetime import date


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch
    import uci

    torch.set_num_threads(args.threads)
    data = uci.load(args.dataset, args.split, args.n_train, args.seed)
    shared = dict(
        dataset=args.dataset,
        split=args.split,
        n_train=len(data[0]),
        steps=args.steps,
        lr=args.lr,
        tol=args.tol,
        max_epochs=args.max_epochs,
        n_probes=args.n_probes,
        dtype=args.dtype,
        threads=args.threads,
        date=date.today().isoformat(),
        machine=args.machine,
        versions=uci.versions(),
        command=shlex.join(
            ["python", "benchmarks/solvers.py", *(sys.argv[1:] if argv is None else argv)]
        ),
    )

    def report(cell, line):
        print(json.dumps(uci.plain({**cell, **line, **shared}), allow_nan=False), flush=True)

    if args.cold_at:
        for line in cold_solves(args, data):
            report({}, line)
        return
    exact = exact_theta(args.exact_from)
    if exact is None and not args.skip_exact:
        _, line = run(args, data, solver="cholesky", gradient="exact", warm=False)
        report(dict(solver="cholesky", gradient="exact", warm=False), line)
        exact = line["theta"]
    for name in args.solvers:
        for gradient in args.gradients:
            for warm in args.warm:
                solver = make_solver(name, args.block_size)
                _, line = run(args, data, solver=solver, gradient=gradient, warm=bool(warm))
                if exact is not None and line["steps_done"] == args.steps:
                    pairs = zip(line["theta"], exact, strict=True)
                    line["theta_difference"] = round(max(abs(a - b) for a, b in pairs), 4)
                report(dict(solver=name, gradient=gradient, warm=bool(warm)), line)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="pol", metavar="NAME", help="a name of fetch_uci")
    parser.add_argument("--split", type=int, default=0, help="published split, 0 to 9")
    parser.add_argument("--n-train", type=int, default=2000, metavar="N", help="0: all rows")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--solvers", nargs="+", default=["cg", "ap", "sgd"], metavar="NAME")
    parser.add_argument("--gradients", nargs="+", default=["standard", "pathwise"])
    parser.add_argument("--warm", nargs="+", type=int, default=[0, 1], help="0 cold, 1 warm")
    parser.add_argument("--steps", type=int, default=100, help="of Adam")
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--tol", type=float, default=0.01)
    parser.add_argument("--max-epochs", type=float, default=1000, help="of one step")
    parser.add_argument("--max-seconds", type=float, default=None, help="of one cell's training")
    parser.add_argument("--n-probes", type=int, default=64)
    parser.add_argument("--block-size", type=int, default=250, help="also of batches")
    parser.add_argument(
        "--cold-at",
        nargs="+",
        type=int,
        metavar="STEP",
        help="only solve afresh at these steps of one training by block CG: a sample of cold cells",
    )
    parser.add_argument("--exact-from", metavar="FILE", help="lines with the exact cell")
    parser.add_argument("--skip-exact", action="store_true", help="no exact cell to compare with")
    parser.add_argument("--dtype", default="float64", choices=["float32", "float64"])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    return parser.parse_args(argv)


def exact_theta(path):
    """The hyperparameters of the exact cell among the lines of an earlier run, if there is one."""
    if path is None:
        return None
    with open(path) as lines:
        cells = [json.loads(line) for line in lines]
    return next((cell["theta"] for cell in cells if cell["gradient"] == "exact"), None)


def make_solver(name, block_size):
    """A solver by the name of the cell; cg is the paper's, cg-rpN has N random pivots."""
    from skscalablegp.preconditioners import PivotedCholesky
    from skscalablegp.solvers import ADASAP, AP, CG, SDD, SGD, BlockCG

    for prefix, kind in (("cg-rp", CG), ("block-cg-rp", BlockCG)):
        if name.startswith(prefix):
            rank = int(name[len(prefix) :])
            return kind(PivotedCholesky(rank=rank, randomized=True, random_state=0))
    table = {
        "cg": lambda: CG(PivotedCholesky(rank=100)),
        "block-cg": lambda: BlockCG(PivotedCholesky(rank=100)),
        "ap": lambda: AP(block_size),
        "sgd": lambda: SGD(block_size),
        "sdd": lambda: SDD(block_size),
        "adasap": lambda: ADASAP(block_size),
        "adasap-exact": lambda: ADASAP(block_size, rank=None),
    }
    if name not in table:
        raise SystemExit(
            f"Unknown solver {name!r}: use one of {', '.join(table)}, cg-rpN, block-cg-rpN."
        )
    return table[name]()


def cold_solves(args, data):
    """Epochs of single cold solves for standard normal probes along one training's path."""
    import torch
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    from skscalablegp.gradients import StandardGradient
    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.operators import DenseOperator, KernelOperator
    from skscalablegp.solvers import solve

    model, _ = run(args, data, make_solver("block-cg-rp200", 0), "pathwise", warm=True)
    X, y = torch.as_tensor(data[0]), torch.as_tensor(data[2])
    form = ConstantKernel() * Matern([1.0] * X.shape[1], nu=1.5) + WhiteKernel()
    generator = torch.Generator().manual_seed(args.seed)
    probes = torch.randn(len(X), args.n_probes, generator=generator, dtype=torch.float64)
    B = torch.cat([y[:, None], probes], 1)
    rule = StandardGradient(
        n_probes=args.n_probes, solver_tol=args.tol, solver_max_epochs=args.max_epochs
    )
    for step in args.cold_at:
        theta = torch.as_tensor(model.history_["theta"][step - 1])
        kernel = compile_kernel(form.clone_with_theta(theta.numpy()), X.shape[1])
        H = KernelOperator(kernel, theta, X).to_dense()
        for name in args.solvers:
            solver = make_solver(name, args.block_size)
            solution = solve(DenseOperator(H), B, solver, stopping=rule.stopping(1))
            yield dict(
                solver=name,
                gradient="standard",
                warm=False,
                step=step,
                epochs=round(solution.epochs, 1),
                status=solution.status.value,
                residual_target=round(float(solution.residuals[0]), 4),
                residual_probes=round(float(solution.residuals[1:].mean()), 4),
                seconds=round(solution.stats["seconds"], 1),
            )


def run(args, data, solver, gradient, warm):
    """Train one cell; the fitted model and what is printed about it."""
    import numpy as np
    import uci
    from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

    from skscalablegp import IterativeGPRegressor
    from skscalablegp.training import Adam

    X, X_test, y, y_test = data
    wide = (1e-8, 1e8)
    kernel = ConstantKernel(1.0, wide) * Matern(np.ones(X.shape[1]), wide, nu=1.5)
    model = IterativeGPRegressor(
        kernel + WhiteKernel(1.0, wide),
        solver=solver,
        gradient=gradient,
        solver_warm_start=warm,
        optimizer=Adam(args.lr),
        subset_size=None,
        n_iter_no_change=None,
        max_iter=args.steps,
        solver_max_epochs=args.max_epochs,
        max_seconds=args.max_seconds,
        solver_tol=args.tol,
        n_probes=args.n_probes,
        posterior="exact" if len(X) <= 20_000 else "pathwise",
        dtype=args.dtype,
        random_state=args.seed,
    )
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y)
    seconds = time.perf_counter() - start
    scores = uci.scores(y_test, uci.predict(model, X_test))
    history = model.history_
    residuals = np.array(history["residual"])
    return model, dict(
        epochs=round(float(sum(history["epochs"])), 1),
        seconds=round(seconds, 1),
        training_seconds=round(float(history["seconds"][-1]), 1),
        rmse=scores["rmse"],
        nll=scores["nll"],
        steps_done=len(residuals),
        capped_steps=int((np.array(history["epochs"]) >= args.max_epochs * (1 - 1e-9)).sum()),
        largest_residual=round(float(residuals.max()), 4),
        theta=[round(float(value), 6) for value in history["theta"][-1]],
        epochs_by_step=[round(float(e), 1) for e in history["epochs"]],
        setting=str(solver),
        warnings=sorted({f"{w.category.__name__}: {w.message}" for w in caught}),
    )


if __name__ == "__main__":
    main()
