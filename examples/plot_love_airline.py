"""
Airline passengers: extrapolating a spectral mixture
====================================================

The data are monthly totals of airline passengers, 1949 to 1960. A spectral mixture kernel with ten
components learns trend and seasons from the first 96 months and extrapolates to the last 48. An
exact Gaussian process, its interpolation from a grid (KISS-GP), and the latter with low-rank
variances (LOVE) should agree.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_love_airline.png"

import warnings

import matplotlib.pyplot as plt
import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.frozen import FrozenEstimator
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import WhiteKernel

from skscalablegp import KISSGPRegressor, LOVEPredictor
from skscalablegp.kernels import SpectralMixture

# %%
# The series of Box and Jenkins, in thousands of passengers. Growth is multiplicative, so take
# logarithms.
passengers = np.array(
    """112 118 132 129 121 135 148 148 136 119 104 118 115 126 141 135 125 149 170 170 158 133 114
    140 145 150 178 163 172 178 199 199 184 162 146 166 171 180 193 181 183 218 230 242 209 191 172
    194 196 196 236 235 229 243 264 272 237 211 180 201 204 188 235 227 234 264 302 293 259 229 203
    229 242 233 267 269 270 315 364 347 312 274 237 278 284 277 317 313 318 374 413 405 355 306 271
    306 315 301 356 348 355 422 465 467 404 347 305 336 340 318 362 348 363 435 491 505 404 359 310
    337 360 342 406 396 420 472 548 559 463 407 362 405 417 391 419 461 472 535 622 606 508 461 390
    432""".split(),
    dtype=float,
)
months = np.arange(144.0)[:, None]
y = np.log(passengers)
y = (y - y[:96].mean()) / y[:96].std()
train, test = slice(0, 96), slice(96, 144)

# %%
# Train on a grid, starting from the peaks of the periodogram, and use the trained kernel for all
# three models, so that only the approximation differs. The grid has to include the test months,
# which are added as rows with so much noise that they carry no information. ``solver="cg"``
# computes with products only, the case for which low-rank variances are intended.
start = SpectralMixture.from_data(months[train], y[train], n_components=10)
kernel = start + WhiteKernel(0.03, (1e-2, 1.0))
kiss = KISSGPRegressor(kernel, alpha=0, grid_size=400, max_iter=60)
with warnings.catch_warnings():
    # Training ends early on purpose: more steps fit 31 hyperparameters to the noise of 96 months.
    warnings.simplefilter("ignore", ConvergenceWarning)
    kernel = kiss.fit(months[train], y[train]).kernel_
kiss = KISSGPRegressor(kernel, alpha=0, grid_size=400, optimizer=None, solver="cg")
kiss.fit(months[train], y[train]).partial_fit(months[test], y[test], noise_variance=1e8)
exact = GaussianProcessRegressor(kernel, optimizer=None, alpha=0)
exact.fit(months[train], y[train])
love = LOVEPredictor(FrozenEstimator(kiss), variance_rank=50).fit(months[train], y[train])

# %%
# The log likelihood of the test months, and the mean absolute error of the variances (SMAE, in
# units of the target's variance).
exact_mean, exact_std = exact.predict(months[test], return_std=True)
unit = y.var()
for name, model in [("exact", exact), ("KISS-GP", kiss), ("KISS-GP with LOVE", love)]:
    known = {} if model is exact else {"noise_variance": 0.0}
    mean, std = model.predict(months[test], return_std=True, **known)
    density = -0.5 * np.log(2 * np.pi * std**2) - 0.5 * ((y[test] - mean) / std) ** 2
    smae = np.abs(std**2 - exact_std**2).mean() / unit
    print(f"{name:18s} log likelihood {density.sum():8.3f}   SMAE {smae:.1e}")
print(f"LOVE: rank {love.variance_rank_}, measured variance error {love.variance_error_:.1e}")

# %%
# Two standard deviations around the mean, over all months.
fig, axes = plt.subplots(1, 3, figsize=(12, 3.2), sharey=True)
for ax, (name, model) in zip(
    axes, [("exact", exact), ("KISS-GP", kiss), ("KISS-GP with LOVE", love)], strict=True
):
    known = {} if model is exact else {"noise_variance": 0.0}
    mean, std = model.predict(months, return_std=True, **known)
    ax.fill_between(months[:, 0], mean - 2 * std, mean + 2 * std, alpha=0.3)
    ax.plot(months[:, 0], mean)
    ax.plot(months[train, 0], y[train], "k.", markersize=3)
    ax.plot(months[test, 0], y[test], "r.", markersize=3)
    ax.set(title=name, xlabel="month")
axes[0].set_ylabel("log passengers, standardised")
plt.tight_layout()
plt.show()
