"""
Which linear solver, and how many epochs?
=========================================

Gradient-based training of a Gaussian process solves a batch of linear systems with the kernel
matrix at every step: one for the target and one for each probe of the trace. The cost of training
is the number of solver epochs; one epoch evaluates every entry of the kernel matrix once.

Three choices determine that number (Lin et al., 2024): the solver, the gradient estimator, and
whether a solve starts from the previous solution. Here every combination trains the same model.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_solvers.png"

# %%
# A table and a model
# -------------------
# 400 rows of a smooth function of five columns with little noise: the hyperparameters start at 1,
# and the systems become badly conditioned as the noise is learned.
import time
import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_friedman1
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process.kernels import ConstantKernel, Matern, WhiteKernel

from skscalablegp import IterativeGPRegressor
from skscalablegp.metrics import nlpd
from skscalablegp.preconditioners import PivotedCholesky
from skscalablegp.solvers import ADASAP, AP, CG, SGD, BlockCG
from skscalablegp.training import Adam

X, y = make_friedman1(800, n_features=5, noise=0.3, random_state=0)
X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()
X_train, X_test, y_train, y_test = X[:400], X[400:], y[:400], y[400:]
kernel = ConstantKernel(1.0) * Matern(np.ones(5), nu=1.5) + WhiteKernel(1.0)

SOLVERS = {
    "CG": CG(PivotedCholesky(rank=30)),
    "block CG": BlockCG(PivotedCholesky(rank=30, randomized=True, random_state=0)),
    "alternating projections": AP(block_size=100),
    "SGD": SGD(batch_size=100),
    "sketch and project": ADASAP(block_size=100, rank=None),
}


def train(solver, gradient="pathwise", warm=True, max_epochs=200, n_probes=16):
    """Twenty steps of Adam, and predictions from pathwise samples."""
    model = IterativeGPRegressor(
        kernel,
        solver=solver,
        gradient=gradient,
        solver_warm_start=warm,
        solver_max_epochs=max_epochs,
        optimizer=Adam(0.1),
        max_iter=20,
        n_iter_no_change=None,
        n_probes=n_probes,
        posterior="pathwise",
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # solves may end at their budget
        return model.fit(X_train, y_train)


def test_nlpd(model):
    return nlpd(y_test, *model.predict(X_test, return_std=True))


# %%
# To tolerance, and with ten epochs a step
# ----------------------------------------
# In the upper row, every solve ends at a relative residual of 1% or after 200 epochs, and the
# hyperparameters of every fifth step are evaluated by exact predictions, so that only the epochs
# differ. In the lower row, a step has at most ten epochs. With warm starts, the next step continues
# the unfinished solve, and the systems of the pathwise estimator start closer to their solutions.


def nlpd_along(model):
    """Epochs spent and exact test NLPD at every fifth step."""
    spent = np.cumsum(model.history_["epochs"])
    steps = np.arange(4, len(spent), 5)
    thetas = [model.history_["theta"][k] for k in steps]
    fixed = [
        IterativeGPRegressor(kernel.clone_with_theta(theta), optimizer=None).fit(X_train, y_train)
        for theta in thetas
    ]
    return spent[steps], [test_nlpd(m) for m in fixed]


figure, axes = plt.subplots(2, 4, figsize=(13, 6), sharex="row", sharey="row", layout="constrained")
settings = [("standard", False), ("standard", True), ("pathwise", False), ("pathwise", True)]
titles = [f"{gradient}, {'warm' if warm else 'cold'}" for gradient, warm in settings]
print(f"{'epochs to train':25s}" + "".join(f"{title:>16s}" for title in titles))
for k, (name, solver) in enumerate(SOLVERS.items()):
    totals = []
    for (top, bottom), (gradient, warm) in zip(axes.T, settings, strict=True):
        model = train(solver, gradient, warm)
        totals.append(sum(model.history_["epochs"]))
        top.semilogx(*nlpd_along(model), f"C{k}.-", label=name)
        short = train(solver, gradient, warm, max_epochs=10)
        spent = np.cumsum(short.history_["epochs"])
        bottom.semilogy(spent, short.history_["residual"], f"C{k}")
    print(f"{name:25s}" + "".join(f"{total:16.0f}" for total in totals))
for (top, bottom), title in zip(axes.T, titles, strict=True):
    top.set(title=title, xlabel="epochs, solved to tolerance")
    bottom.set(xlabel="epochs, at most ten a step")
axes[0, 0].set_ylabel("test NLPD of the hyperparameters")
axes[1, 0].set_ylabel("largest relative residual")
figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5)

# %%
# The effect of ten epochs on predictions
# ---------------------------------------
# Here, means and variances are computed from the last solutions of the solver, as in practice, with
# 64 pathwise samples. The dashed line shows the same with every solve run to tolerance.
reference = test_nlpd(train(SOLVERS["block CG"], n_probes=64))
print(f"\n{'ten epochs a step':25s}{'residual':>10s}{'test NLPD':>10s}{'seconds':>9s}")
figure, right = plt.subplots(figsize=(6, 3.5), layout="constrained")
for k, (name, solver) in enumerate(SOLVERS.items()):
    start = time.perf_counter()
    model = train(solver, max_epochs=10, n_probes=64)
    seconds, score = time.perf_counter() - start, test_nlpd(model)
    right.plot(k, score, f"C{k}o", markersize=10)
    print(f"{name:25s}{model.history_['residual'][-1]:10.3f}{score:10.3f}{seconds:9.1f}")
right.axhline(reference, color="k", linestyle="--")
right.set_xticks(range(len(SOLVERS)), [name.replace(" ", "\n") for name in SOLVERS])
right.set(ylabel="test NLPD", title="ten epochs a step, pathwise and warm")
right.margins(0.15, 0.3)
plt.show()
