#!/usr/bin/env python3
"""Tables and figures of Lin et al. (2024), Improving linear system solvers.

    python benchmarks/papers/solvers.py                       # every cell that the results lack
    python benchmarks/papers/solvers.py table1 --only pol     # cells whose names hold a word
    python benchmarks/papers/solvers.py --report              # what there is, beside the paper's
    python benchmarks/papers/solvers.py full --threads 2      # all rows: hours
    python benchmarks/papers/solvers.py --plot                # doc/papers_solvers.png

Each cell appends one JSON line to benchmarks/results/solvers.jsonl and is skipped where that has a
line of its name. Epochs are the measure: n^2 kernel entries, preconditioners and checks included.

    table1    CG, AP and SGD, standard and pathwise, cold and warm, 1,000 rows, 100 steps of Adam on
              softplus of standard deviations; exact training beside them (figures 5, 7 and 8: the
              largest difference between log hyperparameters at any step)
    few       table1 for AP and SGD at 300 rows
    steps     table1 for AP and SGD, the first 20 of the 100 steps
    budget    the same with 10, 20 and 50 epochs a step, 500 rows of pol (figure 9: the largest
              residuals of the probes)
    probes    probe vectors, which are also the samples of the posterior (figure 4), 500 rows of pol
    distance  squared RKHS distance from the start of a solve to its end (figures 3 and 6)
    ablation  what each departure from the paper brings: likelihood at the end of training
    large     ten epochs a step, as tables 7 to 10: 1,000 rows of functions drawn with the columns
              and the noise of 3droad, song, buzz and house; predictions from the solves themselves
    full      table1 on all rows: CG and block CG; AP and SGD with ten epochs a step
"""

from itertools import product

import numpy as np
from cells import ROOT, measured, read, run
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel
from uci import load

from skscalablegp import IterativeGPRegressor
from skscalablegp.gradients import PathwiseGradient, StandardGradient
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import AP, CG, SGD, BlockCG
from skscalablegp.training import Adam

RESULTS = ROOT / "benchmarks" / "results" / "solvers.jsonl"
SETS = ("pol", "elevators", "bike")
BUDGETS = (10, 20, 50)
# Test log likelihoods of CG: standard, and pathwise with warm starts.
PAPER = {
    "pol": "1.27 / 1.27 at 13,500 rows",
    "elevators": "-0.39 / -0.39 at 14,939",
    "bike": "2.15 / 2.06 at 15,642",
}
# Tables 2 to 4, speed-ups in time over standard and cold: pathwise cold, standard warm, both.
SPEED = {
    ("pol", "cg"): (1.2, 2.1, 2.0),
    ("pol", "ap"): (11.2, 17.7, 126.6),
    ("pol", "sgd"): (1.9, 5.2, 7.7),
    ("elevators", "cg"): (1.1, 1.5, 1.6),
    ("elevators", "ap"): (2.1, 46.7, 64.5),
    ("elevators", "sgd"): (1.2, 4.5, 4.8),
    ("bike", "cg"): (1.2, 1.9, 1.7),
    ("bike", "ap"): (8.6, 15.2, 56.0),
    ("bike", "sgd"): (2.6, 5.5, 6.4),
}
WAYS = (("standard", "cold"), ("pathwise", "cold"), ("standard", "warm"), ("pathwise", "warm"))


# Columns of tables 7 to 10, the noise of their stand-ins (the paper's test error), and the paper's
# test errors and log likelihoods: CG, AP and SGD, each cold and then warm.
LARGE = {
    "3droad": (3, 0.06, (1.218, -1.55, 0.537, -0.91), (0.104, 0.82, 0.056, 0.93),
               (0.143, -0.47, 0.065, 0.93)),
    "song": (90, 0.74, (2.157, -2.07, 0.870, -1.30), (0.743, -1.12, 0.742, -1.12),
             (0.743, -1.12, 0.742, -1.12)),
    "buzz": (77, 0.27, (2.004, -1.82, 4.532, -11.97), (0.277, -0.05, 0.274, -0.04),
             (0.285, -0.10, 0.274, -0.05)),
    "house": (11, 0.03, (0.833, -4.07, 0.452, -1.26), (0.032, 1.91, 0.029, 2.35),
              (0.045, 0.96, 0.033, 1.60)),
}  # fmt: skip


def kernel(d):
    wide = (1e-8, 1e8)
    form = ConstantKernel(1.0, wide) * Matern(np.ones(d), wide, nu=1.5)
    return form + WhiteKernel(1.0, wide)


def solver(name, n):
    """As in the paper, with blocks and batches that are the same share of the rows."""
    return {
        "cg": CG(PivotedCholesky(rank=100)),
        "block_cg": BlockCG(PivotedCholesky(rank=100)),
        "ap": AP(max(50, min(1000, n // 13))),
        "sgd": SGD(max(50, min(500, n // 13))),
        "exact": "cholesky",
    }[name]


def model(name, n, d, gradient="auto", warm="warm", **settings):
    own = dict(
        solver=solver(name, n),
        gradient=gradient,
        solver_warm_start=warm == "warm",
        optimizer=Adam(0.1, transform="softplus"),
        subset_size=None,
        n_iter_no_change=None,
        max_iter=100,
        solver_max_epochs=1000,
        n_probes=64,
        posterior="exact" if n <= 20_000 else "pathwise",
        dtype="float64" if n <= 3000 else "float32",
        random_state=0,
    )
    return IterativeGPRegressor(kernel(d), **own | settings)


def stand_in(data, n, n_test=1000):
    """A draw of a process whose columns matter less and less, and noise."""
    d, noise, *_ = LARGE[data]
    rng = np.random.default_rng(0)
    X, scale = rng.standard_normal((n + n_test, d)), np.geomspace(1, 0.05, d)
    angles = X * scale @ rng.standard_normal((d, 2048)) * (1.5 / np.linalg.norm(scale))
    f = np.cos(angles + rng.uniform(0, 2 * np.pi, 2048)) @ rng.standard_normal(2048)
    y = f / f.std() + noise * rng.standard_normal(n + n_test)
    return X[:n], X[n:], y[:n], y[n:]


def cell(data, n, name, gradient="auto", warm="warm", **settings):
    X, X_test, y, y_test = stand_in(data, n) if data in LARGE else load(data, 0, n, 0)
    ours = model(name, len(X), X.shape[1], gradient, warm, **settings)
    line = measured(ours, X, y, X_test, y_test)
    theta = np.array(ours.history_["theta"])
    line |= dict(
        n_train=len(X),
        probe_residual=round(max(ours.history_["probe_residual"]), 4),
        capped=int(np.sum(np.array(ours.history_["epochs"]) >= ours.solver_max_epochs)),
        path=[[round(float(v), 4) for v in row] for row in theta],
    )
    exact = read(RESULTS).get(f"table1 {data} exact")
    if exact and exact["n_train"] == len(X) and len(exact["path"]) == len(theta):
        line["off_exact"] = round(float(np.abs(theta - exact["path"]).max()), 3)
    return line


def distance(data, n=1000):
    """E b' H^-1 b from zero, and from the last step's solution for fixed b, each tenth step."""
    X, _, y, _ = load(data, 0, n, 0)
    path = read(RESULTS).get(f"table1 {data} exact") or cell(data, n, "exact")
    rng, rows, last = np.random.default_rng(0), {}, {}
    z = rng.standard_normal((len(X), 16))
    for step, theta in enumerate(path["path"]):
        at = kernel(X.shape[1]).clone_with_theta(np.array(theta))
        L = np.linalg.cholesky(at(X))
        for name, b in (("standard", z), ("pathwise", L @ z)):
            u = np.linalg.solve(L.T, np.linalg.solve(L, b))
            if step and step % 10 == 0:
                moved = np.square(L.T @ (u - last[name])).sum(0).mean()
                cold = np.square(L.T @ u).sum(0).mean()
                rows.setdefault(f"{name}_cold", []).append(round(float(cold), 1))
                rows.setdefault(f"{name}_warm", []).append(round(float(moved), 3))
            last[name] = u
    return dict(**{f"{k}_at_90": v[-1] for k, v in rows.items()}, **rows)


def ablation(name, n=1000, data="pol"):
    X, X_test, y, y_test = load(data, 0, n, 0)
    own = dict(
        written={},
        on_variances_log=dict(optimizer=Adam(0.1)),
        natural=dict(optimizer="natural", max_iter="auto"),
        natural_standard=dict(optimizer="natural", max_iter="auto", gradient="standard"),
        natural_preconditioned=dict(
            optimizer="natural",
            max_iter="auto",
            gradient=StandardGradient(CG(PivotedCholesky(100)), probes="preconditioned"),
        ),
        natural_5000_pairs=dict(
            optimizer="natural",
            max_iter="auto",
            gradient=PathwiseGradient(CG(PivotedCholesky(100)), n_pairs=5000),
        ),
        exact=dict(solver="cholesky", gradient="auto", optimizer="auto", max_iter="auto"),
        pairs_5000=dict(gradient=PathwiseGradient(CG(PivotedCholesky(100)), n_pairs=5000)),
        exact_draws=dict(gradient=PathwiseGradient(CG(PivotedCholesky(100)), prior="exact")),
        probes_256=dict(n_probes=256),
    )[name]
    own = dict(gradient="pathwise") | own
    if not isinstance(own["gradient"], str):
        own |= dict(solver="auto", n_probes="auto")
    return measured(model("cg", n, X.shape[1], **own), X, y, X_test, y_test)


def cells():
    for what, n, solvers in (("table1", 1000, ("cg", "ap", "sgd")), ("few", 300, ("ap", "sgd"))):
        for data in SETS:
            yield f"{what} {data} exact", "", lambda data=data, n=n: cell(data, n, "exact")
            for name, (k, (gradient, warm)) in product(solvers, enumerate(WAYS)):
                speed = (1.0, *SPEED[data, name])[k]
                note = f"test log likelihood {PAPER[data]}; {speed} times as fast as standard cold"
                yield (
                    f"{what} {data} {name} {gradient} {warm}",
                    note,
                    lambda a=(data, n, name, gradient, warm): cell(*a),
                )
    for data, name, (gradient, warm) in product(SETS, ("ap", "sgd"), WAYS):
        yield (
            f"steps {data} {name} {gradient} {warm}",
            "",
            lambda a=(data, 1000, name, gradient, warm): cell(*a, max_iter=20),
        )
    for name, (gradient, warm), epochs in product(
        ("cg", "ap", "sgd"),
        (("standard", "cold"), ("pathwise", "warm")),
        BUDGETS,
    ):
        yield (
            f"budget pol {name} {gradient} {warm} {epochs}",
            "residuals grow for CG; AP predicts well at 10",
            lambda a=("pol", 500, name, gradient, warm), e=epochs: cell(*a, solver_max_epochs=e),
        )
    for s in (4, 16, 64, 256):
        yield (
            f"probes pol {s}",
            "little more beyond 64",
            lambda s=s: cell(
                "pol", 500, "cg", "pathwise", "warm", n_probes=s, posterior="pathwise"
            ),
        )
    for data in ("pol", "elevators"):
        note = "standard grows with 1 / noise, pathwise stays at n"
        yield f"distance {data}", note, lambda data=data: distance(data)
    for name in (
        "written",
        "on_variances_log",
        "natural",
        "natural_standard",
        "natural_preconditioned",
        "natural_5000_pairs",
        "exact",
    ):
        yield f"ablation pol {name}", "", lambda name=name: ablation(name)
    # Why pathwise training ends below exact training there, in the paper as here.
    for name in ("pairs_5000", "exact_draws", "probes_256"):
        yield f"ablation bike {name}", "", lambda name=name: ablation(name, data="bike")
    for (data, theirs), (k, name) in product(LARGE.items(), enumerate(("cg", "ap", "sgd"), 2)):
        for warm, (rmse, density) in (("cold", theirs[k][:2]), ("warm", theirs[k][2:])):
            yield (
                f"large {data} {name} {warm}",
                f"RMSE {rmse}, test log likelihood {density}",
                lambda a=(data, 1000, name, "pathwise", warm): cell(
                    *a,
                    solver_max_epochs=10,
                    max_iter=30,
                    optimizer=Adam(0.03, transform="softplus"),
                    subset_size=300,
                    posterior="pathwise",
                ),
            )
    for data, name in product((*SETS, "protein", "keggdirected"), ("cg", "block_cg", "ap", "sgd")):
        budget = 1000 if "cg" in name else 10
        yield (
            f"full {data} {name} pathwise warm",
            PAPER.get(data, ""),
            lambda a=(data, 0, name, "pathwise", "warm"), b=budget: cell(*a, solver_max_epochs=b),
        )


def plot(done):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    budgets = {}
    for name, way in product(("cg", "ap", "sgd"), ("standard cold", "pathwise warm")):
        own = [(e, done.get(f"budget pol {name} {way} {e}")) for e in BUDGETS]
        if all(line for _, line in own):
            budgets[f"{name} {way}"] = [(e, line["probe_residual"]) for e, line in own]
    fig, axes = plt.subplots(
        1, 1 + bool(budgets), figsize=(5 + 5 * bool(budgets), 3.4), layout="constrained"
    )
    first, *second = np.atleast_1d(axes)
    line = done["distance pol"]
    for key in ("standard_cold", "standard_warm", "pathwise_cold", "pathwise_warm"):
        first.plot(range(10, 100, 10), line[key], label=key.replace("_", ", "))
    first.set(yscale="log", xlabel="step", ylabel="squared distance", title="Figures 3 and 6, pol")
    first.legend(fontsize=7)
    for axis in second:
        for label, points in budgets.items():
            axis.plot(*zip(*points, strict=True), "o-", label=label)
        axis.set(yscale="log", xlabel="epochs a step", ylabel="residual", title="Figure 9, pol")
        axis.legend(fontsize=7)
    fig.savefig(ROOT / "doc" / "papers_solvers.png", dpi=90)


if __name__ == "__main__":
    run(__doc__, cells(), RESULTS, plot, on_request=("full",))
