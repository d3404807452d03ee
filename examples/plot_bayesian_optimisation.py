"""
Bayesian optimisation by Thompson sampling
==========================================

Thompson sampling draws one function from the posterior and looks where it is smallest. With a
posterior on a grid a draw at 10,000 points is one interpolation, so that a step takes milliseconds
besides the fit. The function is Eggholder's, whose minimum hides among many others.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import KISSGPRegressor
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel


def eggholder(X):
    a, b = 512 * (2 * X.T - 1)
    return -(b + 47) * np.sin(np.sqrt(np.abs(a / 2 + b + 47))) - a * np.sin(
        np.sqrt(np.abs(a - b - 47))
    )


# %%
# Start from a design that holds the corners, so that the grid covers the square, and add rows with
# ``partial_fit``: exact, and at a cost that does not depend on the rows seen before.
rng = np.random.default_rng(0)
corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
X = np.vstack([corners, rng.uniform(size=(196, 2))])
y = eggholder(X)
kernel = ConstantKernel(1.0) * RBF(0.1, (0.06, 0.3)) + WhiteKernel(1e-3, (1e-5, 0.1))
gp = KISSGPRegressor(kernel, grid_size=40, normalize_y=True, n_lanczos=None).fit(X, y)

best = [y.min()]
for step in range(20):
    candidates = rng.uniform(size=(10_000, 2))
    draw = gp.sample_y(candidates, 1, random_state=step)[:, 0]
    chosen = candidates[[draw.argmin()]]
    value = eggholder(chosen)
    gp.partial_fit(chosen, value)
    X, y = np.vstack([X, chosen]), np.append(y, value)
    best.append(y.min())
print(f"best value after 20 steps: {best[-1]:.1f} (the minimum is -959.6)")

# %%
# The density of the posterior's minimum at 10,000 points: with exact variances on the grid, with
# LOVE, with random Fourier features, and by Cholesky from the exact model at fewer points.
candidates = rng.uniform(size=(10_000, 2))
few = candidates[:500]
unit, centre = np.std(y[:200]), np.mean(y[:200])
love = KISSGPRegressor(gp.kernel_, optimizer=None, grid_size=40, normalize_y=True, n_lanczos=200)
exact = GaussianProcessRegressor(gp.kernel_, optimizer=None, alpha=0).fit(X, (y - centre) / unit)
minima = {
    "grid": gp.sample_y(candidates, 200, random_state=1).min(axis=0),
    "LOVE": love.fit(X, y).sample_y(candidates, 200, random_state=1).min(axis=0),
    "exact, 500 points": exact.sample_y(few, 200, 1).min(axis=0) * unit + centre,
}

compiled = compile_kernel(gp.kernel_, 2)
features = sample_prior_features(compiled, 2, 500, torch.Generator().manual_seed(0))
phi, new = (
    features.evaluate(compiled.theta0, torch.from_numpy(A)).numpy() for A in (X, candidates)
)
noise = gp.kernel_.k2.noise_level
precision = phi.T @ phi / noise + np.eye(phi.shape[1])
weights = np.linalg.solve(precision, phi.T @ ((y - centre) / unit) / noise)
root = np.linalg.inv(np.linalg.cholesky(precision)).T
draws = new @ (weights[:, None] + root @ rng.standard_normal((len(weights), 200)))
minima["Fourier features"] = draws.min(axis=0) * unit + centre

for name, values in minima.items():
    print(f"{name:20s} minimum {values.mean():8.1f} +- {values.std():.1f}")

# %%
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.5))
left.plot(best)
left.set(xlabel="step", ylabel="best value so far")
for name, values in minima.items():
    right.hist(values, bins=30, density=True, histtype="step", label=name)
right.set(xlabel="predicted minimum", ylabel="density")
right.legend()
plt.tight_layout()
plt.show()
