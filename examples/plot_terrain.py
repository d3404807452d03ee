"""
==============================
A terrain from 10,000 heights
==============================

A survey measures the height of a mountain range at 10,000 random places, each with an error of a
few metres, and leaves out one rectangle. What is the height elsewhere, and how certain is the map?
Gaussian processes are made for such problems: few columns, a smooth function, and decisions that
depend on the uncertainty. For comparison, gradient boosting predicts quantiles, and thus intervals.

The heights are a real elevation model, which comes with matplotlib. ``make demo`` runs this page.
"""

# sphinx_gallery_thumbnail_path = "_static/thumbs/plot_terrain.png"

# %%
# The survey
# ----------

import sys
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.cbook import get_sample_data
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.metrics import root_mean_squared_error

from skscalablegp import NNGPRegressor
from skscalablegp.inspection import IntervalCalibrationDisplay
from skscalablegp.metrics import pinball_loss

with get_sample_data("jacksboro_fault_dem.npz") as model:
    height = np.asarray(model["elevation"], dtype=float)
rows, columns = np.indices(height.shape)
places = np.column_stack([columns.ravel(), rows.ravel()])
heights = height.ravel()
gap = (abs(places - [250, 120]) < [35, 25]).all(axis=1)

rng = np.random.default_rng(0)
order = rng.permutation(np.flatnonzero(~gap))
train, test = order[:10_000], order[10_000:14_000]
measured = heights + rng.normal(scale=5.0, size=heights.shape)
print(f"{len(train):,} places to learn from, {len(test):,} to judge by")

# %%
# Two models
# ----------
#
# Nearest neighbours make the Gaussian process fast: the prediction at each place is that of the
# exact process of the measurements around it. Boosting fits one model for each quantile.

start = time.perf_counter()
gp = NNGPRegressor(random_state=0).fit(places[train], measured[train])
seconds = {"NNGPRegressor": time.perf_counter() - start}

q = np.array([0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.975])
start = time.perf_counter()
boosting = [
    HistGradientBoostingRegressor(
        loss="quantile", quantile=share, max_iter=300, max_leaf_nodes=63, random_state=0
    ).fit(places[train], measured[train])
    for share in q
]
seconds["boosted quantiles"] = time.perf_counter() - start

# %%
# The score
# ---------
#
# The models predict 4,000 other places, and the rectangle without measurements. Coverage is the
# share of new measurements inside their 95 % intervals. The other scores are in metres: the error
# of the median, the mean pinball loss of nine quantiles, and the width of the intervals.


def score(name, at, quantiles):
    lower, median, upper = quantiles[:, [0, 4, 8]].T
    inside = np.mean((measured[at] >= lower) & (measured[at] <= upper))
    rmse = root_mean_squared_error(measured[at], median)
    loss = pinball_loss(measured[at], quantiles, q=q)
    width = np.mean(upper - lower)
    print(f"{name:<32}{rmse:>8.1f}{loss:>9.2f}{inside:>10.1%}{width:>8.0f}")


def boosted_quantiles(at):
    # Quantiles of separate models can cross.
    return np.sort(np.column_stack([one.predict(places[at]) for one in boosting]), axis=1)


unseen = rng.choice(np.flatnonzero(gap), 1_000, replace=False)
gp_quantiles, boosted = gp.predict_quantiles(places[test], q), boosted_quantiles(test)
print(f"\n{'':<32}{'RMSE':>8}{'pinball':>9}{'coverage':>10}{'width':>8}")
score("NNGPRegressor", test, gp_quantiles)
score("boosted quantiles", test, boosted)
score("NNGPRegressor, gap", unseen, gp.predict_quantiles(places[unseen], q))
score("boosted quantiles, gap", unseen, boosted_quantiles(unseen))
print("\nseconds: " + ", ".join(f"{name} {passed:.1f}" for name, passed in seconds.items()))

# %%
# The picture
# -----------
#
# Above: the heights, and two maps predicted from the measurements. Below: the share of new
# measurements inside intervals of each level, where a calibrated model stays on the diagonal, and
# the width of the 95 % intervals. Intervals of the process depend on the distance to the
# measurements, and are wide in the dashed rectangle, which has none.

shown = np.flatnonzero(((rows % 3 == 0) & (columns % 3 == 0)).ravel())
mean, std = gp.predict(places[shown], return_std=True)
shape = height[::3, ::3].shape
low, middle, high = boosted_quantiles(shown)[:, [0, 4, 8]].T
figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
box = (0, height.shape[1], height.shape[0], 0)
heights_style = dict(extent=box, cmap="terrain", vmin=height.min(), vmax=height.max())
widths_style = dict(extent=box, cmap="magma", vmin=0, vmax=300)
panels = [
    (axes[0, 0], height, "the terrain", heights_style),
    (axes[0, 1], mean.reshape(shape), "Gaussian process", heights_style),
    (axes[0, 2], middle.reshape(shape), "gradient boosting", heights_style),
    (axes[1, 1], 3.92 * std.reshape(shape), "width of 95 % intervals", widths_style),
    (axes[1, 2], (high - low).reshape(shape), "width of 95 % intervals", widths_style),
]
for ax, values, title, style in panels:
    image = ax.imshow(values, **style)
    ax.add_patch(plt.Rectangle((215, 95), 70, 50, fill=False, linestyle="--", color="white"))
    ax.set(title=title, xticks=[], yticks=[])
    if ax in (axes[0, 2], axes[1, 2]):
        figure.colorbar(image, ax=ax, label="metres")
for name, quantiles in (("Gaussian process", gp_quantiles), ("gradient boosting", boosted)):
    IntervalCalibrationDisplay.from_predictions(
        measured[test], quantiles, q=q, kind="coverage", name=name, ax=axes[1, 0]
    )
axes[1, 0].set(title="do intervals hold what they promise?")

# Saved where a file is named (make demo does), shown otherwise.
if len(sys.argv) > 1:
    picture = Path(sys.argv[1])
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"Picture: {picture}")
else:
    plt.show()
