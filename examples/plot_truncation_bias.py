"""
The bias of truncation, and truncation without a bias
=====================================================

A Gaussian process is trained by its log marginal likelihood, whose two terms, :math:`y^\\top H^{-1}
y` and :math:`\\log|H|`, are expensive. Conjugate gradients that are stopped early and small numbers
of random features are cheap, but biased in opposite directions; randomised truncation is cheap and
unbiased. This page shows both, after the figures of Potapczynski et al. (2021).
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_truncation_bias.png"

# %%
# Two biases of opposite signs
# ----------------------------
# Stopped after J iterations, conjugate gradients underestimate the quadratic term and overestimate
# the determinant; random features do the opposite. Dots with bars are the randomly truncated
# versions, whose mean does not depend on the number of iterations or features.
import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp.core.training import Monitor, train
from skscalablegp.features import sample_prior_features
from skscalablegp.gradients import ExactGradient, TruncatedGradient
from skscalablegp.kernels import compile_kernel
from skscalablegp.linalg.gradients import GPProblem, exact_marginal_likelihood
from skscalablegp.linalg.solvers import lanczos
from skscalablegp.linalg.truncation import WeightedColumns, roulette_cg, roulette_weights
from skscalablegp.models.fourier import (
    FeatureGradient,
    SingleSampleGradient,
    collapsed_marginal_likelihood,
    single_sample_terms,
)
from skscalablegp.training import Adam
from skscalablegp.truncation import ExponentialTruncation, FixedTruncation

torch.set_num_threads(1)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def make_problem(X, y, kernel):
    compiled = compile_kernel(kernel, X.shape[1])
    return GPProblem(compiled, torch.tensor(X), torch.tensor(y[:, None]))


rng = np.random.default_rng(0)
x = np.sort(rng.uniform(-1, 1, 150))
y = x * np.sin(5 * np.pi * x) + 0.1 * rng.standard_normal(len(x))
fixed = ConstantKernel(1.0, "fixed")
toy = make_problem(x[:, None], y, fixed * RBF(0.1, (1e-2, 10)) + WhiteKernel(0.01, "fixed"))
theta = toy.kernel.theta0
operator = toy.operator(theta)

exact = exact_marginal_likelihood(toy, theta, eval_gradient=False)
exact_terms = (
    float((toy.Y * exact.weights).sum()),
    float(2 * exact.factor.diagonal().log().sum()),
)


def rr_truncation(expected_iter):
    return ExponentialTruncation(0.3, expected_iter=expected_iter)


def quadratures(n_steps, g):
    """Estimates of log|H| from 1, 2, ... steps of Lanczos, the mean of ten probes."""
    Z = 2.0 * torch.randint(0, 2, (len(x), 10), generator=g).double() - 1
    T = lanczos(operator, Z, n_steps).matrix()
    found = []
    for j in range(1, n_steps + 1):
        values, vectors = torch.linalg.eigh(T[:, :j, :j])
        found.append(len(x) * float((vectors[:, 0].square() * values.log()).sum(1).mean()))
    return np.array(found)


def cg_terms(truncation, n_runs):
    """Mean and standard error of both terms."""
    bound, g, values = truncation.on(len(x)), seeded(1), []
    for _ in range(n_runs):
        first, second = (roulette_weights(bound, bound.sample(1, g)) for _ in range(2))
        solve = roulette_cg(operator, toy.Y, [WeightedColumns(slice(0, 1), first)]).values[0]
        increments = np.diff(quadratures(second.shape[1], g), prepend=0.0)
        values.append([float((toy.Y * solve).sum()), float(second[0].numpy() @ increments)])
    return np.mean(values, 0), np.std(values, 0) / n_runs**0.5


def feature_terms(n_components, n_runs):
    values = []
    for seed in range(n_runs):
        features = sample_prior_features(toy.kernel, 1, n_components // 2, seeded(seed))
        terms = collapsed_marginal_likelihood(toy, theta, features, eval_gradient=False)
        values.append([terms.quadratic, terms.log_det])
    return np.mean(values, 0), np.std(values, 0) / n_runs**0.5


def single_sample_means(min_components, n_runs):
    gradient = SingleSampleGradient(min_components=min_components, component_step=10)
    levels = gradient.levels(len(x))
    g = seeded(2)
    values = [single_sample_terms(toy, theta, levels, g).numpy()[:2] for _ in range(n_runs)]
    return np.mean(values, 0), np.std(values, 0) / n_runs**0.5


iterations = [6, 8, 10, 12, 15, 20]
counts = [20, 40, 60, 80, 100, 120]
results = {
    "CG": (iterations, [cg_terms(FixedTruncation(j), 20) for j in iterations]),
    "RR-CG": (iterations, [cg_terms(rr_truncation(j), 150) for j in iterations]),
    "RFF": (counts, [feature_terms(m, 40) for m in counts]),
    "SS-RFF": (counts, [single_sample_means(m, 75) for m in counts]),
}

fig, axes = plt.subplots(2, 2, figsize=(9, 5.5), sharex="col", layout="constrained")
for column, names in enumerate([("CG", "RR-CG"), ("RFF", "SS-RFF")]):
    for row, label in enumerate([r"$y^\top H^{-1} y$", r"$\log|H|$"]):
        ax = axes[row, column]
        ax.axhline(exact_terms[row], color="k", ls="--", lw=1, label="exact (Cholesky)")
        for name, color, marker in zip(names, ["C1", "C0"], ["s", "o"], strict=True):
            where, values = results[name]
            means = [mean[row] for mean, _ in values]
            errors = [2 * error[row] for _, error in values]
            ax.errorbar(where, means, errors, color=color, marker=marker, ms=4, label=name)
        ax.set_ylabel(label if column == 0 else "")
        ax.legend(fontsize="small")
axes[1, 0].set_xlabel("(expected) iterations")
axes[1, 1].set_xlabel("(least) features")
fig.suptitle("The two terms of the likelihood, bars of two standard errors")

# %%
# The effect on hyperparameters
# -----------------------------
# The quadratic term rewards a good fit, and the determinant penalises flexibility. Conjugate
# gradients therefore learn a length scale that is too long, random features one that is too short.


def learn(problem, estimator, steps, rate=0.05, decay=0.02, seed=0):
    """All hyperparameters that Adam visits."""
    path = []
    train(
        problem,
        estimator,
        Adam(rate, decay=decay),
        problem.kernel.theta0.numpy(),
        problem.kernel.bounds.numpy(),
        max_iter=steps,
        monitor=Monitor([lambda step: path.append(step.theta)]),
        generator=seeded(seed),
    )
    return np.array(path)


def features_of(problem, n_components, seed=0):
    return FeatureGradient(
        sample_prior_features(problem.kernel, problem.X.shape[1], n_components // 2, seeded(seed))
    )


best = learn(toy, ExactGradient(), 120)[-10:].mean()


def log_ratio(estimators, steps):
    ends = [learn(toy, estimator, steps)[-steps // 10 :].mean() for estimator in estimators]
    return np.array(ends) - best


few_iterations, few_features = [5, 7, 10], [20, 40, 80, 160]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True, layout="constrained")
axes[0].plot(
    few_iterations,
    log_ratio([TruncatedGradient(FixedTruncation(j)) for j in few_iterations], 150),
    "C1s-",
    label="CG",
)
axes[0].plot(
    [10, 15, 20],
    log_ratio([TruncatedGradient(rr_truncation(j)) for j in (10, 15, 20)], 200),
    "C0o-",
    label="RR-CG",
)
axes[1].plot(
    few_features,
    [
        np.mean(log_ratio([features_of(toy, m, seed) for seed in range(3)], 120))
        for m in few_features
    ],
    "C1s-",
    label="RFF, mean of three draws",
)
for ax, label in zip(axes, ["(expected) iterations", "features"], strict=True):
    ax.axhline(0, color="k", ls="--", lw=1)
    ax.set_xlabel(label)
    ax.legend()
axes[0].set_ylabel("log(learned / exact length scale)")

# %%
# Paths on the surface of the likelihood
# --------------------------------------
# With two hyperparameters, the whole surface can be drawn. The unbiased paths are noisy and end
# near the exact optimum; the biased ones are smooth and end elsewhere.

two = make_problem(x[:, None], y, fixed * RBF(0.3, (1e-2, 10)) + WhiteKernel(0.1, (1e-3, 1)))
length_scales, noises = np.linspace(-3.2, -0.4, 17), np.linspace(-6.5, -1.5, 17)
surface = [
    [
        exact_marginal_likelihood(two, torch.tensor([a, b]), eval_gradient=False).value / len(x)
        for a in length_scales
    ]
    for b in noises
]
methods = {
    "Cholesky": ExactGradient(),
    "CG(6)": TruncatedGradient(FixedTruncation(6)),
    "RR-CG(15)": TruncatedGradient(rr_truncation(15)),
    "RFF(30)": features_of(two, 30, seed=1),
    "SS-RFF(100)": SingleSampleGradient(min_components=100, component_step=10),
}
fig, axes = plt.subplots(1, 5, figsize=(13, 3), sharex=True, sharey=True, layout="constrained")
for ax, (name, estimator) in zip(axes, methods.items(), strict=True):
    path = learn(two, estimator, 150, rate=0.1, decay=0.05)
    ax.contourf(length_scales, noises, surface, levels=np.linspace(-1.5, 0.6, 22), extend="min")
    ax.plot(*path.T, "w-", lw=1)
    ax.plot(*path[-1], "r*", ms=10)
    ax.set_title(name)
    ax.set_xlabel("log length scale")
    ax.set_xlim(length_scales[[0, -1]])
    ax.set_ylim(noises[[0, -1]])
axes[0].set_ylabel("log noise variance")

# %%
# The exact objective during training
# -----------------------------------
# On a smooth function of five columns with little noise, a fixed number of 20 iterations is not
# enough. A random number with a mean of 20 is.

X, z = make_friedman1(400, n_features=5, noise=0.6, random_state=0)
X, z = (X - X.mean(0)) / X.std(0), (z - z.mean()) / z.std()
kernel = ConstantKernel(1.0) * RBF(np.ones(5), (1e-2, 1e3)) + WhiteKernel(1.0, (1e-4, 10))
table = make_problem(X, z, kernel)
methods = {
    "Cholesky": ExactGradient(),
    "CG(20)": TruncatedGradient(FixedTruncation(20)),
    "RR-CG(20)": TruncatedGradient(ExponentialTruncation(0.1, expected_iter=20)),
    "RR-CG(40)": TruncatedGradient(ExponentialTruncation(0.1, expected_iter=40)),
}
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, estimator in methods.items():
    path = learn(table, estimator, 100, rate=0.07, decay=1.0)[::5]
    objective = [
        -exact_marginal_likelihood(table, torch.tensor(point), eval_gradient=False).value / len(z)
        for point in path
    ]
    ax.plot(5 * np.arange(len(path)), objective, "k--" if name == "Cholesky" else "-", label=name)
    print(f"{name:10s} {objective[-1]:.3f} at the end")
ax.set_xlabel("steps of Adam")
ax.set_ylabel("exact negative log likelihood a row")
ax.legend()
plt.show()

# %%
# The estimators behind these gradients have scikit-learn's interface: ``RRCGRegressor``,
# ``RFFRegressor`` and ``SSRFFRegressor``.
assert exact_terms[0] > results["CG"][1][0][0][0]
assert exact_terms[1] < results["CG"][1][0][0][1]
