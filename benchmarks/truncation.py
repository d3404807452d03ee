#!/usr/bin/env python3
"""What randomised truncation costs and gains, as lines of JSON.

    python benchmarks/truncation.py train --dataset bike --steps 300
    python benchmarks/truncation.py train --dataset pol --steps 200 --methods exact cg:20 rrcg:20
    python benchmarks/truncation.py toy
    python benchmarks/truncation.py cost --dataset bike
    python benchmarks/truncation.py search --dataset pol --n 3000

train  Adam on all of --n rows, RBF with ARD and white noise, 10 Rademacher probes, float64, no
       preconditioner; the exact negative log marginal likelihood per row at the last iterate and
       at the mean of the last five
toy    the length scale learned on y = x sin(5 pi x) + e, the other hyperparameters fixed
cost   seconds, variance, epochs and peak memory of a gradient at the starting hyperparameters
search the search of the README over the four laws of truncation: mean score on three folds,
       hyperparameters after a refit on all rows, and the share of steps that did cut a series

Methods of a search are the laws' names; those of the others are exact, cg:J, rrcg:J (E[J] = J),
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
        "train": train_method,
        "toy": toy_method,
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
    "train": ["exact", "rrcg:40", "rrcg:20", "cg:20", "cg:10"],
    "toy": ["exact", "cg:5", "cg:7", "cg:10", "rrcg:10", "rff:50", "rff:100", "ssrff:100"],
    "cost": [f"{name}:{j}" for j in (10, 20, 40, 100) for name in ("cg", "rrcg")]
    + ["rff:500", "ssrff:500"],
    "search": ["exponential", "geometric", "reciprocal", "fixed"],
}


def parse_args(argv):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["train", "toy", "cost", "search"])
    parser.add_argument("--dataset", default="bike", help="a name of fetch_uci")
    parser.add_argument("--n", type=int, default=1500, help="rows, the first of split 0")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--rate", type=float, default=0.05, help="of Adam")
    parser.add_argument(
        "--transform", default="log", choices=["log", "softplus"], help="what Adam's steps change"
    )
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
    from skscalablegp.linalg.gradients import GPProblem

    X, _, y, _ = fetch_uci(args.dataset, split=0, return_X_y=True)
    keep = np.random.RandomState(args.seed).permutation(len(X))[: args.n]
    X, y = X[keep], y[keep]
    std = X.std(0)
    X = (X - X.mean(0)) / np.where(std > 0, std, 1.0)
    y = (y - y.mean()) / y.std()
    d = X.shape[1]
    kernel = ConstantKernel(1.0, (1e-5, 1e5)) * RBF(np.ones(d), (1e-3, 1e4))
    kernel = kernel + WhiteKernel(1.0, (args.noise_floor, 1e2))
    return GPProblem(compile_kernel(kernel, d), torch.tensor(X), torch.tensor(y[:, None]))


def toy_problem(seed, n=200):
    """y = x sin(5 pi x) + e with variance .01; everything but the length scale is known."""
    import numpy as np
    import torch
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

    from skscalablegp.kernels import compile_kernel
    from skscalablegp.linalg.gradients import GPProblem

    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-1, 1, n))
    y = x * np.sin(5 * np.pi * x) + 0.1 * rng.standard_normal(n)
    kernel = ConstantKernel(1.0, "fixed") * RBF(0.1, (1e-3, 10)) + WhiteKernel(0.01, "fixed")
    return GPProblem(compile_kernel(kernel, 1), torch.tensor(x[:, None]), torch.tensor(y[:, None]))


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


def negative_likelihood(problem, theta):
    import torch

    from skscalablegp.linalg.gradients import exact_marginal_likelihood

    value = exact_marginal_likelihood(problem, torch.as_tensor(theta), eval_gradient=False).value
    return round(-value / len(problem.X), 4)


def adam_path(args, problem, method, steps, rate, decay=1.0):
    """Every theta that Adam visits, seconds, and why it stopped."""
    import torch

    from skscalablegp.core.training import Monitor, train
    from skscalablegp.training import Adam

    generator = torch.Generator().manual_seed(args.seed)
    estimator = gradient(method, problem, args.probes, generator)
    thetas, monitor = [], Monitor()
    monitor.callbacks = [lambda step: thetas.append(step.theta)]
    start = time.perf_counter()
    result = train(
        problem,
        estimator,
        Adam(rate, decay=decay, transform=args.transform),
        problem.kernel.theta0.numpy(),
        problem.kernel.bounds.numpy(),
        max_iter=steps,
        monitor=monitor,
        generator=generator,
        average=5,
    )
    return thetas, time.perf_counter() - start, result.stop_reason, monitor


def train_method(args, method):
    import numpy as np

    problem = table_problem(args)
    thetas, seconds, reason, monitor = adam_path(args, problem, method, args.steps, args.rate)
    marks = [k for k in (50, 100, 200, 300) if k < len(thetas)]
    return dict(
        dataset=args.dataset,
        n=args.n,
        noise_floor=args.noise_floor,
        transform=args.transform,
        steps=len(thetas),
        stop_reason=reason,
        nll_per_row=negative_likelihood(problem, thetas[-1]),
        nll_per_row_mean_of_5=negative_likelihood(problem, np.mean(thetas[-5:], axis=0)),
        nll_per_row_after={str(k): negative_likelihood(problem, thetas[k]) for k in marks},
        seconds_per_step=round(seconds / len(thetas), 4),
        epochs_per_step=round(float(np.mean([step.epochs for step in monitor.steps])), 2),
        log_hyperparameters=[round(float(v), 3) for v in thetas[-1]],
    )


def toy_method(args, method):
    import numpy as np

    problem = toy_problem(args.seed)
    steps = 2000 if method.startswith("ssrff") else args.steps
    thetas, seconds, _, _ = adam_path(args, problem, method, steps, args.rate, decay=0.02)
    scale = float(np.exp(np.mean(thetas[-steps // 10 :])))
    return dict(
        n=len(problem.X), steps=steps, length_scale=round(scale, 5), seconds=round(seconds, 2)
    )


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

    X, _, y, _ = fetch_uci(args.dataset, split=0, return_X_y=True)
    keep = np.random.RandomState(args.seed).permutation(len(X))[: args.n]
    model = make_pipeline(StandardScaler(), RRCGRegressor(normalize_y=True, random_state=args.seed))
    search = GridSearchCV(model, {"rrcgregressor__truncation": [method]}, cv=3)
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
