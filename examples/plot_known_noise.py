"""
=======================================================
Known noise, intervals and a target that is transformed
=======================================================

Measurements often come with error bars. Here each row is the mean of between one and thirty
measurements of a positive quantity, so that its noise variance is known up to the number of them.
The model is told, in ``fit`` and where it predicts; cross-validation splits the noise with the rows
and asks whether 95 % intervals hold 95 % of the rows left out.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_known_noise.png"

# %%
# The data, on a logarithmic scale
# --------------------------------
#
# On that scale a single measurement has a variance of 0.25, the mean of k of them 0.25 / k. The
# kernel has no ``WhiteKernel``: there is no other noise.

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
# Does an interval hold what it promises?
# ---------------------------------------
#
# Metadata routing hands each fold its own part of the noise: to ``fit``, and to the scorer, which
# passes it on to the predictions.

with sklearn.config_context(enable_metadata_routing=True):
    coverage = cross_val_score(
        gp.set_fit_request(noise_variance=True),
        X,
        log_y,
        scoring=coverage_scorer(0.95).set_score_request(noise_variance=True),
        params={"noise_variance": variance},
        cv=5,
    )
print(f"share of the rows left out inside their 95 % intervals: {coverage.mean():.3f}")

# %%
# In the units of the target
# --------------------------
#
# ``TransformedTargetRegressor`` takes the logarithm itself. Its own ``predict`` has no intervals,
# and a standard deviation would not survive the exponential; quantiles do.
# `~skscalablegp.metrics.predict_interval` reaches the model inside. The noise stays in the units
# that the model sees.

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
