"""
Intervals that fit, beside those of boosting
============================================

A prediction interval should be narrow where many rows agree, wide where the noise is large, and
wider still where there are no rows at all. Gradient boosting learns the two ends of an interval as
quantiles. It adapts to the noise, but where there are no rows, it repeats the interval of the
nearest ones. A Gaussian process adapts to both.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_intervals.png"

# %%
# The data
# --------
# A smooth function of one column. The noise grows to the right, and a third of the range has no
# training rows.
import sys

import matplotlib.pyplot as plt
import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from skscalablegp import HeteroscedasticRegressor, IterativeGPRegressor
from skscalablegp.metrics import interval_score


def function(x):
    return np.sin(3 * x) + 0.5 * x


def draw(n, rng, everywhere=False):
    x = rng.uniform(0, 6, n if everywhere else 2 * n)
    if not everywhere:
        x = x[(x < 2.2) | (x > 3.7)][:n]
    return x[:, None], function(x) + (0.1 + 0.1 * x) * rng.standard_normal(len(x))


rng = np.random.default_rng(0)
X, y = draw(300, rng)
X_new, y_new = draw(4000, rng, everywhere=True)

# %%
# Both models, with default settings
# ----------------------------------
# :class:`~skscalablegp.HeteroscedasticRegressor` makes the noise of a Gaussian process depend on
# the row. Two boosting models learn the quantiles that bound 95 % of the targets.
process = HeteroscedasticRegressor(IterativeGPRegressor(random_state=0), random_state=0).fit(X, y)
boosting = [
    HistGradientBoostingRegressor(loss="quantile", quantile=q, random_state=0).fit(X, y)
    for q in (0.025, 0.975)
]


def intervals(name, rows):
    if name == "Gaussian process":
        return process.predict_interval(rows, coverage=0.95)
    return np.sort(np.column_stack([model.predict(rows) for model in boosting]), axis=1)


# %%
# Coverage of new targets
# -----------------------
# The interval score penalises width and targets outside the interval; lower is better.
line = np.linspace(0, 6, 400)[:, None]
figure, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
names = ["Gaussian process", "Gradient boosting"]
for ax, name, color in zip(axes, names, ["C0", "C1"], strict=True):
    found = intervals(name, X_new)
    inside = np.mean((found[:, 0] <= y_new) & (y_new <= found[:, 1]))
    score = interval_score(y_new, *found.T, coverage=0.95)
    print(f"{name:18s} holds {inside:.1%} of new targets, interval score {score:.2f}")
    low, high = intervals(name, line).T
    ax.axvspan(2.2, 3.7, color="0.93", label="no training rows")
    ax.fill_between(line[:, 0], low, high, color=color, alpha=0.3, label="95 % interval")
    ax.plot(line, function(line), "k--", lw=1, label="true function")
    ax.plot(X, y, ".", color="0.35", ms=3, label="training rows")
    ax.set(title=f"{name}: {inside:.0%} of new targets inside", xlabel="x", ylim=(-2, 6.5))
axes[0].set_ylabel("y")
axes[0].legend(loc="upper left", fontsize="small", ncols=2)
if sys.argv[1:2] and sys.argv[1].endswith(".png"):
    figure.savefig(sys.argv[1], dpi=110)
plt.show()
