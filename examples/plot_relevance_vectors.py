"""
Relevance vectors of a noisy sinc
=================================

A relevance vector machine starts with a kernel function at every row, each with its own prior
precision, and maximises the evidence. Most precisions then go to infinity, and their functions are
removed. The remaining few predict as well as all functions together, at a fraction of the cost.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_relevance_vectors.png"

# %%
# Five hundred noisy rows of sin(x) / x.
import matplotlib.pyplot as plt
import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import QSGPRegressor, QSRVMRegressor

rng = np.random.default_rng(0)
X = rng.uniform(-10, 10, (500, 1))
y = np.sinc(X[:, 0] / np.pi) + 0.1 * rng.standard_normal(500)
grid = np.linspace(-12, 12, 400)[:, None]
truth = np.sinc(grid[:, 0] / np.pi)
inside = np.abs(grid[:, 0]) <= 10

# %%
# The same kernel for both; ``basis="rows"`` keeps every function.
kernel = ConstantKernel() * RBF() + WhiteKernel(0.1)
full = QSGPRegressor(kernel, basis="rows", random_state=0).fit(X, y)
sparse = QSRVMRegressor(kernel, n_components=500, random_state=0).fit(X, y)

for name, model, m in (("all rows", full, len(X)), ("relevance", sparse, len(sparse.relevance_))):
    error = np.sqrt(np.mean(np.square(model.predict(grid) - truth)[inside]))
    print(f"{name:10s} {m:4d} functions   RMSE to the true function {error:.4f}")

# %%
# Standard deviations grow away from the data, because predictive variances are augmented by a
# kernel function at the predicted row. Without it, the sparse model would be certain far from the
# data.
mean, std = sparse.predict(grid, return_std=True)
plt.figure(figsize=(8, 4))
plt.plot(X[:, 0], y, ".", color="0.7", markersize=3, label="rows")
chosen = sparse.relevance_
plt.plot(X[chosen, 0], y[chosen], "o", color="C3", label=f"{len(chosen)} relevance vectors")
plt.plot(grid[:, 0], mean, "C0", label="mean")
band = {"color": "C0", "alpha": 0.2, "label": "one standard deviation"}
plt.fill_between(grid[:, 0], mean - std, mean + std, **band)
plt.plot(grid[:, 0], truth, "k--", linewidth=1, label="sin(x) / x")
plt.legend(loc="upper right")
plt.tight_layout()
plt.show()
