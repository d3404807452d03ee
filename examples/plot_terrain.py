"""
==============================
A terrain from 10,000 heights
==============================

A survey measures the height of a mountain range at 10,000 random places, each with an error of a
few metres, and leaves out one rectangle. What is the height elsewhere, and how certain is the map?
Gaussian processes are made for such problems: few columns, a smooth function, and decisions that
depend on the uncertainty. For comparison, gradient boosting predicts a median and the ends of
intervals.

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
from threadpoolctl import threadpool_limits

from skscalablegp import NNGPRegressor
from skscalablegp.metrics import interval_score

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
print(f"{len(train):,} training places, {len(test):,} test places")

# %%
# Two models
# ----------
#
# Nearest neighbours make the Gaussian process fast: the prediction at each place is that of the
# exact process of the measurements around it. Boosting fits one model for each of three quantiles.
# The size of its trees and its learning rate were chosen on 2,000 of the 10,000 places.

start = time.perf_counter()
print("Fitting a Gaussian process: first to 1,000 places, then to all, then its calibration ...")
gp = NNGPRegressor(random_state=0, verbose=1).fit(places[train], measured[train])
seconds = {"Gaussian process": time.perf_counter() - start}

start = time.perf_counter()
boosting = []
for quantile in (0.025, 0.5, 0.975):
    print(f"Fitting gradient boosting to the quantile {quantile} ...")
    one = HistGradientBoostingRegressor(loss="quantile", quantile=quantile, random_state=0)
    one.set_params(max_iter=300, max_leaf_nodes=127, learning_rate=0.05)
    # Trees of so few rows take longer on several threads, which wait for each other.
    with threadpool_limits(1, user_api="openmp"):
        boosting.append(one.fit(places[train], measured[train]))
seconds["gradient boosting"] = time.perf_counter() - start


def process(at):
    """The ends of the 95 % intervals, with the median between them."""
    mean, std = gp.predict(places[at], return_std=True)
    return np.column_stack([mean - 1.96 * std, mean, mean + 1.96 * std])


def boosted(at):
    # Quantiles of separate models can cross.
    with threadpool_limits(1, user_api="openmp"):
        return np.sort(np.column_stack([one.predict(places[at]) for one in boosting]), axis=1)


# %%
# The score
# ---------
#
# The models predict 4,000 other places, and 1,000 in the rectangle without measurements. Coverage
# is the share of new measurements inside the 95 % intervals. The other scores are in metres: the
# error of the median, the width of the intervals, and the interval score, which penalises both
# width and measurements outside; lower is better.

unseen = rng.choice(np.flatnonzero(gap), 1_000, replace=False)
print("Predicting 5,000 other places ...\n")
print(f"{'':<34}{'RMSE':>8}{'coverage':>10}{'width':>8}{'interval score':>16}")
for name, predict in (("Gaussian process", process), ("gradient boosting", boosted)):
    for where, at in (("", test), (", no measurements", unseen)):
        lower, median, upper = predict(at).T
        inside = np.mean((measured[at] >= lower) & (measured[at] <= upper))
        rmse = root_mean_squared_error(measured[at], median)
        score = interval_score(measured[at], lower, upper, coverage=0.95)
        width = np.mean(upper - lower)
        print(f"{name + where:<34}{rmse:>8.1f}{inside:>10.1%}{width:>8.0f}{score:>16.0f}")
print("\nseconds of training: " + ", ".join(f"{name} {s:.1f}" for name, s in seconds.items()))

# %%
# The picture
# -----------
#
# Top row: the heights, and two maps predicted from the measurements. Bottom row: intervals along
# the dotted line, and the width of the intervals everywhere. Those of the process depend on the
# distance to the measurements, and are wide in the dashed rectangle, which has none.

shown = np.flatnonzero(((rows % 3 == 0) & (columns % 3 == 0)).ravel())
shape = height[::3, ::3].shape
line = np.flatnonzero(((rows == 120) & (columns >= 150) & (columns <= 350)).ravel())
print(f"\nPredicting {len(shown):,} places of the maps ...")
maps = {name: predict(shown) for name, predict in (("process", process), ("boosting", boosted))}

figure, axes = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
box = (0, height.shape[1], height.shape[0], 0)
heights_style = dict(extent=box, cmap="terrain", vmin=height.min(), vmax=height.max())
widths_style = dict(extent=box, cmap="magma", vmin=0, vmax=300)
widths = {name: found[:, 2] - found[:, 0] for name, found in maps.items()}
panels = [
    (axes[0, 0], height, "the terrain", heights_style),
    (axes[0, 1], maps["process"][:, 1].reshape(shape), "Gaussian process", heights_style),
    (axes[0, 2], maps["boosting"][:, 1].reshape(shape), "gradient boosting", heights_style),
    (axes[1, 1], widths["process"].reshape(shape), "width of 95 % intervals", widths_style),
    (axes[1, 2], widths["boosting"].reshape(shape), "width of 95 % intervals", widths_style),
]
for ax, values, title, style in panels:
    image = ax.imshow(values, **style)
    ax.add_patch(plt.Rectangle((215, 95), 70, 50, fill=False, linestyle="--", color="white"))
    ax.set(title=title, xticks=[], yticks=[])
    if ax in (axes[0, 2], axes[1, 2]):
        figure.colorbar(image, ax=ax, label="metres")
axes[0, 0].plot(places[line, 0], places[line, 1], color="white", linestyle=":", lw=2)

ax = axes[1, 0]
ax.axvspan(215, 285, color="0.93", label="no measurements")
for name, predict, color in (("boosting", boosted, "C1"), ("process", process, "C0")):
    lower, _, upper = predict(line).T
    ax.fill_between(places[line, 0], lower, upper, color=color, alpha=0.4, label=f"95 %, {name}")
ax.plot(places[line, 0], heights[line], color="black", lw=1, label="the terrain")
ax.set(title="intervals along the dotted line", xlim=(150, 350), ylabel="metres", xticks=[])
ax.legend(fontsize="small")

# Saved where a file is named (make demo does), shown otherwise.
if len(sys.argv) > 1:
    picture = Path(sys.argv[1])
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)
    print(f"Picture: {picture}")
else:
    plt.show()
