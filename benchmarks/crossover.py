#!/usr/bin/env python3
"""Seconds of one training step, exact or stochastic, for growing tables, as lines of JSON.

    python benchmarks/crossover.py
    python benchmarks/crossover.py --n 2000 4000 8000 --noise 0.01 0.1
    python benchmarks/crossover.py --dataset pol --n 4000 8000
    python benchmarks/crossover.py --part variances --dataset pol --n 8000

exact       float32 Cholesky factor, its inverse, and the gradient: two n x n matrices
stochastic  the pathwise gradient: conjugate gradients on the targets and 16 probes to a relative
            residual of 0.01, each solve started from the last one; H is kept

Hyperparameters move by a fixed small amount between steps, as they do while training, and the two
take turns. The solves' cost depends on the conditioning, hence on the noise variance; that of the
factorisation does not. The lines justify EXACT_TRAINING_ROWS in models/iterative/_plan.py.

The variances are those of 500 rows that are held out, at hyperparameters from 1,500 rows: by a
Cholesky factor in float64 and in float32, by nearest rows (posterior="neighbors"), by 64 samples
(posterior="pathwise") and by LOVE of rank 400. The errors are relative ones of the standard
deviation of observations and of the latent function, against the first; milliseconds a row are
processor time.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import time

from products import synchronize, versions


def main(argv=None):
    args = parse_args(argv)
    # Before anything imports numpy or torch: their thread pools read these once.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    for n in args.n:
        for found in variances(args, n) if args.part == "variances" else steps(args, n):
            report = dict(benchmark="crossover", part=args.part, n=n, **found)
            report |= dict(
                dataset=args.dataset,
                device=args.device,
                threads=args.threads,
                n_probes=args.probes,
                tol=args.tol,
                rank=args.rank,
                steps=args.steps,
                seed=args.seed,
                load=[round(x, 2) for x in os.getloadavg()],
                versions=versions(),
                command=shlex.join(
                    ["python", "benchmarks/crossover.py", *(sys.argv[1:] if argv is None else argv)]
                ),
            )
            print(json.dumps(report, allow_nan=False), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("steps", "variances"), default="steps")
    parser.add_argument("--n", type=int, nargs="+", default=[2000, 4000, 6000, 8000, 12000, 16000])
    parser.add_argument("--noise", type=float, nargs="+", default=[0.01], help="noise variances")
    parser.add_argument("--d", type=int, default=8, help="columns of the made-up table")
    parser.add_argument("--dataset", help="a name of fetch_uci instead of a made-up table")
    parser.add_argument("--probes", type=int, default=16)
    parser.add_argument("--tol", type=float, default=0.01)
    parser.add_argument("--rank", type=int, default=100, help="of the preconditioner")
    parser.add_argument("--max-epochs", type=float, default=1000)
    parser.add_argument("--move", type=float, default=0.02, help="of log hyperparameters, a step")
    parser.add_argument("--steps", type=int, default=3, help="measured steps after a first one")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def table(args, n):
    """Standardised rows and targets."""
    import numpy as np

    random = np.random.RandomState(args.seed)
    if args.dataset:
        from skscalablegp.datasets import fetch_uci

        X, y = fetch_uci(args.dataset, return_X_y=True)
        if n > len(X):
            raise SystemExit(f"{args.dataset} has {len(X)} rows, not {n}.")
        keep = random.permutation(len(X))[:n]
        X, y = X[keep], y[keep]
        spread = X.std(0)
        return (X - X.mean(0)) / np.where(spread > 0, spread, 1), (y - y.mean()) / y.std()
    X = random.standard_normal((n, args.d))
    y = np.sin(2 * X[:, 0]) + X[:, 1 % args.d] * X[:, 2 % args.d] + np.cos(X.sum(1))
    y = y / y.std() + 0.1 * random.standard_normal(n)
    return X, (y - y.mean()) / y.std()


def steps(args, n):
    """A line for each noise variance."""
    for noise in args.noise:
        yield dict(noise=noise, **measure(args, n, noise))


def variances(args, n):
    """A line for each way to compute variances."""
    import numpy as np
    from sklearn.frozen import FrozenEstimator

    from skscalablegp import IterativeGPRegressor, LOVEPredictor

    X, y = table(args, n + 500)
    rows, few, new = slice(0, n), slice(0, 1500), X[n:]
    kernel = IterativeGPRegressor(random_state=args.seed).fit(X[few], y[few]).kernel_
    fixed = dict(optimizer=None, normalize_y=True, random_state=args.seed)
    ways = {
        "exact float64": dict(posterior="exact", dtype="float64"),
        "exact float32": dict(posterior="exact", dtype="float32"),
        "neighbors": dict(posterior="neighbors"),
        "pathwise": dict(posterior="pathwise"),
        "love": None,
    }
    truth = exact = None
    for name, settings in ways.items():
        begun = time.process_time()
        if settings is None:
            model = LOVEPredictor(FrozenEstimator(exact), max_variance_rank=400)
        else:
            model = IterativeGPRegressor(kernel, **fixed, **settings)
        model.fit(X[rows], y[rows])
        fitted = time.process_time()
        mean, std = model.predict(new, return_std=True)
        done = time.process_time()
        found = std, model.predict_std(new, include_noise=False)
        if truth is None:
            truth, exact = found, model
        wrong = [one / other - 1 for one, other in zip(found, truth, strict=True)]
        nll = 0.5 * np.mean(((y[n:] - mean) / std) ** 2 + np.log(2 * np.pi * std**2))
        yield dict(
            way=name,
            kernel=str(kernel),
            fit_cpu_seconds=round(fitted - begun, 2),
            ms_a_row=round(2 * (done - fitted), 3),
            rmse=round(float(np.sqrt(np.mean((y[n:] - mean) ** 2))), 5),
            nll=round(float(nll), 5),
            observed_rms=round(float(np.sqrt(np.mean(wrong[0] ** 2))), 6),
            observed_max=round(float(np.abs(wrong[0]).max()), 6),
            latent_rms=round(float(np.sqrt(np.mean(wrong[1] ** 2))), 6),
            latent_max=round(float(np.abs(wrong[1]).max()), 6),
        )


def measure(args, n, noise):
    """Median seconds of a step of each kind, and what the solves said."""
    import torch

    from skscalablegp.gradients import ExactGradient, GradientState, PathwiseGradient
    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.gradients import GPProblem, Rows
    from skscalablegp.preconditioners import PivotedCholesky
    from skscalablegp.solvers import CG

    X, y = (
        torch.as_tensor(part, dtype=torch.float32, device=args.device) for part in table(args, n)
    )
    d = X.shape[1]
    kernel = compile_kernel(default_kernel(d), d)
    theta = kernel.theta0
    theta[1:-1] = 0.5 * torch.log(torch.tensor(float(d)))
    theta[-1] = torch.log(torch.tensor(noise))
    problem = GPProblem(kernel, Rows.of(X, y[:, None]))
    preconditioner = PivotedCholesky(rank=args.rank, randomized=True, random_state=args.seed)
    pathwise = PathwiseGradient(
        CG(preconditioner),
        n_probes=args.probes,
        solver_tol=args.tol,
        solver_max_epochs=args.max_epochs,
    )
    generator = torch.Generator().manual_seed(args.seed)
    state, seconds, solutions = GradientState(generator), {"exact": [], "stochastic": []}, []
    for step in range(args.steps + 1):
        for name, estimator in (("exact", ExactGradient()), ("stochastic", pathwise)):
            synchronize(args.device)
            start = time.perf_counter()
            estimate, new_state = estimator.estimate(problem, theta + args.move * step, state)
            synchronize(args.device)
            seconds[name].append(time.perf_counter() - start)
            if estimate.solution is not None:
                state = new_state
                solutions.append(estimate.solution)
    exact, stochastic = (statistics.median(seconds[name][1:]) for name in seconds)
    return dict(
        d=d,
        exact_seconds=round(exact, 4),
        stochastic_seconds=round(stochastic, 4),
        exact_over_stochastic=round(exact / stochastic, 3),
        exact_first_seconds=round(seconds["exact"][0], 4),
        stochastic_first_seconds=round(seconds["stochastic"][0], 4),
        epochs=[round(solution.epochs, 1) for solution in solutions],
        status=sorted({solution.status.value for solution in solutions}),
    )


if __name__ == "__main__":
    main()
