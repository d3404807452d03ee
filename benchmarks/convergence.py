#!/usr/bin/env python3
"""Steps and processor seconds until exact training is within 0.1 nats of the optimum.

    OMP_NUM_THREADS=1 python benchmarks/convergence.py --rows 2000 --problem arm32

One JSON line for each way: quasi-Newton steps whose first inverse Hessian is a multiple of the unit
matrix ("plain"); those whose first inverse Hessian is the inverse Fisher information of 300 random
rows ("fisher"); and the package's default, in which several starts are compared first ("default").
The first two begin with the same values: length scales of twice the root of the number of columns,
in units of their spread, and a noise variance of a tenth. The optimum is the best value that any
way has found. A way that has ended at another optimum has no time to it.
"""

import argparse
import json
import time
from datetime import date

import numpy as np
import torch
from compare import revision as commit_of
from starts_problems import problem

from skscalablegp import __version__
from skscalablegp.core import (
    Run,
    StageSettings,
    data_scaled_kernel,
    fit_hyperparameters,
    plan_training,
)
from skscalablegp.core.training import Monitor, QuasiNewton
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import ExactGradient, GPProblem, Rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--problem", default="arm32")
    parser.add_argument("--max-iter", type=int, default=150)
    args = parser.parse_args()
    X, y = problem(args.problem)[:2]
    X, y = X[: args.rows], y[: args.rows]
    X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
    ways = {"fisher": QuasiNewton(), "default": QuasiNewton()}
    ways["plain"] = QuasiNewton(information_rows=0)
    traces = {name: trained(X, y, name, ways[name], args.max_iter) for name in ways}
    best = max(value for trace in traces.values() for _, value in trace)
    for name, trace in traces.items():
        near = [k for k, (_, value) in enumerate(trace) if value > best - 0.1]
        line = dict(
            way=name,
            problem=args.problem,
            rows=len(X),
            columns=X.shape[1],
            steps=len(trace),
            cpu_seconds=round(trace[-1][0], 2),
            value=round(max(value for _, value in trace), 3),
            steps_to_a_tenth=near[0] + 1 if near else None,
            cpu_seconds_to_a_tenth=round(trace[near[0]][0], 2) if near else None,
        )
        kind = dict(threads=torch.get_num_threads(), version=__version__, commit=commit_of())
        print(json.dumps(line | kind | {"date": str(date.today())}), flush=True)


def trained(X, y, name, optimizer, max_iter):
    """Processor seconds and log likelihood of every step."""
    kernel = compile_kernel(data_scaled_kernel(X, y), X.shape[1])
    nothing = torch.zeros(len(X), dtype=torch.float64)
    rows = GPProblem(kernel, Rows.of(torch.tensor(X), torch.tensor(y[:, None]), nothing))
    theta = kernel.theta0.numpy()
    if name != "default":
        theta[1:-1] += np.log(2 * np.sqrt(X.shape[1]))
        theta[-1] += np.log(0.1)
    trace, begun = [], time.process_time()

    def keep(step):
        trace.append((time.process_time() - begun, step.objective))

    run = Run(Monitor([keep]), torch.Generator().manual_seed(0), np.random.RandomState(0))
    plan = plan_training(StageSettings(optimizer, max_iter), True, len(X))
    compare = name == "default"
    fit_hyperparameters(rows, ExactGradient(), theta, plan, run, compare_starts=compare)
    return trace


if __name__ == "__main__":
    main()
