#!/usr/bin/env python3
"""Figures of Potapczynski et al. (2021), Bias-free scalable Gaussian processes.

    python benchmarks/papers/truncation.py                       # every cell that the results lack
    python benchmarks/papers/truncation.py figure5 --only bike   # cells whose names hold a word
    python benchmarks/papers/truncation.py --report              # what there is, beside the paper's
    python benchmarks/papers/truncation.py --plot                # doc/papers_truncation.png

Each cell appends one JSON line to benchmarks/results/truncation.jsonl and is skipped where that has
a line of its name. No exact fit on a subset comes first, and frequencies are counted, not columns.

    figure1   y' H^-1 y after J steps of CG, with random truncation, and of random features, pol
    figure2   the length scale learned on y = x sin(5 pi x) + e, all else known
    figure3   final noise and length scale on pol, one length scale for all columns
    figure4   pol with 500 and 700 frequencies, and their random corrections
    figure5   bike: CG, RR-CG and exact gradients along 100 steps of Adam, and the exact optimum
    figure6   test errors with E[J] = 100, three splits of three sets
    optimum   the defaults from their own steps: nats per thousand rows below exact training
    ablation  what each departure from the paper brings, pol
"""

import numpy as np
from cells import ROOT, measured, run
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from uci import load

from skscalablegp import IterativeGPRegressor, RFFRegressor, RRCGRegressor, SSRFFRegressor
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.training import Adam
from skscalablegp.truncation import ExponentialTruncation, FixedTruncation

RESULTS = ROOT / "benchmarks" / "results" / "truncation.jsonl"
N = 1500
WRITTEN = dict(
    optimizer=Adam(0.1, transform="softplus"),
    subset_size=None,
    n_iter_no_change=None,
    preconditioner=None,
    probes="rademacher",
    n_draws=1,
    reorthogonalize=False,
    max_iter=100,
    dtype="float64",
    random_state=0,
)


def kernel(d, ard=True, floor=1e-4):
    scale = RBF(np.ones(d) if ard else 1.0, (1e-3, 1e4))
    return ConstantKernel(1.0, (1e-5, 1e5)) * scale + WhiteKernel(1.0, (floor, 1e2))


def law(mean):
    return ExponentialTruncation(0.1 if mean <= 20 else 0.05, expected_iter=mean)


def regressor(method, d, ard=True, **settings):
    """By the name of a cell: exact, adam, cg:J, rrcg:J, rff:FREQUENCIES, ssrff:FREQUENCIES."""
    name, _, size = method.partition(":")
    own = kernel(d, ard)
    if name == "exact":
        return IterativeGPRegressor(own, solver="cholesky", subset_size=None, random_state=0)
    if name == "adam":
        steps = {key: WRITTEN[key] for key in ("optimizer", "subset_size", "max_iter")}
        steps |= dict(n_iter_no_change=None, random_state=0)
        return IterativeGPRegressor(own, solver="cholesky", **steps)
    if name in ("cg", "rrcg"):
        truncation = FixedTruncation(int(size)) if name == "cg" else law(int(size))
        return RRCGRegressor(own, **WRITTEN | dict(truncation=truncation) | settings)
    if name == "rff":
        return RFFRegressor(own, n_components=2 * int(size), random_state=0)
    own = dict(min_components=2 * int(size), component_step=200, max_iter=100) | settings
    return SSRFFRegressor(kernel(d, ard), optimizer=Adam(0.05, decay=0.1), random_state=0, **own)


def exact_path(model, X, y, steps=(0, 10, 25, 50, 75, 100)):
    """The exact log likelihood a row along training."""
    theta = model.history_["theta"]
    exact = IterativeGPRegressor(model.kernel_, optimizer=None, solver="cholesky").fit(X, y)
    chosen = sorted({min(k, len(theta) - 1) for k in steps})
    values = [exact.log_marginal_likelihood(theta[k]) / len(X) for k in chosen]
    return dict(at=chosen, exact_a_row=[round(float(v), 4) for v in values])


def train(data, method, ard=True, split=0, path=True, **settings):
    X, X_test, y, y_test = load(data, split, N, 0)
    model = regressor(method, X.shape[1], ard, **settings)
    line = measured(model, X, y, X_test, y_test)
    exact = IterativeGPRegressor(model.kernel_, optimizer=None, solver="cholesky").fit(X, y)
    line["exact_likelihood_a_row"] = round(exact.log_marginal_likelihood_value_ / len(X), 4)
    line["noise"] = float(f"{np.exp(model.kernel_.theta[-1]):.3g}")
    if not ard:
        line["length_scale"] = float(f"{np.exp(model.kernel_.theta[1]):.3g}")
    return line | (exact_path(model, X, y) if path else {})


def figure1(n=500, repeats=2000):
    """At the exact optimum: what J steps leave out, and means over random ones."""
    X, _, y, _ = load("pol", 0, n, 0)
    model = regressor("exact", X.shape[1]).fit(X, y)
    H, y = model.kernel_(X), model.y_train_.ravel()
    truth, x, r = float(y @ np.linalg.solve(H, y)), np.zeros(n), y.copy()
    d, terms = r.copy(), []
    for _ in range(200):
        Hd = H @ d
        gamma = (r @ r) / (d @ Hd)
        terms.append(gamma * float(y @ d))
        x, last = x + gamma * d, r @ r
        r = r - gamma * Hd
        d = r + (r @ r) / last * d
    import torch

    line, generator = dict(truth=round(truth, 1)), torch.Generator().manual_seed(0)
    for mean in (20, 40, 80):
        line[f"cg{mean}"] = round(sum(terms[:mean]), 1)
        bound = law(mean).on(200)
        weights = 1 / bound.survival(torch.arange(1, 201)).clamp_min(1e-300).numpy()
        total = np.cumsum(np.array(terms) * weights)
        draws = total[bound.sample(repeats, generator).numpy() - 1]
        line[f"rrcg{mean}"] = round(float(draws.mean()), 1)
        line[f"rrcg{mean}_standard_error"] = round(float(draws.std() / repeats**0.5), 1)
    return line


def figure2(method, n=200, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-1, 1, n))
    y = x * np.sin(5 * np.pi * x) + 0.1 * rng.standard_normal(n)
    model = regressor(method, 1)
    form = ConstantKernel(1.0, "fixed") * RBF(0.1, (1e-3, 10)) + WhiteKernel(0.01, "fixed")
    model.set_params(kernel=form)
    model.fit(x[:, None], y)
    return dict(length_scale=round(float(np.exp(model.kernel_.theta[0])), 4), n_iter=model.n_iter_)


def repeated(n=1440, d=11, seed=0):
    """A table whose rows repeat, targets included: the likelihood wants no noise at all."""
    rng = np.random.default_rng(seed)
    m = int(0.85 * n)
    Q = np.linalg.qr(rng.standard_normal((d, d)))[0]
    X = rng.standard_normal((m, d)) @ Q * np.linspace(1, 0.3, d)
    f = np.sin(X[:, 0]) + 0.6 * X[:, 1] + 0.4 * X[:, 2] * X[:, 3]
    y = np.round(5.6 + 0.5 * f + 0.55 * rng.standard_normal(m))
    rows = rng.permutation(np.concatenate([np.arange(m), rng.integers(0, m, n - m)]))
    X, y = X[rows], y[rows]
    return (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


def optimum(data, name, **settings):
    X, y = repeated() if data == "repeated" else load(data, 0, N, 0)[::2]
    model = {
        "exact": IterativeGPRegressor(solver="cholesky", subset_size=None),
        "rrcg": RRCGRegressor(truncation="exponential", subset_size=None),
        "cg": IterativeGPRegressor(solver="cg", subset_size=None),
    }[name].set_params(random_state=0, **settings)
    line = measured(model, X, y, None, None, predict=False)
    exact = IterativeGPRegressor(model.kernel_, optimizer=None, solver="cholesky").fit(X, y)
    line["likelihood_per_thousand_rows"] = round(
        1000 * exact.log_marginal_likelihood(model.kernel_.theta) / len(X), 2
    )
    return line


ABLATION = {
    "written": {},
    "adam_on_logarithms": dict(optimizer=Adam(0.1)),
    "preconditioned": dict(preconditioner=PivotedCholesky(37, randomized=True, random_state=0)),
    "averaged_draws": dict(n_draws=8),
    "natural": dict(optimizer="natural", max_iter="auto"),
    "natural_adaptive": dict(optimizer="natural", max_iter="auto", truncation="exponential"),
}


def cells():
    note = "CG below, random truncation at the truth"
    yield "figure1 pol", note, figure1
    for method in ("exact", "cg:5", "cg:7", "cg:10", "rrcg:10", "rff:50", "rff:100", "ssrff:50"):
        own = "CG above exact, features below, unbiased ones at it"
        yield f"figure2 {method}", own, lambda m=method: figure2(m)
    for method in ("exact", "cg:20", "rrcg:20", "rff:700", "ssrff:500"):
        own = "unbiased ones end at the exact optimum"
        yield f"figure3 pol {method}", own, lambda m=method: train("pol", m, ard=False)
    for method in ("exact", "rff:500", "rff:700", "ssrff:500", "ssrff:700"):
        own = "features end lower; corrections take 100 times the steps"
        yield f"figure4 pol {method}", own, lambda m=method: train("pol", m)
    for method in ("exact", "adam", "cg:10", "cg:20", "rrcg:20", "rrcg:40"):
        own = "RR-CG at the optimum in about 100 steps, CG diverges"
        yield f"figure5 bike {method}", own, lambda m=method: train("bike", m)
    for data in ("pol", "elevators", "bike"):
        for split in (0, 1, 2):
            for method in ("exact", "cg:100", "rrcg:100", "rff:700"):
                own = "RR-CG as exact"
                yield (
                    f"figure6 {data} {split} {method}",
                    own,
                    lambda a=(data, method), s=split: train(
                        *a, split=s, path=False, **_preconditioned(a[1])
                    ),
                )
    for data in ("repeated", "pol", "bike"):
        for name in ("exact", "rrcg", "cg"):
            yield f"optimum {data} {name}", "", lambda a=(data, name): optimum(*a)
    for name, own in ABLATION.items():
        yield f"ablation pol {name}", "", lambda own=own: train("pol", "rrcg:40", path=False, **own)


def _preconditioned(method):
    """The paper's preconditioner at E[J] = 100."""
    return dict(preconditioner=PivotedCholesky(rank=5)) if "cg" in method else {}


def plot(done):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    kinds = [k for k in ("figure4 pol", "figure5 bike") if any(n.startswith(k) for n in done)]
    fig, axes = plt.subplots(1, len(kinds), figsize=(5 * len(kinds), 3.4), layout="constrained")
    for axis, kind in zip(np.atleast_1d(axes), kinds, strict=True):
        for name, line in done.items():
            if name.startswith(kind):
                axis.plot(line["at"], line["exact_a_row"], "o-", label=name.removeprefix(kind))
        # CG with few steps falls far below.
        axis.set(xlabel="step", ylabel="exact log likelihood a row", title=kind, ylim=(-1.6, None))
        axis.legend(fontsize=7)
    fig.savefig(ROOT / "doc" / "papers_truncation.png", dpi=90)


if __name__ == "__main__":
    run(__doc__, cells(), RESULTS, plot)
