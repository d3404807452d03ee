#!/usr/bin/env python3
"""The cost of randomised truncation, and a search over its distributions, as lines of JSON.

    python benchmarks/truncation.py cost --dataset bike
    python benchmarks/truncation.py search --dataset pol --n 3000
    python benchmarks/truncation.py search --n 1500 --methods exponential:20 exponential:40

cost   seconds, variance, epochs and peak memory of a gradient at the starting hyperparameters
search a search over the four distributions of truncation: mean score on three folds,
       hyperparameters after a refit on all rows, and the share of steps that did cut a series

Methods of a search are the laws' names, with LAW:K for a preconditioner whose rank is the rows of
a fold divided by K, also for predictions; those of the others are exact, cg:J, rrcg:J (E[J] = J),
rff:COMPONENTS and ssrff:MIN_COMPONENTS.
"""

import argparse
import datetime
import json
import os
import shlex
import statistics
import sys
import time
import weakref
from contextlib import contextmanager

from products import versions

RATES = {10: 0.2, 20: 0.1}


def main(argv=None):
    args = parse_args(argv)
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[variable] = str(args.threads)
    import torch

    torch.set_num_threads(args.threads)
    measure = {
        "cost": cost_method,
        "search": search_method,
    }[args.what]
    for method in args.methods or METHODS[args.what]:
        report = dict(benchmark="truncation", what=args.what, method=method)
        report |= measure(args, method)
        report |= dict(
            threads=args.threads,
            seed=args.seed,
            date=datetime.date.today().isoformat(),
            machine=args.machine,
            load=[round(x, 2) for x in os.getloadavg()],
            versions=versions(),
            command=shlex.join(
                ["python", "benchmarks/truncation.py", *(sys.argv[1:] if argv is None else argv)]
            ),
        )
        print(json.dumps(report, allow_nan=False), flush=True)


METHODS = {
    "cost": [f"{name}:{j}" for j in (10, 20, 40, 100) for name in ("cg", "rrcg")]
    + ["rff:500", "ssrff:500"],
    "search": ["exponential", "geometric", "reciprocal", "fixed"],
}


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["cost", "search"])
    parser.add_argument("--dataset", default="bike", help="a name of fetch_uci")
    parser.add_argument("--n", type=int, default=1500, help="rows, the first of split 0")
    parser.add_argument("--probes", type=int, default=10)
    parser.add_argument("--noise-floor", type=float, default=1e-2, help="bound of the variance")
    parser.add_argument("--repeats", type=int, default=30, help="gradients of the cost table")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--machine", default="2-core x86-64 CPU")
    return parser.parse_args(argv)


# ---------------------------------------------------------------- problems and methods


def table_problem(args):
    """The first rows of a UCI set's training part, standardised."""
    import numpy as np
    import torch
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    from skscalablegp.datasets import fetch_uci
    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.gradients import GPProblem, Rows

    X, _, y, _ = fetch_uci(args.dataset, split=0, return_X_y=True)
    keep = np.random.RandomState(args.seed).permutation(len(X))[: args.n]
    X, y = X[keep], y[keep]
    std = X.std(0)
    X = (X - X.mean(0)) / np.where(std > 0, std, 1.0)
    y = (y - y.mean()) / y.std()
    d = X.shape[1]
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(np.ones(d), (1e-3, 1e4))
    kernel = kernel + WhiteKernel(1.0, (args.noise_floor, 1e2))
    return GPProblem(compile_kernel(kernel, d), Rows.of(torch.tensor(X), torch.tensor(y[:, None])))


def truncation(mean):
    from skscalablegp.truncation import ExponentialTruncation

    return ExponentialTruncation(RATES.get(mean, 0.05), expected_iter=mean)


def gradient(method, problem, n_probes, generator):
    """The estimator that a method's name means."""
    from skscalablegp.gradients import ExactGradient, TruncatedGradient
    from skscalablegp.truncation import FixedTruncation

    name, _, size = method.partition(":")
    if name == "exact":
        return ExactGradient()
    size = int(size)
    if name == "cg":
        return TruncatedGradient(FixedTruncation(size), n_probes=n_probes)
    if name == "rrcg":
        return TruncatedGradient(truncation(size), n_probes=n_probes)
    from skscalablegp.features import sample_prior_features
    from skscalablegp.models.fourier import FeatureGradient, SingleSampleGradient

    if name == "rff":
        d = problem.X.shape[1]
        features = sample_prior_features(problem.kernel, d, size // 2, generator)
        return FeatureGradient(features)
    return SingleSampleGradient(min_components=size, component_step=max(2, size // 5))


# ---------------------------------------------------------------- measurements


def cost_method(args, method):
    import torch

    from skscalablegp.gradients import GradientState

    problem = table_problem(args)
    theta = problem.kernel.theta0.clone()
    theta[-1] = -2.3  # a noise variance of 0.1, as later in training
    generator = torch.Generator().manual_seed(args.seed)
    estimator = gradient(method, problem, args.probes, generator)
    grads, seconds, epochs = [], [], []
    for k in range(args.repeats + 1):
        start = time.perf_counter()
        estimate, _ = estimator.estimate(problem, theta, GradientState(generator))
        if k:  # the first one warms up
            seconds.append(time.perf_counter() - start)
            grads.append(estimate.grad)
            epochs.append(estimate.solution.epochs if estimate.solution else 0.0)
    grads = torch.stack(grads)
    # The same truncations again, so that the longest draw is among those weighed.
    generator.manual_seed(args.seed)
    with live_bytes() as live:
        for _ in range(args.repeats):
            estimator.estimate(problem, theta, GradientState(generator))
    block = args.n * (args.probes + 1) * problem.X.element_size()
    return dict(
        dataset=args.dataset,
        n=args.n,
        seconds_mean=round(statistics.mean(seconds), 5),
        seconds_median=round(statistics.median(seconds), 5),
        epochs_mean=round(statistics.mean(epochs), 2),
        total_standard_deviation=round(float(grads.var(0).sum().sqrt()), 3),
        gradient_norm=round(float(grads.mean(0).norm()), 3),
        peak_mb=round(live["peak"] / 2**20, 2),
        peak_blocks_of_right_hand_sides=round(live["peak"] / block, 1),
    )


@contextmanager
def live_bytes():
    """{"peak": the most bytes that tensors made meanwhile held at a time}."""
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    count, known = {"now": 0, "peak": 0}, set()

    def gone(key, size):
        known.discard(key)
        count["now"] -= size

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            inputs = {
                t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if is_tensor(t)
            }
            result = func(*args, **(kwargs or {}))
            for tensor in tree_leaves(result):
                if not is_tensor(tensor):
                    continue
                storage = tensor.untyped_storage()
                key = storage._cdata
                if key not in inputs and key not in known:
                    known.add(key)
                    count["now"] += storage.nbytes()
                    weakref.finalize(storage, gone, key, storage.nbytes())
            count["peak"] = max(count["peak"], count["now"])
            return result

    from torch import is_tensor

    with Watch():
        yield count


# ---------------------------------------------------------------- search


def search_method(args, method):
    """One law of the README's search: a line a law, so that a run can be stopped and gone on."""
    import numpy as np
    from sklearn.model_selection import GridSearchCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    from skscalablegp import RRCGRegressor
    from skscalablegp.datasets import fetch_uci
    from skscalablegp.preconditioners import PivotedCholesky

    X, _, y, _ = fetch_uci(args.dataset, split=0, return_X_y=True)
    keep = np.random.RandomState(args.seed).permutation(len(X))[: args.n]
    law, _, divisor = method.partition(":")
    model = RRCGRegressor(normalize_y=True, random_state=args.seed)
    if divisor:
        rank = 2 * len(keep) // 3 // int(divisor)
        model.set_params(preconditioner=PivotedCholesky(rank, randomized=True))
    model = make_pipeline(StandardScaler(), model)
    search = GridSearchCV(model, {"rrcgregressor__truncation": [law]}, cv=3)
    started = time.process_time()
    search.fit(X[keep], y[keep])
    found = search.best_estimator_[-1]
    return dict(
        dataset=args.dataset,
        n=len(keep),
        score=search.best_score_,
        scores=[float(search.cv_results_[f"split{k}_test_score"][0]) for k in range(3)],
        theta=[round(float(value), 6) for value in found.kernel_.theta],
        log_marginal_likelihood=found.log_marginal_likelihood_value_,
        cut_share=found.fit_report_.cut_steps / found.n_iter_,
        n_iter=found.n_iter_,
        cpu_seconds=round(time.process_time() - started, 1),
    )


if __name__ == "__main__":
    main()
