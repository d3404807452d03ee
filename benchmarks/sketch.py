#!/usr/bin/env python3
"""Sketch-and-project, stochastic dual descent and conjugate gradients at equal passes: JSON lines.

    python benchmarks/sketch.py                              # 20,000 drawn rows, 50 passes
    python benchmarks/sketch.py --n 50000 --noise 1e-4 --passes 20 50
    python benchmarks/sketch.py --part many                  # 50 ill-conditioned problems

A pass evaluates the n^2 entries of the kernel matrix once. All solve for the mean of the exact
process in single precision, with their default settings: ADASAP (blocks of 1,000 rows, rank 100)
with the iterate and with tail averaging, SDD, conjugate gradients with a randomly pivoted Cholesky
preconditioner of --rank (100 as in arXiv 2505.13723; 200 is the default of estimators), and with
the PIC preconditioner of the last solve of a large table (rank 1,000, at most a tenth of the rows,
and blocks of twice as many rows). Seconds include the preconditioner.

table   n rows of --columns uniform columns, with a function drawn from a Matern process (nu = 5/2)
        of variance 1 and length scales from 1 to 4, and noise of the variance --noise; RMSE and
        NLPD of 1,000 further rows at the true hyperparameters, with the variances of their 256
        nearest rows, whose own mean is the line "neighbors". The matrix is kept, so that
        seconds are those of solvers beside a product from memory; --tiled evaluates it.
many    50 processes of 1 to 8 columns with Matern (3/2, 5/2) and Gaussian covariance, noise
        variances from 1e-6 to 1e-2 and --n rows (2,000); the residuals against |y|, and NLPD minus
        that of the dense solution in double precision
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
    from uci import plain, versions

    torch.set_num_threads(args.threads)
    for found in table(args) if args.part == "table" else many(args):
        line = dict(benchmark="sketch", part=args.part, n=args.n, **found)
        line |= dict(
            rank=args.rank,
            seed=args.seed,
            threads=args.threads,
            load=round(os.getloadavg()[0], 1),
            machine=args.machine,
            date=datetime.date.today().isoformat(),
            versions=versions(),
            command=shlex.join(["python", "benchmarks/sketch.py", *(argv or sys.argv[1:])]),
        )
        print(json.dumps(plain(line), allow_nan=False), flush=True)


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=("table", "many"), default="table")
    parser.add_argument("--n", type=int, help="default: 20,000, or 2,000 for --part many")
    parser.add_argument("--columns", type=int, default=6)
    parser.add_argument("--noise", type=float, nargs="+", default=[1e-4], help="variances")
    parser.add_argument("--passes", type=float, nargs="+", default=[20.0, 50.0])
    parser.add_argument("--rank", type=int, default=100, help="of the preconditioner")
    parser.add_argument("--problems", type=int, default=50, help="of --part many")
    parser.add_argument("--first", type=int, default=0, help="problem of --part many, to go on")
    parser.add_argument("--solvers", nargs="+", metavar="NAME", help="default: all")
    parser.add_argument("--tiled", action="store_true", help="do not keep the matrix")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default=f"{os.cpu_count()}-core {platform.machine()} CPU")
    args = parser.parse_args(argv)
    args.n = args.n or (20_000 if args.part == "table" else 2000)
    return args


def solvers(args):
    from skscalablegp.preconditioners import PIC, PivotedCholesky
    from skscalablegp.solvers import ADASAP, CG, SDD, BlockCG

    pivots = PivotedCholesky(rank=args.rank, randomized=True, random_state=args.seed)
    rank = min(1000, args.n // 10)
    known = {
        "adasap": ADASAP(random_state=args.seed),
        "adasap, tail average": ADASAP(random_state=args.seed, tail_averaging=True),
        "sdd": SDD(random_state=args.seed),
        "cg": CG(pivots),
        "block_cg, PIC": BlockCG(PIC(rank, 2 * rank, random_state=args.seed)),
    }
    return {name: known[name] for name in args.solvers or known}


# ------------------------------------------------------------------ one table


def drawn(args, noise):
    """Rows, targets and the kernel; the last 1,000 rows are for tests."""
    import numpy as np
    import torch
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    rng, q = np.random.default_rng(args.seed), 2**13
    X = rng.uniform(-2, 2, (args.n + 1000, args.columns))
    length_scale = np.geomspace(1.0, 4.0, args.columns)
    # A Student density of 2 nu = 5 degrees of freedom.
    frequencies = rng.standard_normal((q, args.columns)) / length_scale
    frequencies *= np.sqrt(5 / rng.chisquare(5, (q, 1)))
    weights = torch.tensor(rng.standard_normal((2, q)) / q**0.5)
    frequencies, y = torch.tensor(frequencies), []
    for part in torch.tensor(X).split(512):
        angles = part @ frequencies.T
        y.append(angles.cos() @ weights[0] + angles.sin() @ weights[1])
    y = torch.cat(y) + noise**0.5 * torch.tensor(rng.standard_normal(len(X)))
    kernel = Matern(length_scale, nu=2.5) + WhiteKernel(noise)
    return torch.tensor(X), y[:, None], kernel


def table(args):
    for noise in args.noise:
        X, Y, kernel = drawn(args, noise)
        yield from lines_of(args, X, Y, kernel, dict(noise=noise, columns=args.columns))


def lines_of(args, X, Y, kernel, facts):
    import torch

    from skscalablegp import NNGPRegressor
    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.gradients import GPProblem, Rows
    from skscalablegp.solvers import MaxEpochs, solve

    n = args.n
    near = NNGPRegressor(kernel, n_neighbors=256, optimizer=None, normalize_y=False)
    near.fit(X[:n].numpy(), Y[:n, 0].numpy())
    mean, std = map(torch.tensor, near.predict(X[n:].numpy(), return_std=True))
    yield dict(solver="neighbors", **facts, **scores(Y[n:, 0], mean, std))

    compiled = compile_kernel(kernel, X.shape[1])
    theta = compiled.theta0
    problem = GPProblem(compiled, Rows.of(X[:n].float(), Y[:n].float()), keep=not args.tiled)
    cross = compiled.cross(theta, X[n:], X[:n])
    for name, solver in solvers(args).items():
        for passes in args.passes:
            operator = problem.operator(theta)
            start = time.process_time()
            found = solve(operator, problem.Y, solver, stopping=MaxEpochs(passes))
            seconds = time.process_time() - start
            yield dict(
                solver=name,
                passes=passes,
                epochs=round(found.epochs, 1),
                residual=float(found.residuals[0]),
                n_halvings=found.stats.get("n_halvings"),
                cpu_seconds=round(seconds, 1),
                **facts,
                **scores(Y[n:, 0], (cross @ found.value.double())[:, 0], std),
            )


def scores(y, mean, std):
    import math

    error = y - mean
    nll = 0.5 * ((error / std).square() + (2 * math.pi * std.square()).log()).mean()
    return dict(rmse=round(float(error.square().mean().sqrt()), 5), nll=round(float(nll), 4))


# ------------------------------------------------------------------ many problems


def many(args):
    for number in range(args.first, args.problems):
        yield from one_of_many(args, number)


def one_of_many(args, number):
    import numpy as np
    import torch
    from sklearn.gaussian_process.kernels import Matern, WhiteKernel

    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.gradients import GPProblem, Rows
    from skscalablegp.solvers import MaxEpochs, solve

    n, rng = args.n, np.random.default_rng([args.seed, number])
    d, nu = int(rng.integers(1, 9)), (1.5, 2.5, np.inf)[number % 3]
    length_scale, noise = np.exp(rng.uniform(np.log(0.3), np.log(8))), 10 ** rng.uniform(-6, -2)
    X = rng.uniform(-1, 1, (n + 200, d)) if number % 2 else rng.standard_normal((n + 200, d))
    kernel = compile_kernel(Matern(length_scale, nu=nu) + WhiteKernel(noise), d)
    theta, X = kernel.theta0, torch.tensor(X)
    G = kernel.cross(theta, X, X)
    G.diagonal().add_(noise)
    y = torch.linalg.cholesky(G) @ torch.tensor(rng.standard_normal((n + 200, 1)))
    H, cross = G[:n, :n], G[n:, :n]
    values = torch.linalg.eigvalsh(H)
    best = torch.linalg.solve(H, y[:n])
    left = G.diagonal()[n:] - (cross * torch.linalg.solve(H, cross.T).T).sum(1)
    std = left.clamp_min(noise).sqrt()
    exact = scores(y[n:, 0], (cross @ best)[:, 0], std)["nll"]
    facts = dict(problem=number, columns=d, nu=nu, noise=float(f"{noise:.2e}"), exact_nll=exact)
    facts |= dict(condition=float(f"{float(values[-1] / values[0]):.2e}"))
    problem = GPProblem(kernel, Rows.of(X[:n].float(), y[:n].float()))
    for name, solver in solvers(args).items():
        found = solve(problem.operator(theta), problem.Y, solver, stopping=MaxEpochs(50.0))
        x = found.value.double()
        residual = float((y[:n] - H @ x).norm() / y[:n].norm())
        nll = scores(y[n:, 0], (cross @ x)[:, 0], std)["nll"]
        halvings = found.stats.get("n_halvings")
        yield dict(solver=name, residual=residual, nll=nll, n_halvings=halvings, **facts)


if __name__ == "__main__":
    main()
