#!/usr/bin/env python3
"""Tables and figures of Evans and Nair (2020), Quadruply stochastic Gaussian processes.

    python benchmarks/papers/qsgp.py                      # every cell that the results lack
    python benchmarks/papers/qsgp.py figure3 ablation     # the cells of some tables and figures
    python benchmarks/papers/qsgp.py table2 --only kin40k # cells whose names hold a word
    python benchmarks/papers/qsgp.py --report             # what there is, beside the paper's
    python benchmarks/papers/qsgp.py --plot               # doc/papers_qsgp.png, doc/qsgp_curve.png

Each cell appends one JSON line to benchmarks/results/qsgp.jsonl and is skipped where that has a
line of its name, so that a run goes on where it was stopped; --again measures anew. Data come from
the folder named by SKSCALABLEGP_DATA (digits: mnist10k.npz there). Seconds are processor seconds.

    table1    seconds a step at 100,000 features and 10,000 to 1,000,000 rows
    figure1   variance of the estimates against the rank of the control variate, on kin40k
    table2    Fourier features: by default, and as written (the paper's kernel and optimiser)
    table3    kernel functions at all rows
    figure2   standard deviations of kernel functions beside the exact process
    figure3   relevance vectors of a noisy sinc of 500 rows
    digits    odd against even digits, 9,000 rows
    ablation  what each departure from the paper brings, on 4,000 rows of kin40k; frequencies that
              are drawn again from their seeds, as in table1 at 10,000 rows
    curve     test NLPD on kin40k by steps, inducing points beside it
    distance  of sampled steps from the optimum of full batches, by likelihood
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

from uci import load, plain, scores, versions  # noqa: E402

from skscalablegp import (  # noqa: E402
    QSGPClassifier,
    QSGPRegressor,
    QSRVMRegressor,
    SVGPRegressor,
)

RESULTS = ROOT / "benchmarks" / "results" / "qsgp.jsonl"
SETS = ("kin40k", "protein", "keggdirected")
CURVE = {"QSGPRegressor": (25, 100, 400), "SVGPRegressor": (10, 40, 160)}
# Root mean squared error and negative log density: tables 2 and 3.
PAPER = {
    "table2": {"kin40k": (0.174, 0.135), "protein": (0.602, 1.34), "keggdirected": (0.135, -0.821)},
    "table3": {
        "kin40k": (0.154, -0.348),
        "protein": (0.598, 1.157),
        "keggdirected": (0.124, -0.554),
    },
}
# 100,000 steps are the paper's; as many as these show where they lead.
WRITTEN = dict(
    n_components=100_000,
    component_batch_size=10_000,
    batch_size=500,
    control_variate="squares",
    control_variate_rank=500,
    variational_optimizer="adagrad",
    optimizer="adam",
    covariance="chevron",
)


def kernel(d, length_scale=1.0, noise=0.1):
    return ConstantKernel(1.0) * RBF(np.full(d, length_scale)) + WhiteKernel(noise)


def measured(model, X, y, X_test, y_test):
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    seconds = time.process_time() - start
    mean, std = model.predict(X_test, return_std=True)
    found = scores(y_test, {"mean": mean, "std": std})
    return dict(found, cpu_seconds=round(seconds, 1), n_iter=model.n_iter_)


def regression(dataset, n_train=0, own_kernel=False, **settings):
    X, X_test, y, y_test = load(dataset, 0, n_train, 0)
    chosen = kernel(X.shape[1]) if own_kernel else None
    model = QSGPRegressor(chosen, random_state=0, **settings)
    return measured(model, X, y, X_test, y_test)


def table1(n):
    """Between two scores of one fit, ten steps apart; X is a memory map."""
    rng, times = np.random.default_rng(0), []
    with tempfile.TemporaryDirectory() as folder:
        X = np.lib.format.open_memmap(f"{folder}/X.npy", "w+", np.float32, (n, 8))
        for start in range(0, n, 10_000):
            X[start : start + 10_000] = rng.standard_normal((min(10_000, n - start), 8))
        settings = dict(n_components=100_000, component_batch_size=2048, control_variate_rank=200)
        model = QSGPRegressor(
            kernel(8, 2.0),
            basis="fourier",
            optimizer=None,
            standardize=False,
            max_iter=200,
            random_state=0,
            callbacks=lambda step: times.append(time.process_time()),
            **settings,
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model.fit(X, np.sin(X[:, 0]))
    return dict(cpu_seconds_a_step=round(float(np.median(np.diff(times))) / 10, 5))


def frequencies(stored):
    """Table 1 at 10,000 rows with frequencies that are stored, or drawn again in every step."""
    from skscalablegp.models.sampled import _basis

    limit = _basis._KEPT_NUMBERS
    try:
        _basis._KEPT_NUMBERS = limit if stored else 0
        return table1(10_000) | dict(stored_megabytes=50_000 * 8 * 4 / 1e6 if stored else 0.0)
    finally:
        _basis._KEPT_NUMBERS = limit


def figure1(rank, control, repeats=150):
    """Of mu'Phi'Phi mu / s2 and of its gradient, at 10,000 features and draws of 500."""
    from skscalablegp.kernels import compile_kernel
    from skscalablegp.likelihoods import Gaussian
    from skscalablegp.linalg.gradients import Rows
    from skscalablegp.models.sampled import (
        BasisDraw,
        NoiseAtRows,
        SampledBatch,
        SeededFourier,
        SupportRows,
        pull_of_squares,
        sampled_gradient,
        sampled_loss,
    )

    X, _, y, _ = load("kin40k", 0, 0, 0)
    (n, d), rng = X.shape, np.random.default_rng(0)
    chosen = rng.permutation(n)[:1000]
    start = QSGPRegressor(kernel(d), n_components=512, inference="exact", random_state=0)
    compiled = compile_kernel(start.fit(X[chosen], y[chosen]).kernel_, d)
    theta, m, u, b = compiled.theta0, 10_000, 500, 500
    noise = float(compiled.noise(theta, torch.zeros(1, d))[0])
    basis = SeededFourier(compiled, m // 2, 0, 10)
    X = torch.as_tensor(X, dtype=torch.float32)
    mu = torch.as_tensor(rng.standard_normal((2, m // 2, 1)), dtype=torch.float32)
    p = torch.as_tensor(rng.permutation(n)[: max(rank, 1)])
    support = SupportRows(compiled, theta, Rows.of(X[p], X[p, :1]), Rows.of(X[p[:1]], X[p[:1], :1]))
    a = basis.part(np.arange(basis.n_blocks)).evaluate(theta, X[p]) @ mu.reshape(-1, 1)
    known_noise = NoiseAtRows(Gaussian(), noise, 1 / noise)
    values, gradients, square = [], [], torch.zeros(b, 1)
    for _ in range(repeats):
        rows = X[torch.as_tensor(rng.choice(n, b, replace=False))]
        parts = [basis.draw(u // 20, rng) for _ in range(2)]
        draws, at_support = [], []
        for part in parts:
            w, correction = mu[:, part.index].reshape(-1, 1), 0.0
            at_support.append(BasisDraw(part.evaluate(theta, X[p]), w, part.scale))
            if control == "regression":
                A = support.regression(support.cross(rows))
                correction = A @ (a - at_support[-1].function())
            draws.append(BasisDraw(part.evaluate(theta, rows), w, part.scale, correction))
        batch = SampledBatch(torch.zeros(b, 1), *draws, square, n, control == "regression")
        both = sampled_gradient(known_noise, batch)
        value = sampled_loss(known_noise, batch)
        if control == "squares":
            # Equation 3, which training only ever sees the gradient of.
            known = [draw.function() for draw in at_support]
            product = (known[0] * known[1]).sum()
            value = value + 0.5 * n / noise / rank * (a.square().sum() - product)
            both = [
                g + draw.scale * pull_of_squares(draw.phi, a - other, 0.5 * n / noise / rank)
                for g, draw, other in zip(both, at_support, reversed(known), strict=True)
            ]
        values.append(float(value))
        gradient = torch.zeros(2, m // 2)
        for part, g in zip(parts, both, strict=True):
            gradient.index_add_(1, part.index, g.reshape(2, -1))
        gradients.append(gradient.flatten())
    spread = torch.stack(gradients).double().var(0).mean()
    return dict(value_variance=float(np.var(values)), gradient_variance=float(spread))


def figure2():
    """20 rows of a sinc: the largest difference of standard deviations, and far from all rows."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-4, 4, (20, 1))
    y = np.sinc(X[:, 0]) + 0.1 * rng.standard_normal(20)
    fixed = ConstantKernel(1.0) * RBF(1.0) + WhiteKernel(0.01)
    settings = dict(optimizer=None, standardize=False, normalize_y=False, random_state=0)
    model = QSGPRegressor(fixed, basis="rows", inference="stochastic", max_iter=400, **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X, y)
    exact = GaussianProcessRegressor(fixed, optimizer=None).fit(X, y)
    grid = np.linspace(-8, 8, 161)[:, None]
    ours, theirs = (each.predict(grid, return_std=True) for each in (model, exact))
    near = np.abs(grid[:, 0]) <= np.abs(X).max()
    return dict(
        grid=grid[:, 0].round(2).tolist(),
        std=ours[1].round(4).tolist(),
        std_exact=theirs[1].round(4).tolist(),
        mean_error=float(np.abs(ours[0] - theirs[0]).max()),
        std_error_near=float(np.abs(ours[1] - theirs[1])[near].max()),
        std_far=(float(ours[1][0]), float(theirs[1][0])),
    )


def figure3(seed):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-10, 10, (500, 1))
    y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(500)
    model = QSRVMRegressor(kernel(1), n_components=500, random_state=0).fit(X, y)
    grid = np.linspace(-10, 10, 1000)[:, None]
    error = model.predict(grid) - np.sinc(grid[:, 0] / np.pi)
    exact = QSGPRegressor(kernel(1), random_state=0).fit(X, y).predict(grid)
    exact = exact - np.sinc(grid[:, 0] / np.pi)
    return dict(
        n_functions=len(model.relevance_),
        relevance=model.relevance_vectors_[:, 0].round(3).tolist(),
        rmse=round(float(np.sqrt(np.mean(error**2))), 4),
        rmse_exact=round(float(np.sqrt(np.mean(exact**2))), 4),
    )


def digits(**settings):
    from sklearn.metrics import accuracy_score, log_loss

    data = np.load(Path(os.environ["SKSCALABLEGP_DATA"]) / "mnist10k.npz")
    order = np.random.default_rng(0).permutation(10_000)
    X, y = data["X"][order].astype(np.float32) / 255, data["y"][order].astype(int) % 2
    model = QSGPClassifier(kernel(1, 8.0), standardize=False, random_state=0, **settings)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(X[:9000], y[:9000])
    seconds = time.process_time() - start
    P = model.predict_proba(X[9000:])
    return dict(
        accuracy=accuracy_score(y[9000:], P.argmax(1)),
        nll=round(float(log_loss(y[9000:], P)), 4),
        cpu_seconds=round(seconds, 1),
    )


def curve(estimator, steps):
    X, X_test, y, y_test = load("kin40k", 0, 0, 0)
    settings = dict(max_iter=steps, random_state=0)
    start = kernel(X.shape[1])
    if estimator == "SVGPRegressor":
        model = SVGPRegressor(start, **settings)
    else:
        model = QSGPRegressor(start, **settings)
    return measured(model, X, y, X_test, y_test)


def distance(likelihood, drawn, steps):
    """Relative distance of f between steps and Newton's method: kin40k, 3,000 rows, 1,024 features.

    Labels are the signs of the target.
    """
    X, _, y, _ = load("kin40k", 0, 3000, 0)
    X, d = X - X.mean(0), X.shape[1]
    start = QSGPRegressor(kernel(d), n_components=512, inference="exact", random_state=0)
    chosen = start.fit(X[:1000], y[:1000]).kernel_
    settings = dict(n_components=1024, optimizer=None, random_state=0)
    if likelihood == "labels":
        y, cls = (y > 0).astype(int), QSGPClassifier
        chosen = ConstantKernel(10.0) * chosen.k1.k2
    else:
        cls, settings["likelihood"] = QSGPRegressor, likelihood
    found, seconds = [], []
    for inference in ("exact", "stochastic"):
        own = dict(inference=inference, component_batch_size=drawn)
        if inference == "stochastic":
            own |= dict(max_iter=steps, n_dense=20)
        start = time.process_time()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            model = cls(chosen, **settings, **own).fit(X, y)
        seconds.append(round(time.process_time() - start, 1))
        found.append(
            model.latent_mean_and_variance(X)[0] if likelihood == "labels" else model.predict(X)
        )
    best, f = found
    return dict(
        distance=round(float(np.linalg.norm(f - best) / np.linalg.norm(best)), 4),
        cpu_seconds=seconds[1],
        cpu_seconds_newton=seconds[0],
    )


# One change each; "as written" makes them all.
ABLATION = {
    "default": {},
    "covariance=chevron": dict(covariance="chevron"),
    "covariance=chevron, n_dense=0": dict(covariance="chevron", n_dense=0),
    "covariance=chevron, n_dense=100": dict(covariance="chevron", n_dense=100),
    "control_variate=squares": dict(control_variate="squares"),
    "control_variate=None": dict(control_variate=None),
    "variational_optimizer=adagrad": dict(variational_optimizer="adagrad"),
    "optimizer=adam": dict(optimizer="adam", learning_rate=1e-3),
    "as written": {**WRITTEN, "learning_rate": 1e-3},
}


def cells():
    """Names, the paper's figure in words, and what measures ours."""
    for n in (10**4, 10**5, 10**6):
        yield f"table1 n={n}", "O(1) in n and m", lambda n=n: table1(n)
    for rank in (0, 100, 300, 500):
        for control in ["none"] if rank == 0 else ["squares", "regression"]:
            note = "a tenth of rank 0's variance at rank 300" if rank else "the unit"
            name = f"figure1 rank={rank} {control}"
            yield name, note, lambda rank=rank, control=control: figure1(rank, control)
    for table, basis in (("table2", "fourier"), ("table3", "rows")):
        for dataset in SETS:
            rmse, nll = PAPER[table][dataset]
            note = f"RMSE {rmse}, NLPD {nll}"

            def by_default(dataset=dataset, basis=basis):
                return regression(dataset, basis=basis)

            yield f"{table} {dataset} default", note, by_default
            if table == "table2":
                for c in (0, 100):

                    def written(dataset=dataset, c=c):
                        return regression(
                            dataset, own_kernel=True, n_dense=c, max_iter=100_000, **WRITTEN
                        )

                    yield f"{table} {dataset} as written, {c} dense", note, written
    yield "figure2", "equal near the rows, the prior's far away", figure2
    for seed in range(3):
        yield f"figure3 seed={seed}", "13 functions", lambda seed=seed: figure3(seed)
    note = "60,000 rows: 97.85 %, log loss 0.068 at 1e6 features, 0.063 at 1e7"
    yield "digits default", note, digits
    yield "digits 1e6 features", note, lambda: digits(n_components=10**6)
    for name, settings in ABLATION.items():

        def ablated(settings=settings):
            few = dict(n_components=8192, component_batch_size=2048, max_iter=300)
            settings = {**settings, **few, "control_variate_rank": 300}
            return regression("kin40k", 4000, own_kernel=True, basis="fourier", **settings)

        yield f"ablation {name}", "", ablated
    for name, stored in (("stored", True), ("drawn again", False)):
        yield f"ablation frequencies {name}", "", lambda stored=stored: frequencies(stored)
    for likelihood in ("gaussian", "laplace", "labels"):
        for drawn in (512, 1024):
            for steps in (200, 1000):
                yield (
                    f"distance {likelihood}, {drawn} of 1024, {steps} steps",
                    "converges",
                    lambda a=(likelihood, drawn, steps): distance(*a),
                )
    for estimator, steps in CURVE.items():
        for count in steps:
            name = f"curve {estimator} {count}"
            yield name, "", lambda e=estimator, c=count: curve(e, c)


def read():
    """The last line of each cell."""
    lines = [json.loads(text) for text in RESULTS.read_text("utf-8").splitlines()]
    return {line["cell"]: line for line in lines if "cell" in line}


def said(line):
    """The numbers of a line."""
    hidden = {"cell", "paper", "date", "threads", "versions", "commit"}
    parts = [
        f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}"
        for name, value in line.items()
        if name not in hidden and not (isinstance(value, list) and len(value) > 2)
    ]
    return ", ".join(parts)


def plot():
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    lines = read()
    fig, (first, second, third) = plt.subplots(1, 3, figsize=(12, 3.6), layout="constrained")
    unit = lines["figure1 rank=0 none"]
    for control in ("squares", "regression"):
        own = [(r, lines.get(f"figure1 rank={r} {control}")) for r in (100, 300, 500)]
        own = [(0, unit), *((r, line) for r, line in own if line)]
        for key, style in (("value_variance", "o-"), ("gradient_variance", "s--")):
            label = f"{control}, {key.split('_')[0]}"
            first.plot(
                [r for r, _ in own], [x[key] / unit[key] for _, x in own], style, label=label
            )
    first.set(yscale="log", xlabel="rank", ylabel="variance, of rank 0's", title="Figure 1")
    first.legend(fontsize=8)
    line = lines["figure2"]
    second.plot(line["grid"], line["std"], label="kernel functions, augmented")
    second.plot(line["grid"], line["std_exact"], "--", label="exact process")
    second.set(xlabel="x", ylabel="standard deviation", title="Figure 2")
    second.legend(fontsize=8)
    x, at = np.linspace(-10, 10, 400), np.array(lines["figure3 seed=0"]["relevance"])
    third.plot(x, np.sinc(x / np.pi), label="sinc")
    third.plot(at, np.sinc(at / np.pi), "ko", label=f"{len(at)} relevance vectors (paper: 13)")
    third.set(xlabel="x", title="Figure 3")
    third.legend(fontsize=8)
    fig.savefig(ROOT / "doc" / "papers_qsgp.png", dpi=110)
    if not all(f"curve {name} {count}" in lines for name in CURVE for count in CURVE[name]):
        return
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for axis, score in zip(axes, ("nll", "rmse"), strict=True):
        for estimator, steps in CURVE.items():
            own = [lines[f"curve {estimator} {count}"] for count in steps]
            own = [(line["cpu_seconds"], line[score]) for line in own]
            axis.semilogx(*zip(*own, strict=True), "o-", base=2, label=estimator)
        axis.set(xlabel="processor seconds of a fit", ylabel=f"test {score.upper()}")
        axis.legend(fontsize=8)
    fig.savefig(ROOT / "doc" / "qsgp_curve.png", dpi=110)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", help="tables and figures; default: all")
    parser.add_argument("--only", default="", help="cells whose names hold this")
    parser.add_argument("--again", action="store_true", help="measure what the results have, too")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--plot", action="store_true", help="draw the figures that there are")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    if args.plot:
        plot()
        return
    done = read()
    for name, note, measure in cells():
        if args.what and name.split()[0] not in args.what or args.only not in name:
            continue
        if not args.report and (args.again or name not in done):
            call = ["git", "rev-parse", "--short", "HEAD"]
            commit = subprocess.run(call, cwd=ROOT, capture_output=True, text=True).stdout.strip()
            facts = dict(date=datetime.date.today().isoformat(), threads=args.threads)
            line = dict(cell=name, paper=note, **measure(), **facts)
            done[name] = plain(dict(line, commit=commit, versions=versions()))
            with RESULTS.open("a", encoding="utf-8") as out:
                out.write(json.dumps(done[name]) + "\n")
        if name in done:
            print(f"{name:40s} {said(done[name])}   [paper: {note or '-'}]", flush=True)


if __name__ == "__main__":
    main()
