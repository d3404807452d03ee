"""
Bayesian optimisation by Thompson sampling
==========================================

Thompson sampling draws one function from the posterior and evaluates the target where that draw is
smallest. With a posterior on a grid, a draw is an interpolation whose cost is linear in the number
of candidates. The function is Eggholder's, which has many local minima.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_bayesian_optimisation.png"

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel

from skscalablegp import KISSGPRegressor, LOVEPredictor
from skscalablegp.features import sample_prior_features
from skscalablegp.kernels import compile_kernel


def eggholder(X):
    a, b = 512 * (2 * X.T - 1)
    return -(b + 47) * np.sin(np.sqrt(np.abs(a / 2 + b + 47))) - a * np.sin(
        np.sqrt(np.abs(a - b - 47))
    )


# %%
# The first design includes the corners, so that the grid covers the square. ``partial_fit`` adds
# rows exactly, at a cost that does not depend on the number of earlier rows.
rng = np.random.default_rng(4)
corners = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], dtype=float)
X = np.vstack([corners, rng.uniform(size=(196, 2))])
y = eggholder(X)
kernel = ConstantKernel(1.0) * RBF(0.08, "fixed") + WhiteKernel(0.1, "fixed")
gp = KISSGPRegressor(kernel, grid_size=40, normalize_y=True).fit(X, y)

best = [y.min()]
for step in range(20):
    candidates = rng.uniform(size=(4_000, 2))
    draw = gp.sample_y(candidates, 1, random_state=step)[:, 0]
    chosen = candidates[[draw.argmin()]]
    value = eggholder(chosen)
    gp.partial_fit(chosen, value)
    X, y = np.vstack([X, chosen]), np.append(y, value)
    best.append(y.min())
print(f"best value after 20 steps: {best[-1]:.1f} (the minimum is -959.6)")

# %%
# The density of the posterior's minimum over 4,000 points, with exact variances on the grid and
# with LOVE. For comparison, the exact model with a Cholesky factor at 500 of these points, over
# which the minimum is a little higher.
candidates = rng.uniform(size=(4_000, 2))
few = candidates[:500]
unit, centre = np.std(y[:200]), np.mean(y[:200])
love = LOVEPredictor(FrozenEstimator(gp), variance_rank=100).fit(X, y)
print(f"LOVE grew to rank {love.variance_rank_}, where variances err by {love.variance_error_:.1e}")
exact = GaussianProcessRegressor(gp.kernel_, optimizer=None, alpha=0).fit(X, (y - centre) / unit)
minima = {
    "grid": gp.sample_y(candidates, 200, random_state=1).min(axis=0),
    "LOVE": love.sample_y(candidates, 200, random_state=1).min(axis=0),
    "exact, 500 points": exact.sample_y(few, 200, 1).min(axis=0) * unit + centre,
}


# %%
# Random Fourier features replace the kernel by one of finite rank. The relative error of its
# entries is one over the root of the number of pairs, and small noise amplifies it, since the
# weights H\ :sup:`-1` y are then large. Draws (by Matheron's rule: a prior draw plus a correction
# by the data) follow an inaccurate mean into minima that do not exist. More features reduce the
# error.
compiled = compile_kernel(gp.kernel_, 2)
noise = gp.kernel_.k2.noise_level


def fourier_minima(n_pairs, n_draws=200):
    features = sample_prior_features(compiled, 2, n_pairs, torch.Generator().manual_seed(0))
    phi, new = (
        features.evaluate(compiled.theta0, torch.from_numpy(A)).numpy() for A in (X, candidates)
    )
    prior = rng.standard_normal((phi.shape[1], n_draws))
    missing = ((y - centre) / unit)[:, None] - phi @ prior
    missing -= noise**0.5 * rng.standard_normal(missing.shape)
    weights = prior + phi.T @ np.linalg.solve(phi @ phi.T + noise * np.eye(len(X)), missing)
    draws = new @ weights + noise**0.5 * rng.standard_normal((len(candidates), n_draws))
    return draws.min(axis=0) * unit + centre


for n_pairs in (500, 4000):
    minima[f"{n_pairs} Fourier pairs"] = fourier_minima(n_pairs)

for name, values in minima.items():
    print(f"{name:20s} minimum {values.mean():8.1f} +- {values.std():.1f}")
reference = minima["grid"].mean()
off = [abs(minima[f"{n} Fourier pairs"].mean() - reference) for n in (500, 4000)]
print(f"Fourier features are off by {off[0]:.0f} with 500 pairs, by {off[1]:.0f} with 4,000")

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
