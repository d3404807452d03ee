#!/usr/bin/env python3
"""Tables of Shoham and Avron, Unbiased stochastic optimization for Gaussian processes on finite
dimensional RKHS: minimax, SCGD, the biased baseline and SVGP by batch size and data set.

    python benchmarks/papers/deep.py                        # every cell that the results lack
    python benchmarks/papers/deep.py table5 --only "pol 64" # cells whose names hold a text
    python benchmarks/papers/deep.py ablation               # what each departure brings
    python benchmarks/papers/deep.py --report               # what there is, beside the paper's
    python benchmarks/papers/deep.py --plot                 # doc/papers_deep.png

    table4    linear kernel, batches of 32 to 512: test error, and with it table 2's likelihood
    table5    Gaussian kernel (1,000 features), batches of 16 to 256: and table 3's likelihood
    ablation  as published, one departure at a time, and the defaults, on 4,000 rows
    small     minimax beside SCGD, batches of 64, 4,000 rows of each set, five seeds
    tries     settings of minimax on bike, and of SCGD on protein
    batches   of 16 to 512 rows, Gaussian kernel of 256 features, 4,000 rows of pol
    splits    four more, batches of 64, 4,000 rows of elevators
    saddle    tr(slope F) / m over 1,000 steps of minimax on fixed features

rmse and nll are of standardised targets, nlml the training rows' negative log marginal likelihood a
row; raw_rmse and raw_nlml are in the paper's units, raw targets. Splits are 0 to 4, nine tenths of
the rows train. Settings are the defaults but for the batch; the paper trained with AdaDelta at a
rate of its own for every cell, chosen by its marginal likelihood. SVGP has as many inducing points
as a batch.
"""

import math
import time

import torch
from cells import ROOT, run
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import skscalablegp

SEEDS, FEW_BATCHES = 5, (16, 64, 512)
RESULTS = ROOT / "benchmarks" / "results" / "deep.jsonl"
METHODS = {
    "minimax": "MinimaxDKLRegressor",
    "scgd": "SCGDDKLRegressor",
    "svgp": "SVGPRegressor",
    "bsgd": "BSGDDKLRegressor",
}
SETS = ("bike", "elevators", "keggdirected", "kin40k", "pol", "protein")
BATCHES = {"table4": (32, 64, 128, 256, 512), "table5": (16, 32, 64, 128, 256)}
# Test errors in raw units by data set and batch, in the order of METHODS.
PAPER = {
    "table4": {
        "bike": {32: (0.099, 0.095, 0.093, 0.082), 64: (0.112, 0.108, 0.127, 0.078),
                 128: (0.125, 0.123, 0.111, 0.056)},
        "elevators": {32: (0.111, 0.158, 0.217, 0.090), 64: (0.111, 0.114, 0.216, 0.094),
                      128: (0.110, 0.101, 0.250, 0.091)},
        "keggdirected": {32: (0.120, 0.123, 0.376, 0.122), 64: (0.118, 0.120, 0.377, 0.119),
                         128: (0.116, 0.118, 0.370, 0.123)},
        "kin40k": {32: (0.061, 0.056, 0.651, 0.126), 64: (0.065, 0.060, 0.443, 0.097),
                   128: (0.073, 0.071, 0.283, 0.078)},
        "pol": {32: (2.280, 2.328, 2.593, 3.402), 64: (2.449, 2.263, 2.415, 3.067),
                128: (2.469, 2.413, 2.537, 2.642)},
        "protein": {32: (0.426, 0.428, 0.550, 0.483), 64: (0.430, 0.426, 0.494, 0.473),
                    128: (0.435, 0.436, 0.513, 0.461)},
    },
    "table5": {
        "bike": {16: (0.081, 0.096, 0.046, 0.220), 32: (0.093, 0.095, 0.047, 0.235),
                 64: (0.101, 0.106, 0.035, 0.209)},
        "elevators": {16: (0.096, 0.098, 0.089, 0.089), 32: (0.100, 0.098, 0.088, 0.089),
                      64: (0.089, 0.098, 0.088, 0.088)},
        "keggdirected": {16: (0.118, 0.118, 0.122, 0.127), 32: (0.118, 0.118, 0.121, 0.125),
                         64: (0.118, 0.117, 0.119, 0.122)},
        "kin40k": {16: (0.039, 0.040, 0.110, 0.147), 32: (0.039, 0.039, 0.096, 0.124),
                   64: (0.041, 0.041, 0.088, 0.096)},
        "pol": {16: (2.212, 2.200, 2.674, 3.774), 32: (2.210, 2.209, 2.552, 3.338),
                64: (2.348, 2.353, 2.512, 3.020)},
        "protein": {16: (0.387, 0.388, 0.471, 0.507), 32: (0.387, 0.389, 0.461, 0.493),
                    64: (0.388, 0.389, 0.456, 0.481)},
    },
}  # fmt: skip
AS_PUBLISHED = dict(exact_passes=False, early_stopping=False, optimizer="adadelta",
                    activation="relu", learning_rate=0.5)  # fmt: skip
ABLATION = {
    "minimax": {
        "defaults": {},
        "exact passes off": dict(exact_passes=False),
        "penalty relative to |A|": dict(penalty_scale="published", penalty=1.0),
        "a multiplier over 10 m rows": dict(dual_rate=0.05),
        "as published": dict(AS_PUBLISHED, penalty_scale="published", penalty=1.0),
    },
    "scgd": {
        "defaults": {},
        "exact passes off": dict(exact_passes=False),
        "averages of b_t = .9": dict(averaging=0.9),
        "as published": dict(AS_PUBLISHED, averaging=0.9),
    },
    "bsgd": {"defaults": {}, "neighbours": dict(batches="neighbours", batch_size=16)},
}
TRIES = {
    "dual_rate=.005": dict(batch_size=64, dual_rate=0.005),
    "batch_size=256": dict(batch_size=256),
    "learning_rate=.003": dict(batch_size=64, learning_rate=0.003),
}
# All rows of protein, Gaussian kernel.
TRIES_PROTEIN = {
    "three layers of 256": dict(batch_size=64, feature_extractor=(256, 256, 256)),
    "layers of 256": dict(batch_size=64, feature_extractor=(256, 256)),
    "three layers of 128": dict(batch_size=64, feature_extractor=(128, 128, 128)),
}


def measured(method, dataset, n_train, split, gaussian=False, seed=0, **settings):
    from uci import load, scores

    from skscalablegp.datasets import fetch_uci

    X, X_test, y, y_test = load(dataset, split, n_train, 0)
    model = getattr(skscalablegp, METHODS[method])(random_state=seed)
    if method == "svgp":
        model.set_params(n_inducing=settings["batch_size"], normalize_y=True)
    elif gaussian:
        model.set_params(kernel=ConstantKernel() * RBF(), n_components=1000)
    model.set_params(**settings)
    start = time.process_time()
    model.fit(X, y)
    spent = time.process_time() - start
    mean, std = model.predict(X_test, return_std=True)
    raw = fetch_uci(dataset, split=split, return_X_y=True)[2].std()
    found = scores(y_test, {"mean": mean, "std": std})
    name = "lower_bound_" if method == "svgp" else "log_marginal_likelihood_value_"
    nlml = -getattr(model, name) / len(X)
    return found | dict(
        raw_rmse=found["rmse"] * raw,
        nlml=nlml,
        raw_nlml=nlml + math.log(raw),
        slope_bias=getattr(model.fit_report_, "slope_bias", None),
        n_iter=model.n_iter_,
        cpu_seconds=round(spent, 1),
    )


def saddle(activation):
    """The largest and the least trace over ten seeds, from the saddle on without exact passes."""
    from skscalablegp.linalg.gradients import Rows
    from skscalablegp.models.deep import FeatureBatch, MinimaxGradient, feature_moments

    traces, n, m, noise = [], 5000, 128, torch.tensor(0.01)
    for seed in range(10):
        g = torch.Generator().manual_seed(seed)
        Z = torch.randn(n, 8, generator=g)
        for width in (m, m):
            V = torch.randn(Z.shape[1], width, generator=g) * (2 / Z.shape[1]) ** 0.5
            Z = getattr(torch.nn.functional, activation)(Z @ V)
        Z = Z.double() / m**0.5
        rule, Y = MinimaxGradient(), Z[:, :1]
        F = Z.T @ Z + float(noise) * torch.eye(m, dtype=Z.dtype)
        moments = feature_moments([Rows.of(Z, Y)], lambda X: X)
        state = rule.start(moments, float(noise), 64, Z.dtype)
        w = torch.zeros(m, 1, dtype=Z.dtype)
        for _ in range(1000):
            i, j = torch.randint(n, (2, 64), generator=g)
            batch = FeatureBatch(Z[i], Y[i], w, noise.log(), n, Z[j])
            state = rule.estimate(batch, state)[1]
            if not state.pending:
                traces.append(float((state.slope * F).sum()) / m)
    return dict(least=min(traces), largest=max(traces))


def cells():
    for activation in ("relu", "silu", "tanh"):
        yield f"saddle {activation}", "1", lambda a=activation: saddle(a)
    for method, settings in ABLATION.items():
        for what, params in settings.items():
            for dataset in ("kin40k", "pol"):
                name = f"ablation {method} {dataset} {what}"
                yield name, None, lambda m=method, d=dataset, p=params: measured(m, d, 4000, 0, **p)
    # The first seed has no number in its name.
    for seed in range(SEEDS):
        for dataset in SETS:
            for method in ("minimax", "scgd"):
                yield (
                    f"small {dataset} {method}" + f" seed={seed}" * bool(seed),
                    "as far as each other",
                    lambda m=method, d=dataset, s=seed: measured(
                        m, d, 4000, 0, seed=s, batch_size=64
                    ),
                )
    for size in FEW_BATCHES:
        for method in ("scgd", "minimax", "bsgd"):
            yield (
                f"batches pol {size} {method}",
                "no worse with small batches, but for bsgd",
                lambda m=method, b=size: measured(
                    m, "pol", 4000, 0, True, n_components=256, batch_size=b
                ),
            )
    for split in range(1, 5):
        for method in ("scgd", "minimax"):
            yield (
                f"splits elevators {split} {method}",
                None,
                lambda m=method, s=split: measured(m, "elevators", 4000, s, batch_size=64),
            )
    # Where minimax is behind with the first seed.
    for what, params in TRIES.items():
        name = f"tries minimax bike {what}"
        yield name, None, lambda p=params: measured("minimax", "bike", 4000, 0, **p)
    for what, params in TRIES_PROTEIN.items():
        yield (
            f"tries scgd protein {what}",
            "raw_rmse 0.389",
            lambda p=params: measured("scgd", "protein", 0, 0, True, **p),
        )
    for table, batches in BATCHES.items():
        for split in range(5):
            for dataset in SETS:
                for size in batches:
                    paper = PAPER[table][dataset].get(size)
                    for k, method in enumerate(METHODS):
                        note = f"raw_rmse {paper[k]:g}" if paper else None
                        yield (
                            f"{table} {dataset} {size} {method} split={split}",
                            note,
                            lambda m=method, d=dataset, s=split, b=size, t=table: measured(
                                m, d, 0, s, t == "table5", batch_size=b
                            ),
                        )


def plot(done):
    """Errors by batch size: lines are the paper's, points ours; few rows first."""
    import matplotlib.pyplot as plt

    panels = [
        (table, dataset)
        for table in BATCHES
        for dataset in SETS
        if any(name.startswith(f"{table} {dataset} ") for name in done)
    ]
    across = min(5, 1 + len(panels))
    down = math.ceil((1 + len(panels)) / across)
    size = (2.6 * across, 2.6 * down)
    fig, axes = plt.subplots(down, across, figsize=size, layout="constrained", squeeze=False)
    for ax in axes.flat[1 + len(panels) :]:
        ax.set_axis_off()
    axes = axes.flat[: 1 + len(panels)]
    for k, method in enumerate(METHODS):
        few = {b: done.get(f"batches pol {b} {method}") for b in FEW_BATCHES}
        few = {b: line["raw_rmse"] for b, line in few.items() if line}
        axes[0].plot(few.keys(), few.values(), "o-", color=f"C{k}", label=method)
    axes[0].set(title="pol, 4,000 rows", ylabel="raw RMSE")
    axes[0].legend(fontsize=7)
    for ax, (table, dataset) in zip(axes[1:], panels, strict=True):
        for k, method in enumerate(METHODS):
            names = {b: f"{table} {dataset} {b} {method} split=0" for b in BATCHES[table]}
            ours = {b: done[name]["raw_rmse"] for b, name in names.items() if name in done}
            theirs = {b: errors[k] for b, errors in PAPER[table][dataset].items()}
            ax.plot(ours.keys(), ours.values(), "o", color=f"C{k}")
            ax.plot(theirs.keys(), theirs.values(), ":", color=f"C{k}")
        ax.set_title(f"{table} {dataset}")
    sizes = [FEW_BATCHES, *(BATCHES[table] for table, _ in panels)]
    for ax, ticks in zip(axes, sizes, strict=True):
        ax.set(xlabel="batch size", xscale="log")
        ax.set_xticks(ticks, ticks)
        ax.minorticks_off()
    fig.savefig(ROOT / "doc" / "papers_deep.png", dpi=110)


if __name__ == "__main__":
    run(__doc__, cells(), RESULTS, plot)
