"""
===============================================
Known noise, intervals and a transformed target
===============================================

Measurements often come with error bars. Here each row is the mean of between one and thirty
measurements of a positive quantity, whose number determines its noise variance. The variances are
passed to ``fit`` and to predictions. Cross-validation splits them with the rows, and shows whether
95 % intervals contain 95 % of the held-out targets.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_known_noise.png"

# %%
# The data, on a logarithmic scale
# --------------------------------
#
# On a logarithmic scale, a single measurement has a variance of 0.25 and the mean of k measurements
# 0.25 / k. The kernel has no ``WhiteKernel``, because there is no other noise.

import matplotlib.pyplot as plt
import numpy as np
import sklearn
from sklearn.compose import TransformedTargetRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel
from sklearn.model_selection import cross_val_score

from skscalablegp import SGPRRegressor
from skscalablegp.metrics import coverage_scorer, predict_interval

rng = np.random.default_rng(0)
X = rng.uniform(0, 10, (300, 1))
variance = 0.25 / rng.integers(1, 31, 300)
log_y = np.sin(X[:, 0]) + 0.2 * X[:, 0] + np.sqrt(variance) * rng.standard_normal(300)
y = np.exp(log_y)

kernel = ConstantKernel(1.0) * RBF(1.0)
gp = SGPRRegressor(kernel, normalize_y=True, random_state=0)

# %%
# The coverage of intervals
# -------------------------
#
# Metadata routing passes the noise variances of each fold to ``fit``, and to the scorer, which uses
# them in predictions.

with sklearn.config_context(enable_metadata_routing=True):
    coverage = cross_val_score(
        gp.set_fit_request(noise_variance=True),
        X,
        log_y,
        scoring=coverage_scorer(0.95).set_score_request(noise_variance=True),
        params={"noise_variance": variance},
        cv=5,
    )
print(f"share of held-out rows inside their 95 % intervals: {coverage.mean():.3f}")

# %%
# In the units of the target
# --------------------------
#
# ``TransformedTargetRegressor`` takes the logarithm itself. Its ``predict`` returns no intervals.
# `~skscalablegp.metrics.predict_interval` computes quantiles of the inner model and transforms them
# back, which is exact, in contrast to standard deviations. The noise variances are in the units of
# the inner model.

model = TransformedTargetRegressor(gp, func=np.log, inverse_func=np.exp)
model.fit(X, y, noise_variance=variance)
grid = np.linspace(0, 10, 400)[:, None]
function = predict_interval(model, grid, 0.95, include_noise=False)
single = predict_interval(model, grid, 0.95, noise_variance=0.25)

fig, ax = plt.subplots(figsize=(7, 4), layout="constrained")
ax.fill_between(grid[:, 0], *single.T, alpha=0.2, label="a single measurement, 95 %")
ax.fill_between(grid[:, 0], *function.T, alpha=0.5, label="the function, 95 %")
ax.scatter(X[:, 0], y, s=0.4 / variance, color="black", label="means of 1 to 30")
ax.plot(grid[:, 0], np.exp(np.sin(grid[:, 0]) + 0.2 * grid[:, 0]), color="tab:red", label="truth")
ax.set(yscale="log", xlabel="x", ylabel="y")
ax.legend()
plt.show()
