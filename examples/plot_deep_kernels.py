"""
Deep kernels from small batches, with and without a bias
========================================================

A deep kernel is a kernel on the outputs of a network. Its marginal likelihood is not a sum over
rows, so that a batch of rows gives no unbiased gradient of it. This page shows the effect of this
bias, and how the two methods of Shoham and Avron avoid it.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_deep_kernels.png"

# %%
# The bias of a single batch
# --------------------------
# The kernel is phi(x)'phi(x'). The bias is in the term log|F| with F = Z'Z + s2 I, where the rows
# of Z are features. The likelihood of the batch (BSGD) replaces F by the contribution of the batch,
# without the factor n / b. SCGD uses a running average of scaled batches; minimax training
# introduces a matrix A in place of F, and a multiplier for the constraint A = F. The figure
# compares the exact gradient with the mean direction of an epoch, both with respect to the
# amplitude a of the features.
import warnings

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import make_friedman1
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

from skscalablegp import (
    BSGDDKLRegressor,
    MinimaxDKLRegressor,
    SCGDDKLRegressor,
    SVGPRegressor,
)
from skscalablegp.models.deep import (
    CompositionalGradient,
    FeatureBatch,
    MinibatchGradient,
    MinimaxGradient,
    feature_moments,
    weight_space_likelihood,
)

torch.set_num_threads(1)
generator = torch.Generator().manual_seed(0)
n, m, noise = 240, 20, 0.1
Z = torch.randn(n, m, generator=generator, dtype=torch.float64) / m**0.5
Y = Z @ torch.randn(m, 1, generator=generator, dtype=torch.float64)
Y = Y + 0.5 * torch.randn(n, 1, generator=generator, dtype=torch.float64)
whole = feature_moments([(Z, Y)], lambda X: X)
log_noise = torch.tensor(noise, dtype=torch.float64).log()


def slope(rule, value, size):
    """The mean direction in log a over an epoch of batches."""
    a = torch.tensor(value, dtype=torch.float64, requires_grad=True)
    here = whole.scaled(float(np.exp(2 * value)))
    w = weight_space_likelihood(here, noise).weights
    state, total = rule.start(here, noise, size, torch.float64), 0
    for i in range(0, n, size):
        phi = a.exp() * Z[i : i + size]
        batch = FeatureBatch(phi, Y[i : i + size], w, log_noise, n, phi.detach())
        total = total + rule.estimate(batch, state)[0] * size / n
    return float(torch.autograd.grad(total, a)[0])


values = np.linspace(-1, 1, 41)
likelihood = [
    -2 * weight_space_likelihood(whole.scaled(float(np.exp(2 * v))), noise).value / n
    for v in values
]
figure, axis = plt.subplots(figsize=(7, 4))
axis.plot(values, np.gradient(likelihood, values), "k", lw=4, alpha=0.3, label="exact")
axis.plot(values, [slope(CompositionalGradient(1e-6), v, 12) for v in values], label="SCGD, 12")
axis.plot(
    values, [slope(MinimaxGradient(rate=1e-6), v, 12) for v in values], "--", label="minimax, 12"
)
for size in (12, 60):
    axis.plot(
        values, [slope(MinibatchGradient(), v, size) for v in values], ":", label=f"BSGD, {size}"
    )
axis.axhline(0, color="0.7", lw=1)
axis.set(xlabel="log amplitude", ylabel="mean direction", title="Directions by rule and batch size")
axis.legend()

# %%
# The effect on a trained model
# -----------------------------
# The same network, trained for the same number of epochs. The score is the exact negative log
# marginal likelihood of the training rows, and the error on new rows. SVGP has as many inducing
# points as a batch has rows, and the default kernel on the columns.
X, y = make_friedman1(n_samples=900, n_features=8, noise=0.5, random_state=0)
X_new, y_new = make_friedman1(n_samples=2000, n_features=8, noise=0.5, random_state=1)
sizes = [8, 32, 128]
models = {
    "minimax": MinimaxDKLRegressor,
    "SCGD": SCGDDKLRegressor,
    "BSGD": BSGDDKLRegressor,
}
settings = {"feature_extractor": (32, 32), "max_epochs": 10, "random_state": 0}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
for name, cls in models.items():
    fits = [cls(batch_size=size, **settings).fit(X, y) for size in sizes]
    left.plot(sizes, [-f.log_marginal_likelihood() / len(X) for f in fits], "o-", label=name)
    errors = [np.sqrt(np.mean((f.predict(X_new) - y_new) ** 2)) for f in fits]
    right.plot(sizes, errors, "o-", label=name)
errors = []
for size in sizes:
    svgp = SVGPRegressor(
        n_inducing=size,
        batch_size=size,
        max_iter=10 * len(X) // size,
        normalize_y=True,
        random_state=0,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        errors.append(np.sqrt(np.mean((svgp.fit(X, y).predict(X_new) - y_new) ** 2)))
right.plot(sizes, errors, "o-", label="SVGP")
left.set(xscale="log", xlabel="batch size", title="training -log p(y) per row")
right.set(xscale="log", xlabel="batch size", title="error on new rows")
right.legend()

# %%
# Learned features in the plane
# -----------------------------
# With a last layer of two columns, the features can be plotted. The network unrolls a spiral, so
# that one length scale suffices for a Gaussian kernel.
rng = np.random.default_rng(0)
angle = rng.uniform(1, 4 * np.pi, 1500)
spiral = np.column_stack([angle * np.cos(angle), angle * np.sin(angle)])
spiral += 0.2 * rng.standard_normal(spiral.shape)
target = np.sin(0.8 * angle) + 0.05 * rng.standard_normal(len(angle))
deep = SCGDDKLRegressor(
    kernel=ConstantKernel() * RBF(),
    feature_extractor=(64, 64, 2),
    activation="tanh",
    n_components=200,
    max_epochs=60,
    random_state=0,
).fit(spiral, target)
learned = deep.extract_features(spiral)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4))
left.scatter(*spiral.T, c=target, s=5)
left.set_title("columns")
right.scatter(*learned.T, c=target, s=5)
right.set_title("learned features")
print(f"R2 {deep.score(spiral, target):.3f}, noise {deep.predict_std(spiral[:1])[0]:.3f}")

plt.show()
