#!/usr/bin/env python3
"""Time products, fits and steps with 1, 2, 4 ... workers, alone and on a busy machine.

    python benchmarks/cores.py
    python benchmarks/cores.py --part product --workers 2 --before PATH

One JSON line a measurement. Every one is a process of its own, with torch's number of threads at
the number of workers and the environment's settings of OpenMP as they are. Conditions:

quiet   one process
busy    the same beside two others that compute without end
three   three of the same at once; seconds are those of the last to end

Parts:

product     a product with H over --product-rows rows, --columns columns and 65 right-hand sides in
            float32, never stored; the median of several; one for each size of tiles with --tile
features    64 samples of a prior at 20,000 rows by 2,000 random features; the median of several
rff         the log marginal likelihood of RFFRegressor with its gradient, and the posterior of its
            weights, for 20,000 rows and 2,000 random features
ssrff       a step of SSRFFRegressor for 4,000 rows, whose random increment leads from 1,400 to
            1,500 random features; the median of three
moments     moments of 100,000 rows on the default grids of KISSGPRegressor in two and three
            columns, and on its sum of grids over eight columns
exact       a fit of IterativeGPRegressor to --exact-rows rows, by default exactly
cg          a fit of IterativeGPRegressor to --cg-rows rows with solver="block_cg"
svgp, scgd  a step of SVGPRegressor and of SCGDDKLRegressor: the training of --steps steps or of one
            epoch with its scores, without what comes before and after it, divided by its steps
threads     a matrix product and a Cholesky factorisation of growing size in float64, in one thread
            and in as many as the largest number of workers, in turns (quiet and busy only): from
            which number of operations on a step of training should use several threads

--before PATH has the folder of an earlier version of the package: its processes take turns with
those of this one. Where GPyTorch is installed (pip install skscalablegp[peers]) --peer gives its
processes a turn as well: 100 steps of Adam on the exact likelihood, and steps of SVGP.
"""

import argparse
import json
import os
import pickle
import platform
import shlex
import statistics
import subprocess
import sys
import time
import warnings
from contextlib import contextmanager
from datetime import date
from importlib.metadata import version
from pathlib import Path

import numpy as np

PARTS = (
    "product",
    "features",
    "rff",
    "ssrff",
    "moments",
    "exact",
    "cg",
    "svgp",
    "scgd",
    "threads",
    "small",
)
SPIN = "import os, numpy as np\nA = np.ones((300, 300))\nwhile os.getppid() != 1:\n    A @ A"
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
ROOT = Path(__file__).resolve().parent.parent


def table(n, d=8):
    """A smooth function of some columns, noise of a tenth of its size."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-2, 2, (n, d))
    f = np.sin(2 * X[:, 0]) + X[:, 1] * X[:, 2] + 0.5 * X[:, 3]
    return X, f + 0.1 * rng.standard_normal(n)


# ---------------------------------------------------------------- what is timed, in its own process


def product(args):
    import torch

    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.operators import KernelOperator

    n, d, generator = args.product_rows, args.columns, torch.Generator().manual_seed(0)
    X, V = (torch.randn(n, k, generator=generator) for k in (d, 65))
    kernel = compile_kernel(default_kernel(d), d)
    theta = kernel.theta0
    theta[1:-1] = 0.5 * np.log(d)  # typical distances are about 1
    operator = KernelOperator(kernel, theta, X, tile=args.tile[0] if args.tile else None)
    operator.matmul(V)
    print("begins", flush=True)
    return [clocked(lambda: operator.matmul(V)) for _ in range(args.repeats)]


def features(args):
    import torch

    from skscalablegp.features import sample_prior_features
    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg import operators

    kernel, generator = compile_kernel(default_kernel(8), 8), torch.Generator().manual_seed(0)
    phi = sample_prior_features(kernel, 8, 1000, generator, torch.float32)
    X, w = (torch.randn(shape, generator=generator) for shape in ((20_000, 8), (2000, 64)))
    # Earlier versions multiplied the whole matrix.
    whole = lambda phi, theta, X, w: phi.evaluate(theta, X) @ w  # noqa: E731
    product = getattr(operators, "prior_values", whole)
    product(phi, kernel.theta0, X, w)
    print("begins", flush=True)
    return [clocked(lambda: product(phi, kernel.theta0, X, w)) for _ in range(args.repeats)]


def rff(args):
    import torch

    from skscalablegp.features import sample_prior_features
    from skscalablegp.models.fourier._collapsed import (
        collapsed_marginal_likelihood,
        feature_weights,
    )

    problem, generator = prior_problem(20_000)
    features = sample_prior_features(problem.kernel, 8, 1000, generator)
    theta, few = problem.kernel.theta0, problem.subset(torch.arange(2048))

    def work(problem):
        collapsed_marginal_likelihood(problem, theta, features)
        feature_weights(problem, theta, features)

    work(few)
    print("begins", flush=True)
    return [clocked(lambda: work(problem))]


def ssrff(args):
    import torch

    from skscalablegp.linalg.truncation import Truncation
    from skscalablegp.models.fourier import FeatureLevels, single_sample_terms

    problem, generator = prior_problem(4000)
    always = torch.eye(35, dtype=torch.float64)[9]  # level 15, where 6 is the first and 40 the last
    levels = FeatureLevels(100, Truncation(6, 40, always, torch.ones_like(always)))
    theta = problem.kernel.theta0
    print("begins", flush=True)
    return [
        clocked(lambda: single_sample_terms(problem, theta, levels, generator)) for _ in range(3)
    ]


def prior_problem(n):
    """A table with the default kernel, and a random generator."""
    import torch

    from skscalablegp.kernels import compile_kernel, default_kernel
    from skscalablegp.linalg.gradients import GPProblem, Rows

    X, y = (torch.as_tensor(a) for a in table(n))
    problem = GPProblem(compile_kernel(default_kernel(8), 8), Rows.of(X, y[:, None]))
    return problem, torch.Generator().manual_seed(0)


def moments(args):
    from skscalablegp.core.data import Table
    from skscalablegp.models.grid import _grid
    from skscalablegp.models.grid._moments import grid_moments

    cases = []
    for d, size, structure in ((2, 100, "product"), (3, 36, "product"), (8, 100, "additive")):
        X, y = table(100_000, max(d, 4))
        X, axes = (
            X[:, :d],
            [_grid.Axis(j, -2 - 8 / (size - 5), 4 / (size - 5), size) for j in range(d)],
        )
        parts = tuple((axis,) for axis in axes) if structure == "additive" else (tuple(axes),)
        rows = Table(X, y, np.zeros(()), np.ones(()), np.zeros(len(X)))
        cases.append((rows, _grid.Grid(parts, d)))

    def work():
        for case in cases:
            grid_moments(*case)

    print("begins", flush=True)
    return [clocked(work)]


def exact(args):
    from skscalablegp import IterativeGPRegressor

    return fitted(IterativeGPRegressor(random_state=0), args.exact_rows)


def cg(args):
    from skscalablegp import IterativeGPRegressor

    return fitted(IterativeGPRegressor(solver="block_cg", random_state=0), args.cg_rows)


def svgp(args):
    from skscalablegp import SVGPRegressor

    model = SVGPRegressor(n_inducing=200, batch_size=256, max_iter=args.steps, random_state=0)
    return stepped(model, args.steps)


def scgd(args):
    from skscalablegp import SCGDDKLRegressor

    model = SCGDDKLRegressor(batch_size=64, max_epochs=1, random_state=0)
    return stepped(model, 10_000 // 64)


def stepped(model, steps):
    """Seconds of a step: from the first score to the last, in the stage that takes all steps."""
    marks = []

    def mark(step):
        if step.stage == "full":
            marks.append((time.perf_counter(), time.process_time()))

    fitted(model.set_params(callbacks=mark), 10_000)
    return [tuple((last - first) / steps for first, last in zip(marks[0], marks[-1], strict=True))]


def peer_exact(args):
    import gpytorch
    import torch

    X, y, model = peer(gpytorch.models.ExactGP, args.exact_rows)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    bound = gpytorch.mlls.ExactMarginalLogLikelihood(model.likelihood, model)
    return peer_steps(optimizer, lambda: -bound(model(X), y), 100)


def peer(base, n, strategy=None):
    """A table and a Matern-3/2 process with a length scale a column."""
    import gpytorch
    import torch

    X, y = (torch.tensor(a, dtype=torch.float32) for a in table(n))
    likelihood = gpytorch.likelihoods.GaussianLikelihood()

    class Model(base):
        def __init__(self):
            super().__init__(*((strategy(self),) if strategy else (X, y, likelihood)))
            self.likelihood, self.mean = likelihood, gpytorch.means.ZeroMean()
            matern = gpytorch.kernels.MaternKernel(nu=1.5, ard_num_dims=X.shape[1])
            self.kernel = gpytorch.kernels.ScaleKernel(matern)

        def forward(self, X):
            return gpytorch.distributions.MultivariateNormal(self.mean(X), self.kernel(X))

    return X, y, Model()


def peer_steps(optimizer, loss, steps):
    print("begins", flush=True)

    def train():
        for _ in range(steps):
            optimizer.zero_grad()
            loss().backward()
            optimizer.step()

    return [clocked(train)]


def peer_svgp(args):
    import gpytorch
    import torch

    points = torch.tensor(table(200)[0], dtype=torch.float32)
    belief = gpytorch.variational.CholeskyVariationalDistribution(len(points))

    def strategy(model):
        return gpytorch.variational.VariationalStrategy(model, points, belief)

    X, y, model = peer(gpytorch.models.ApproximateGP, 10_000, strategy)
    bound = gpytorch.mlls.VariationalELBO(model.likelihood, model, len(X))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def loss():
        rows = torch.randint(len(X), (256,))
        return -bound(model(X[rows]), y[rows])

    found = peer_steps(optimizer, loss, args.steps)
    return [tuple(seconds / args.steps for seconds in one) for one in found]


def fitted(model, n):
    X, y = table(n)
    print("begins", flush=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return [clocked(lambda: model.fit(X, y))]


def clocked(function):
    """Seconds of the clock and of the processor."""
    clock, processor = time.perf_counter(), time.process_time()
    function()
    return time.perf_counter() - clock, time.process_time() - processor


def small(args):
    """Prints a line for each number of rows."""
    import skscalablegp as package

    spent, inside = [0.0], [False]

    def counted(fit):
        def inner(*args, **kwargs):
            if inside[0]:
                return fit(*args, **kwargs)
            inside[0], begun = True, time.process_time()
            try:
                return fit(*args, **kwargs)
            finally:
                inside[0], spent[0] = False, spent[0] + time.process_time() - begun

        return inner

    name = args.estimator[0]
    if name in META:
        for other in set(estimators()) - set(META):
            cls = getattr(package, other)
            cls.fit = counted(cls.fit)
    for n in args.small_rows:
        X, y = table(n)
        y = (y > np.median(y)).astype(int) if name.endswith("Classifier") else y
        took, members = [], []
        for _ in range(1 + args.small_repeats):
            spent[0], model = 0.0, getattr(package, name)(random_state=0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                took.append(clocked(lambda model=model, X=X, y=y: model.fit(X, y))[1])
            members.append(spent[0])
        # The first fit in a process also loads libraries.
        found = {"first": took[0]} if n == args.small_rows[0] else {}
        found |= {"seconds": statistics.median(took[1:])}
        found |= {"members": statistics.median(members[1:])} if name in META else {}
        found = {key: round(value, 3) for key, value in found.items()}
        print(json.dumps({"n": n, **found, "bytes": len(pickle.dumps(model))}), flush=True)


META = ("HeteroscedasticRegressor", "LOVEPredictor", "MeanFunctionRegressor", "StackedGPRegressor")


def estimators():
    import skscalablegp

    names = skscalablegp.__all__
    return [name for name in names if name.endswith(("Regressor", "Classifier", "Predictor"))]


def child(args):
    import torch

    torch.set_num_threads(args.workers[0])
    found = globals()[args.child](args)
    if args.child == "small":
        return
    print(json.dumps([statistics.median(column) for column in zip(*found, strict=True)]))


def threads(count):
    """Median seconds with one thread and with `count`, for each size."""
    import torch

    for size in (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1448):
        A = torch.randn(size, size, dtype=torch.float64)
        H = A @ A.T + size * torch.eye(size, dtype=torch.float64)
        seconds = {1: [], count: []}
        for _ in range(int(np.clip(2e9 / size**3, 7, 200))):
            for number, found in seconds.items():
                torch.set_num_threads(number)
                found.append(clocked(lambda A=A, H=H: (A @ A, torch.linalg.cholesky(H)))[0])
        medians = {number: float(f"{statistics.median(v):.3g}") for number, v in seconds.items()}
        yield dict(size=size, flops=2 * size**3, seconds=medians)


# ---------------------------------------------------------------- conditions


@contextmanager
def beside(condition):
    """Two other processes that compute, if the machine is to be busy."""
    others = [
        subprocess.Popen([sys.executable, "-c", SPIN]) for _ in range(2 * (condition == "busy"))
    ]
    try:
        yield
    finally:
        for process in others:
            process.kill()


def measured(name, workers, condition, folder, words):
    """Seconds of one process, or of the last of three that began together."""
    command = [sys.executable, __file__, "--child", name, "--workers", str(workers), *words]
    paths = filter(None, [str(folder), os.environ.get("PYTHONPATH")])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    pipes = {"stdout": subprocess.PIPE, "text": True, "env": environment}
    count = 3 if condition == "three" else 1
    with beside(condition):
        started = [subprocess.Popen(command, **pipes) for _ in range(count)]
        try:
            found = [json.loads(one.communicate()[0].splitlines()[-1]) for one in started]
        finally:
            for process in started:
                process.kill()
    return dict(
        seconds=round(max(clock for clock, _ in found), 4),
        processor_seconds=round(statistics.mean(processor for _, processor in found), 4),
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", default=list(PARTS), choices=PARTS)
    cores = os.cpu_count()
    powers = [2**k for k in range(7) if 2**k <= cores]
    parser.add_argument("--workers", nargs="+", type=int, default=powers)
    conditions = ("quiet", "busy", "three")
    parser.add_argument("--condition", nargs="+", default=list(conditions), choices=conditions)
    sizes = {"product-rows": 8192, "exact-rows": 4000, "cg-rows": 13_500, "steps": 200}
    sizes |= {"columns": 26, "small-repeats": 2}
    parser.add_argument("--tile", nargs="+", type=int, help="of part product, not the package's")
    parser.add_argument("--estimator", nargs="+", help="of part small; all by default")
    small_rows = [100, 199, 200, 201, 202]
    parser.add_argument("--small-rows", nargs="+", type=int, default=small_rows)
    for size, default in (sizes | {"repeats": 7}).items():
        parser.add_argument(f"--{size}", type=int, default=default)
    parser.add_argument("--rounds", type=int, default=1, help="turns of every side")
    parser.add_argument("--before", metavar="PATH", help="folder of an earlier version's package")
    parser.add_argument("--peer", action="store_true", help="give GPyTorch a turn as well")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args)
    words = [w for size in (*sizes, "repeats") for w in (f"--{size}", str(value(args, size)))]
    if "threads" in args.part:
        args.part.remove("threads")
        for condition in args.condition:
            with beside(condition):
                for line in threads(max(args.workers)) if condition != "three" else ():
                    line = dict(part="threads", condition=condition) | line | about(args)
                    print(json.dumps(line), flush=True)
    if "small" in args.part:
        args.part.remove("small")
        for name in args.estimator or estimators():
            command = [sys.executable, __file__, "--child", "small", "--estimator", name, *words]
            command += ["--small-rows", *map(str, args.small_rows), "--workers", "1"]
            said = subprocess.check_output(command, text=True, env=os.environ | ONE_THREAD)
            for line in map(json.loads, said.splitlines()):
                line = dict(part="small", estimator=name) | line | about(args)
                print(json.dumps(line), flush=True)
    for part in args.part:
        sides = {"skscalablegp": (part, ROOT)}
        if args.tile and part == "product":
            sides = {f"tile {size}": (part, ROOT) for size in args.tile}
        if args.before:
            sides["before"] = part, Path(args.before).resolve()
        if args.peer and part in ("exact", "svgp"):
            sides["gpytorch"] = f"peer_{part}", ROOT
        for workers in args.workers:
            for condition in args.condition:
                for turn in range(args.rounds):
                    for side, (name, folder) in sides.items():
                        line = dict(part=part, side=side, workers=workers, condition=condition)
                        line |= dict(turn=turn, load=[round(x, 2) for x in os.getloadavg()])
                        more = ["--tile", side.split()[1]] if side.startswith("tile") else []
                        line |= measured(name, workers, condition, folder, [*words, *more])
                        print(json.dumps(line | about(args)), flush=True)


def value(args, size):
    return getattr(args, size.replace("-", "_"))


def about(args):
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    return dict(
        rows={"product": args.product_rows, "exact": args.exact_rows, "cg": args.cg_rows},
        machine=dict(cores=os.cpu_count(), kind=platform.machine()),
        date=date.today().isoformat(),
        commit=commit.stdout.strip(),
        versions={name: version(name) for name in ("torch", "numpy", "scikit-learn")},
        command=shlex.join(["python", "benchmarks/cores.py", *sys.argv[1:]]),
    )


if __name__ == "__main__":
    main()
