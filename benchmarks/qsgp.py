#!/usr/bin/env python3
"""Quadruply stochastic models: cost of a step, variance of the estimates, accuracy.

    python benchmarks/qsgp.py steps                 # seconds a step against n and m
    python benchmarks/qsgp.py variance              # the paper's figure 1, on kin40k
    python benchmarks/qsgp.py table --dataset kin40k [--basis rows]
    python benchmarks/qsgp.py digits --classes 2
    python benchmarks/qsgp.py curve                 # test NLL against time, SVGP's beside it
    python benchmarks/qsgp.py picture               # doc/qsgp_curve.png, from the kept lines

Every line printed is one JSON record; ``--keep`` appends it to benchmarks/results/qsgp.jsonl. Data
come from the folder named by SKSCALABLEGP_DATA (digits: mnist10k.npz there).
"""

import argparse
import json
import os
import shlex
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from uci import load, plain, scores, versions

from skscalablegp import QSGPClassifier, QSGPRegressor, SVGPRegressor
from skscalablegp.core.data import RowSource, Scaling
from skscalablegp.kernels import compile_kernel
from skscalablegp.likelihoods import Gaussian
from skscalablegp.models.sampled import (
    BasisDraw,
    Flattening,
    Projection,
    QSGPStepper,
    SampledWeights,
    SeededFourier,
    Site,
    SparseSGD,
    StepSizes,
    SupportRows,
    sampled_squares,
)

RESULTS = Path(__file__).parent / "results" / "qsgp.jsonl"


def kernel(d, length_scale=2.0, noise=0.1):
    return ConstantKernel(1.0) * RBF(np.full(d, length_scale)) + WhiteKernel(noise)


def steps(args):
    """Seconds of processor time a step, n and m growing; X memory-mapped, frequencies redrawn."""
    d, s, b = 8, 100, 500
    folder = Path(args.folder)
    rng = np.random.default_rng(0)
    compiled = compile_kernel(kernel(d), d)
    for n, m in [(10**4, 10**4), (10**6, 10**4), (10**4, 10**6), (10**4, 10**7), (10**6, 10**7)]:
        path = folder / f"rows_{n}.npy"
        if not path.exists():
            np.save(path, rng.standard_normal((n, d), dtype=np.float32))
        X = np.load(path, mmap_mode="r")
        Y = np.zeros((n, 1))
        unit = Scaling(np.zeros(d), np.ones(d), np.zeros(1), np.ones(1))
        source = RowSource(X, Y, unit)
        basis = SeededFourier(compiled, m // 2, 0)
        object.__setattr__(basis, "_kept", None)  # regenerated at every size, not only at the last
        rows, targets = source.rows(np.arange(s + b + 50))
        support = SupportRows.at(
            compiled, compiled.theta0, rows[:s], targets[:s], rows[s : s + 50], targets[s : s + 50]
        )
        gram = compiled.cross(compiled.theta0, support.all_rows.double(), support.X.double())
        flattening = Flattening.build(support, gram, rows[-b:], 10.0, n)
        coef = torch.zeros(2, m // 2, 1)
        weights = SampledWeights(coef, torch.zeros(s + 50, 1, dtype=torch.float64), 0, s)
        stepper = _Timed(
            source,
            basis,
            Site(Gaussian(), 0.1, 10.0),
            support,
            flattening,
            SparseSGD(1.0),
            weights,
            torch.ones(2, m // 2),
            StepSizes(b, 4),
            np.random.default_rng(0),
        )
        # The process's first steps are slower, whatever their size.
        for _ in range(args.repeats):
            stepper.step()
        times = []
        for _ in range(args.repeats):
            start = time.process_time()
            stepper.step()
            times.append(time.process_time() - start)
        yield dict(
            what="step",
            n=n,
            m=m,
            features=2048,
            rows=b,
            cpu_seconds_median=round(float(np.median(times)), 5),
            cpu_seconds_least=round(min(times), 5),
            weights_mb=round(coef.nbytes / 2**20, 2),
        )


class _Timed(QSGPStepper):
    """Without the pass over the basis that only scores need."""

    def refresh(self):
        self._check_std = torch.zeros(1, 1, dtype=torch.float64)


class SupportSquares:
    """The paper's control variate (eq. 3, proposition 3): squared norms at the support rows."""

    def __init__(self, a):
        self.a = a

    def correction(self, left, right, n):
        """Zero in expectation, as is its gradient; to be added to the sum of squares."""
        pl, pr = left.support(), right.support()
        # The exact a'a has a dense gradient: keep what is drawn, rescaled (appendix F.1), half on
        # each draw.
        moved = 0.5 * (pl - pl.detach()) + 0.5 * (pr - pr.detach())
        expected = self.a.square().sum() + 2 * (self.a * moved).sum()
        return n / len(self.a) * (expected - (pl * pr).sum())


def variance(args):
    """Variance of mu'Phi'Phi mu and of its gradient against the control variate's rank."""
    X_train, _, y_train, _ = load("kin40k", 0, 0, 0)
    n, d = X_train.shape
    rng = np.random.default_rng(0)
    start = QSGPRegressor(kernel(d, 1.0), n_components=512, inference="exact", random_state=0)
    chosen = rng.permutation(n)[:1000]
    start.fit(X_train[chosen], y_train[chosen])
    compiled = compile_kernel(start.kernel_, d)
    theta, m, u, b = compiled.theta0, 10_000, 500, 500
    noise = float(compiled.noise(theta, torch.zeros(1, d))[0])
    basis = SeededFourier(compiled, m // 2, 0, 10)
    X = torch.as_tensor(X_train, dtype=torch.float32)
    mu = torch.as_tensor(rng.standard_normal((2, m // 2, 1)), dtype=torch.float32)
    whole = basis.part(np.arange(basis.n_blocks))
    base = None
    for rank in args.ranks:
        p = torch.as_tensor(rng.permutation(n)[: max(rank, 1)])
        support = SupportRows.at(compiled, theta, X[p], X[p, :1], X[p[:1]], X[p[:1], :1])
        a = whole.evaluate(theta, X[p]) @ mu.reshape(-1, 1)
        for name in ["none"] if rank == 0 else ["squares", "projection"]:
            values, first, second = [], 0.0, 0.0
            for _ in range(args.repeats):
                rows = torch.as_tensor(rng.choice(n, b, replace=False))
                draws = []
                for _ in range(2):
                    part, scale = basis.draw(u // 20, rng)
                    w = mu[:, part.index].reshape(-1, 1).clone().requires_grad_()
                    phi = part.evaluate(theta, X[rows])
                    draws.append((part, BasisDraw(phi, w, scale, part.evaluate(theta, X[p]))))
                A = support.regression(support.cross(X[rows]))
                none = Projection(0 * A, a)
                left, right = draws[0][1], draws[1][1]
                control = Projection(A, a) if name == "projection" else none
                value = sampled_squares(left, right, n, control)
                if name == "squares":
                    value = value + SupportSquares(a).correction(left, right, n)
                value = value / noise
                found = torch.autograd.grad(value, [data.weights for _, data in draws])
                gradient = torch.zeros(2, m // 2)
                for (part, _), g in zip(draws, found, strict=True):
                    gradient.index_add_(1, part.index, g.reshape(2, -1))
                values.append(float(value.detach()))
                first, second = first + gradient.double(), second + gradient.double().square()
            mean = first / args.repeats
            spread = float((second / args.repeats - mean.square()).mean())
            now = np.array([np.var(values), spread])
            base = now if rank == 0 else base
            yield dict(
                what="variance",
                dataset="kin40k",
                control=name,
                rank=rank,
                draws=args.repeats,
                value_share=round(now[0] / base[0], 4),
                gradient_share=round(now[1] / base[1], 4),
            )


def table(args):
    """Accuracy on one split, standardised units."""
    X_train, X_test, y_train, y_test = load(args.dataset, args.split, 0, 0)
    settings = dict(args.set)
    model = QSGPRegressor(
        kernel(X_train.shape[1], 1.0), basis=args.basis, random_state=0, **settings
    )
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(X_train, y_train)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    mean, std = model.predict(X_test, return_std=True)
    yield dict(
        what="table",
        dataset=args.dataset,
        split=args.split,
        basis=args.basis,
        settings=settings,
        fit_seconds=round(wall, 1),
        fit_cpu_seconds=round(cpu, 1),
        **scores(y_test, {"mean": mean, "std": std}),
        n_iter=model.n_iter_,
        stop=model.fit_report_.status,
        history_seconds=[round(s, 1) for s in model.history_["seconds"]],
        history=[round(o, 4) for o in model.history_["objective"]],
    )


def digits(args):
    """Odd against even digits, or all ten."""
    from sklearn.metrics import accuracy_score, log_loss

    data = np.load(Path(os.environ["SKSCALABLEGP_DATA"]) / "mnist10k.npz")
    order = np.random.default_rng(0).permutation(10_000)
    X, y = data["X"][order].astype(np.float32) / 255, data["y"][order].astype(int)
    y = y % 2 if args.classes == 2 else y
    settings = dict(args.set)
    model = QSGPClassifier(
        ConstantKernel(1.0) * RBF(8.0) + WhiteKernel(0.1),
        standardize=False,
        random_state=0,
        **settings,
    )
    wall, cpu = time.perf_counter(), time.process_time()
    model.fit(X[:9000], y[:9000])
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    P = model.predict_proba(X[9000:])
    yield dict(
        what="digits",
        classes=args.classes,
        settings=settings,
        fit_seconds=round(wall, 1),
        fit_cpu_seconds=round(cpu, 1),
        accuracy=accuracy_score(y[9000:], P.argmax(1)),
        log_loss=log_loss(y[9000:], P),
        kernel=str(model.kernel_),
    )


def curve(args):
    """One fit for each budget and estimator, of one kernel, scored on the test rows."""
    X_train, X_test, y_train, y_test = load(args.dataset, args.split, 0, 0)
    start = kernel(X_train.shape[1], 1.0)
    for budget in args.budgets:
        settings = dict(max_seconds=budget, random_state=0)
        for name, model in {
            "QSGPRegressor": QSGPRegressor(start, **settings),
            "SVGPRegressor": SVGPRegressor(start, max_iter=10**6, **settings),
        }.items():
            wall, cpu = time.perf_counter(), time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # the budget is meant to end it
                model.fit(X_train, y_train)
            wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
            mean, std = model.predict(X_test, return_std=True)
            yield dict(
                what="curve",
                dataset=args.dataset,
                split=args.split,
                estimator=name,
                max_seconds=budget,
                fit_seconds=round(wall, 1),
                fit_cpu_seconds=round(cpu, 1),
                n_iter=model.n_iter_,
                stop=model.fit_report_.status,
                **scores(y_test, {"mean": mean, "std": std}),
            )


def picture(args):
    """Test NLL and RMSE against processor seconds, from the last kept line of each fit."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = [json.loads(text) for text in RESULTS.read_text("utf-8").splitlines()]
    curves = [x for x in lines if x["what"] == "curve" and x["dataset"] == args.dataset]
    points = {(x["estimator"], x["max_seconds"]): x for x in curves}
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for ax, score, label in zip(axes, ("nll", "rmse"), ("test NLL", "test RMSE"), strict=True):
        for name in sorted({name for name, _ in points}):
            own = sorted((b, x) for (other, b), x in points.items() if other == name)
            ax.plot(
                [x["fit_cpu_seconds"] for _, x in own], [x[score] for _, x in own], "o-", label=name
            )
        ax.set(
            xscale="log", xlabel="processor seconds of fit", ylabel=f"{label}, standardised target"
        )
        ticks = [t for t in (4, 8, 16, 32, 64, 128, 256, 512) if t <= 1.3 * max(args.budgets)]
        ax.set_xticks(ticks, map(str, ticks))
        ax.minorticks_off()
        ax.grid(alpha=0.3)
    axes[0].legend()
    fig.suptitle(f"{args.dataset}, split 0, one thread")
    fig.savefig(Path(__file__).resolve().parents[1] / "doc" / "qsgp_curve.png", dpi=110)
    return ()


TASKS = (steps, variance, table, digits, curve, picture)


def main():
    from uci import setting

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", choices=["steps", "variance", "table", "digits", "curve", "picture"]
    )
    parser.add_argument("--dataset", default="kin40k")
    parser.add_argument("--split", type=int, default=0)
    parser.add_argument("--basis", default="fourier", choices=["fourier", "rows"])
    parser.add_argument("--classes", type=int, default=2, choices=[2, 10])
    parser.add_argument("--budgets", type=float, nargs="+", default=[8, 16, 32, 64, 128, 256])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--ranks", type=int, nargs="+", default=[0, 100, 300, 500])
    parser.add_argument("--folder", default=".", help="where memory maps are written")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--set", action="append", default=[], type=setting, metavar="NAME=VALUE")
    parser.add_argument("--keep", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    for record in globals()[args.what](args):
        record |= dict(
            date=time.strftime("%Y-%m-%d"),
            machine="2-core x86-64 CPU",
            threads=args.threads,
            versions=versions(),
            command=shlex.join(["python", "benchmarks/qsgp.py", *sys.argv[1:]]),
        )
        line = json.dumps(plain(record))
        print(line, flush=True)
        if args.keep:
            with open(RESULTS, "a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
