"""
Intervals of a Gaussian process and of boosting
===============================================

A prediction interval should be narrow between many training rows, wider where the noise is large,
and widest where there are no training rows. Gradient boosting learns the two ends of an interval as
quantiles. It adapts to the noise, but where there are no rows, it repeats the interval of the
nearest ones. A Gaussian process adapts to both.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_intervals.png"

# %%
# The data
# --------
# A smooth function of one column. The noise grows to the right, and a quarter of the range has no
# training rows.
import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from skscalablegp import HeteroscedasticRegressor, IterativeGPRegressor
from skscalablegp.metrics import interval_score

rng = np.random.default_rng(0)


def function(x):
    return np.sin(3 * x) + 0.5 * x


def draw(n):
    x = np.sort(rng.uniform(0, 6, n))
    noise = 0.1 + 0.1 * x
    return x[:, None], function(x) + noise * rng.standard_normal(n)


X, y = draw(400)
seen = (X[:, 0] < 2.2) | (X[:, 0] > 3.7)  # no training rows in between
X, y = X[seen], y[seen]
X_new, y_new = draw(4000)

# %%
# Both models, with default settings
# ----------------------------------
# :class:`~skscalablegp.IterativeGPRegressor` has one noise variance for all rows.
# :class:`~skscalablegp.HeteroscedasticRegressor` learns how the noise depends on the row. Two
# boosting models learn the quantiles that bound 95 % of the targets.
process = HeteroscedasticRegressor(IterativeGPRegressor(), random_state=0).fit(X, y)
interval = process.predict_interval(X_new, coverage=0.95)
low, high = interval.T
print(f"{np.mean((low <= y_new) & (y_new <= high)):.1%} of new targets are inside")

boosting = [
    HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(X, y)
    for q in (0.025, 0.975)
]
boosted = np.sort(np.column_stack([model.predict(X_new) for model in boosting]), axis=1)

# %%
# Coverage of new targets
# -----------------------
# The interval score penalises width and targets outside the interval; lower is better. ``python
# examples/plot_intervals.py doc/_static/intervals.png`` writes the picture of the front page.
figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
panels = [("Gaussian process", interval, "C0"), ("Gradient boosting", boosted, "C1")]
for ax, (name, found, color) in zip(axes, panels, strict=True):
    low, high = found.T
    inside = np.mean((low <= y_new) & (y_new <= high))
    score = interval_score(y_new, low, high, coverage=0.95)
    print(f"{name:18s}: {inside:.1%} of new targets inside, interval score {score:.2f}")
    x = X_new[:, 0]
    ax.axvspan(2.2, 3.7, color="0.93", label="no training rows")
    ax.fill_between(x, low, high, color=color, alpha=0.3, label="95 % interval")
    ax.plot(x, function(x), "k--", lw=1, label="true function")
    ax.plot(X, y, ".", color="0.35", ms=3, label="training rows")
    ax.set(title=f"{name}: {inside:.0%} of new targets inside", xlabel="x", ylim=(-2, 6.5))
axes[0].set_ylabel("y")
axes[0].legend(loc="upper left", fontsize="small", ncols=2)
# Saved where a file is named, and shown otherwise.
if sys.argv[1:2] and sys.argv[1].endswith(".png"):
    figure.savefig(sys.argv[1], dpi=110)
plt.show()
